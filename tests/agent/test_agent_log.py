"""The message log, and the slices of it put together again on our side."""

from __future__ import annotations

import itertools
import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ivy_kernel.agent.message_log import BLOCK_BYTES, MessageLog, MessageRecorder
from ivy_kernel.routes.agent.frames import Inbox, InboxFullError, to_message

LINES = st.lists(st.binary(min_size=1, max_size=200).map(lambda b: b.replace(b"\n", b" ") + b"\n"))


def record(number: int) -> bytes:
    """A record as the agent writes it."""
    return json.dumps({"c": "agent", "d": {"n": number}}).encode() + b"\n"


@given(LINES, st.lists(st.integers(0, 5000)))
def test_offsets_survive_trimming(lines: list[bytes], cuts: list[int]) -> None:
    """Whatever was trimmed, the rest of the log reads the same at the same offsets."""
    log = MessageLog(1 << 20)
    for line in lines:
        log.append(line)
    whole = b"".join(lines)
    for cut in sorted(cuts):
        log.trim(min(cut, log.end))
        start = max(log.base, min(cut, log.end))
        assert log.base <= max(min(cut, log.end), 0)
        assert log.read(start, 1 << 20) == whole[start:]
        assert log.read(start, 7) == whole[start : start + 7]


def test_acknowledged_blocks_are_forgotten() -> None:
    """Memory follows what is unread, a block or so more at most."""
    log = MessageLog(1 << 30)
    for _ in range(100):
        log.append(b"x" * 50_000 + b"\n")
    log.trim(log.end - 10)
    assert log.retained_bytes <= 2 * BLOCK_BYTES
    log.trim(log.end)
    assert log.retained_bytes == 0


@given(st.integers(0, 60), st.randoms(use_true_random=False))
def test_slices_in_any_order_and_number_give_the_records_once(
    count: int, dice: random.Random
) -> None:
    """Slices that overlap, repeat and overtake each other yield each record once, in order."""
    whole = b"".join(record(number) for number in range(count))
    edges = sorted({0, len(whole), *(dice.randint(0, len(whole)) for _ in range(15))})
    slices = [(a, whole[a : b + dice.randint(0, 30)]) for a, b in itertools.pairwise(edges)]
    slices += dice.sample(slices, min(4, len(slices)))
    dice.shuffle(slices)
    inbox = Inbox()
    got = [r["d"]["n"] for offset, data in slices for r in inbox.add(offset, data)]
    assert got == list(range(count))
    assert not inbox.has_gap


def test_a_gap_is_noticed() -> None:
    """A later slice alone yields nothing and says that an earlier one is missing."""
    inbox = Inbox()
    first, second = record(1), record(2)
    assert inbox.add(len(first), second) == []
    assert inbox.has_gap
    assert [r["d"]["n"] for r in inbox.add(0, first)] == [1, 2]


def test_a_record_without_an_end_is_refused() -> None:
    """What grows beyond the limit is not held, however it is cut."""
    inbox = Inbox(held_limit_bytes=100_000)
    for number in range(10):
        assert inbox.add(number * 10_000, b"x" * 10_000) == []
    with pytest.raises(InboxFullError):
        inbox.add(100_000, b"x")


def test_early_slices_are_held_within_the_limit() -> None:
    """Those beyond it are left to be asked for again; the one that is next is always taken."""
    inbox = Inbox(held_limit_bytes=1_000)
    records = [record(number).rjust(400) for number in range(5)]
    for number in (1, 2, 3, 4):
        assert inbox.add(number * 400, records[number]) == []
    assert [r["d"]["n"] for r in inbox.add(0, records[0])] == [0, 1, 2]
    assert inbox.offset == 1_200
    assert [r["d"]["n"] for r in inbox.add(1_200, records[3] + records[4])] == [3, 4]


def test_many_early_slices_do_not_keep_the_next_one_out() -> None:
    """However many slices came early, the one that they wait for is taken."""
    inbox = Inbox()
    records = [record(number) for number in range(100, 200)]
    offsets = [sum(map(len, records[:number])) for number in range(100)]
    for number in range(1, 100):
        inbox.add(offsets[number], records[number])
    assert len(inbox.add(0, records[0])) > 60


@pytest.mark.parametrize(
    "line",
    [b"{", b"[1]", b"null", b'{"c":"iopub"}', b'{"c":"iopub","d":7}', b"[" * 100_000, b"\xff\xfe"],
    ids=lambda line: line[:12].decode("latin1"),
)
def test_a_line_that_is_no_record_is_counted_and_skipped(line: bytes) -> None:
    """Nonsense in the log costs itself only."""
    inbox = Inbox()
    records = inbox.add(0, line + b"\n" + record(1))
    assert [r["d"] for r in records] == [{"n": 1}]
    assert inbox.unreadable_records == 1


def test_nan_and_surrogates_are_read() -> None:
    """What Python's json writes and stricter parsers refuse still arrives."""
    inbox = Inbox()
    (got,) = inbox.add(0, b'{"c":"agent","d":{"x":NaN,"s":"\\ud800"}}\n')
    assert got["d"]["x"] != got["d"]["x"]


def test_buffers_travel() -> None:
    """Binary buffers come back as bytes; a record with broken ones is no message."""
    base = {"c": "iopub", "h": {"msg_type": "comm_msg"}, "p": {}, "m": {}, "d": {}}
    message = to_message({**base, "b": ["AP8="]})
    assert message is not None
    assert message.buffers == (b"\x00\xff",)
    assert to_message({**base, "b": ["not base64!"]}) is None
    assert to_message({**base, "c": "nonsense"}) is None


def test_above_the_limit_output_is_dropped_and_the_rest_is_kept() -> None:
    """Replies and statuses always fit; dropped output is counted and told."""
    log = MessageLog(2_000)
    recorder = MessageRecorder(log)
    for _ in range(10):
        recorder.record("iopub", "stream", [b"{}", b"{}", b"{}", b'"%s"' % (b"x" * 500)], [])
    recorder.record("shell", "execute_reply", [b"{}", b"{}", b"{}", b'"reply"'], [])
    lines = log.read(log.base, 1 << 20).splitlines()
    assert sum(b"xxx" in line for line in lines) == 3
    assert b'"reply"' in lines[-1]
    assert json.loads(lines[-2])["d"] == {"event": "dropped", "messages": 7, "bytes": 7 * 542}


def test_a_record_stays_one_line() -> None:
    """A kernel that pretty-prints its JSON does not break the log."""
    log = MessageLog(10_000)
    MessageRecorder(log).record("iopub", "stream", [b"{}", b"{}", b"{}", b'{\n "a": 1\n}'], [])
    assert log.read(0, 10_000).count(b"\n") == 1
