"""Frames, both ways: what is sent is what arrives, and nothing else counts."""

from __future__ import annotations

import base64
import json
import random
import socket
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ivy_kernel.agent.wire import (
    LINE_CHARS,
    FragmentReassembly,
    WireError,
    read_request,
    write_answer,
)
from ivy_kernel.errors import AnswerError
from ivy_kernel.routes.agent.calls import pack
from ivy_kernel.routes.agent.frames import (
    ANSWER_LIMIT_BYTES,
    AgentSilentError,
    ChangedError,
    NoAgentError,
    TruncatedError,
    read_answer,
)
from ivy_kernel.routes.agent.programs import BEGIN, END, snippet

CALL = "0123456789abcdef"


def printed(frame: bytes, call_id: str = CALL) -> str:
    """What a snippet prints around an answer."""
    return f"\n{BEGIN}{call_id}\n{frame.decode()}\n{END}{call_id}\n"


SHAPES: list[Any] = [
    lambda text: {"stdout": text, "stderr": "", "exit_code": 0},
    lambda text: {"result": {"output": {"stdout": "noise\n" + text + "noise"}}},
    lambda text: {"content": [{"type": "text", "text": text}], "isError": False},
    lambda text: {"result": json.dumps({"stdout": text, "returncode": 0})},
    lambda text: {"data": json.dumps({"inner": json.dumps([text])})},
    lambda text: {"outputs": [{"output_type": "stream", "text": text}]},
    lambda text: {"logs": {"stdout": [text[i : i + 40] for i in range(0, len(text), 40)]}},
    lambda text: {"outputs": [{"text": text.splitlines(keepends=True)}, {"text": "more"}]},
    lambda text: text,
]


@pytest.mark.parametrize("shape", SHAPES)
@given(body=st.binary(max_size=3000))
def test_an_answer_is_found_in_any_shape(shape: Any, body: bytes) -> None:
    """Whatever JSON the tool wraps around its output, the frame is found and whole."""
    answer = read_answer(shape(printed(write_answer({"nonce": "n"}, body)[0])), CALL)
    assert (answer.header, answer.body) == ({"nonce": "n"}, body)


def test_lines_are_short() -> None:
    """No line of an answer is longer than line-reading runners bear."""
    frame = write_answer({}, random.Random(1).randbytes(100_000))[0]
    assert max(map(len, frame.split(b"\n"))) == LINE_CHARS


def test_an_answer_of_another_call_does_not_count() -> None:
    """A frame without this call's random id is ignored, wherever it stands."""
    forged = printed(write_answer({"nonce": "forged"})[0], "f" * 16)
    with pytest.raises(AnswerError):
        read_answer({"stdout": forged}, CALL)
    real = printed(write_answer({"nonce": "real"})[0])
    assert read_answer({"stdout": forged + real}, CALL).header["nonce"] == "real"


def test_a_frame_that_was_changed_does_not_count() -> None:
    """Length and checksum guard a frame."""
    frame = bytearray(write_answer({"nonce": "n"}, b"x" * 100)[0])
    frame[-3] = frame[-3] ^ 1
    with pytest.raises(TruncatedError):
        read_answer({"stdout": printed(bytes(frame))}, CALL)


@pytest.mark.parametrize("keep", [0.3, 0.9])
def test_a_cut_answer_says_how_much_arrived(keep: float) -> None:
    """From a cut frame it is known how large the next may be."""
    text = printed(write_answer({}, random.Random(1).randbytes(5_000))[0])
    cut = text[: int(len(text) * keep)] + "\n... [output truncated]"
    with pytest.raises(TruncatedError) as cutting:
        read_answer({"stdout": cut}, CALL)
    assert cutting.value.size_chars == len(cut)


def test_a_decompression_bomb_is_refused() -> None:
    """An answer that would unpack to more than the limit is not unpacked."""
    packed = zlib.compress(b"{}\n" + b"\0" * (64 << 20))
    frame = b"%d.%08x.\n%s" % (len(packed), zlib.crc32(packed), base64.b64encode(packed))
    with pytest.raises(TruncatedError):
        read_answer({"stdout": printed(frame)}, CALL)


@pytest.mark.parametrize("depth", [50, 100_000])
def test_deep_nesting_is_refused(depth: int) -> None:
    """JSON nested without end, as values or within strings, ends the search and nothing else."""
    nested: Any = BEGIN
    for _ in range(min(depth, 500)):
        nested = [nested]
    with pytest.raises(AnswerError):
        read_answer({"stdout": nested if depth == 50 else "[" * depth + BEGIN}, CALL)


def test_what_the_snippet_reports_is_told_apart() -> None:
    """No agent, and an agent that does not answer, are different things."""
    with pytest.raises(NoAgentError):
        read_answer({"stdout": printed(b"!111 [Errno 111] Connection refused")}, CALL)
    with pytest.raises(NoAgentError) as missing:
        read_answer({"stdout": printed(b"!2 [Errno 2] No such file")}, CALL)
    assert missing.value.code == 2
    with pytest.raises(AgentSilentError):
        read_answer({"stdout": printed(b"!0 timed out")}, CALL)


@given(st.dictionaries(st.text(), st.text() | st.integers() | st.lists(st.text())))
def test_a_request_arrives_as_it_was(request_body: dict[str, Any]) -> None:
    """Any JSON survives the way to the agent."""
    assert read_request(pack({"body": request_body}))["body"] == request_body


@given(st.binary(min_size=1, max_size=5000), st.integers(1, 20), st.randoms(use_true_random=False))
def test_fragments_in_any_order(data: bytes, count: int, dice: random.Random) -> None:
    """A request cut into fragments is whole again, however they arrive, doubled ones included."""
    size = max(1, -(-len(data) // count))
    pieces = [data[start : start + size] for start in range(0, len(data), size)]
    order = list(range(len(pieces)))
    dice.shuffle(order)
    fragments = FragmentReassembly()
    whole = None
    for index in order:
        assert whole is None
        whole = fragments.add(b"F:u:%d:%d:%s" % (index, len(pieces), pieces[index]))
    assert whole == data


@pytest.mark.parametrize("payload", [b"", b"!!!", b"AAAA", base64.b64encode(zlib.compress(b"[1]"))])
def test_a_request_that_cannot_be_read_is_an_error_of_its_own(payload: bytes) -> None:
    """Nonsense on the socket raises WireError and nothing else."""
    with pytest.raises(WireError):
        read_request(payload)


@pytest.mark.parametrize("limit", [2_048, 50_000])
def test_an_answer_keeps_within_its_limit(limit: int) -> None:
    """As much of the body as fits is in the answer, and all of a small one."""
    header = {"nonce": "n" * 16}
    for body in (b"abc " * 500_000, random.Random(1).randbytes(500_000)):
        frame, taken = write_answer(header, body, limit_chars=limit)
        assert limit // 3 < len(printed(frame)) <= limit or taken == len(body)
        assert 0 < taken <= len(body)
        assert read_answer({"stdout": printed(frame)}, CALL).body == body[:taken]
    assert write_answer(header, b"small", limit_chars=limit)[1] == 5


def picture_line() -> bytes:
    """A record that hardly shrinks: a picture in base64."""
    return b'{"d":"%s"}\n' % base64.b64encode(random.Random(1).randbytes(60_000))


@pytest.mark.parametrize("limit", [2_048, 50_000, 1 << 20])
def test_what_hardly_shrinks_travels_plain(limit: int) -> None:
    """Within its limit, in short lines, whole and read back to the byte; if the reader allows."""
    header, body = {"nonce": "n" * 16}, b"".join(picture_line() for _ in range(5))
    frame, taken = write_answer(header, body, limit_chars=limit, may_be_plain=True)
    assert b".\n~{" in frame
    assert len(printed(frame)) <= limit
    assert max(map(len, frame.split(b"\n"))) <= LINE_CHARS
    assert taken == len(body) or taken > limit // 2
    answer = read_answer({"stdout": printed(frame).replace("\n", "\r\n")}, CALL)
    assert (answer.header, answer.body) == (header, body[:taken])
    assert b"~" not in write_answer(header, body, limit_chars=limit)[0]


@pytest.mark.parametrize(
    "body",
    [b"abc " * 50_000, picture_line() + "é".encode(), picture_line() + b"\t", b"x" * 100],
    ids=["text", "not ASCII", "a tab", "short"],
)
def test_everything_else_travels_packed(body: bytes) -> None:
    """Text shrinks; and what a runner may change on its way is packed too."""
    frame, taken = write_answer({}, body, may_be_plain=True)
    assert b"~" not in frame
    assert read_answer({"stdout": printed(frame)}, CALL).body == body[:taken] == body


@pytest.mark.parametrize("change", [("\t", "    "), ("A", "B")], ids=str)
@pytest.mark.parametrize("may_be_plain", [True, False])
def test_an_answer_that_was_changed_does_not_count(
    change: tuple[str, str], *, may_be_plain: bool
) -> None:
    """Length and checksum guard it; from a plain one the reader learns to ask for packed ones."""
    text = printed(write_answer({}, picture_line(), may_be_plain=may_be_plain)[0])
    begin, end = text.index(".\n"), text.rindex("\nIVY")
    changed = text[:begin] + text[begin:end].replace(*change) + text[end:]
    if changed == text:
        assert not may_be_plain  # nothing to expand in packed text
        return
    with pytest.raises(ChangedError) as refusal:
        read_answer({"stdout": changed}, CALL)
    assert refusal.value.was_plain is may_be_plain


@pytest.mark.parametrize(
    "change", [("\n", "\n    "), ("\n", " \n"), ("\n", "\r\n")], ids=["indent", "pad", "CR LF"]
)
def test_white_space_in_a_packed_answer_does_not_matter(change: tuple[str, str]) -> None:
    """Some runners indent or pad the lines of what was printed."""
    body = random.Random(1).randbytes(20_000)
    text = printed(write_answer({"nonce": "n"}, body)[0]).replace(*change)
    assert read_answer({"stdout": text}, CALL).body == body


def test_a_plain_answer_has_a_bound_too() -> None:
    """More than an answer may hold is not taken, packed or not."""
    content = b"{}\n" + b"x" * ANSWER_LIMIT_BYTES
    text = b"~" + content.replace(b"\n", b"\t") + b"~"
    frame = b"%d.%08x.\n%s" % (len(content), zlib.crc32(content), text)
    with pytest.raises(ChangedError):
        read_answer({"stdout": printed(frame)}, CALL)


def test_a_snippet_prints_its_answer_in_one_piece(tmp_path: Path) -> None:
    """Runners that keep prints apart, and caps that end a call, never see half of a frame."""
    frame = write_answer({"nonce": "n"}, random.Random(1).randbytes(300_000))[0]
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(tmp_path / "s"))
    listener.listen()

    def serve() -> None:
        stream, _ = listener.accept()
        with stream:
            stream.recv(1000)
            for start in range(0, len(frame), 50_000):
                stream.sendall(frame[start : start + 50_000])

    prints: list[str] = []
    program = snippet(str(tmp_path), b"request", timeout_seconds=10, call_id=CALL)
    with listener, ThreadPoolExecutor() as threads:
        serving = threads.submit(serve)
        exec(program, {"print": lambda text, flush: prints.append(text)})
        serving.result(10)
    assert len(prints) == 1
    assert read_answer({"stdout": prints[0]}, CALL).header["nonce"] == "n"


@pytest.mark.parametrize("number", ["\u00b2", "\u0662", "9" * 5000, "-2", ""])
def test_an_error_number_that_is_none_is_an_agent_that_is_silent(number: str) -> None:
    """What looks like a digit and is none does not raise anything else."""
    with pytest.raises(AgentSilentError):
        read_answer(f"\n{BEGIN}{CALL}\n!{number} words\n{END}{CALL}\n", CALL)


@pytest.mark.parametrize(
    "header",
    [
        {"nonce": 7},
        {"nonce": "n", "attached": "one"},
        {"nonce": "n", "offset": None},
        {"nonce": "n", "parked_seconds": "long"},
        {"nonce": "n", "generation": [1]},
        {"nonce": "n", "under_way": 3},
    ],
    ids=str,
)
def test_a_header_of_wrong_types_is_no_answer(header: dict[str, Any]) -> None:
    """What an answer says about itself is checked before anything counts with it."""
    with pytest.raises(AnswerError, match="cannot be read"):
        read_answer(printed(write_answer(header)[0]), CALL)
