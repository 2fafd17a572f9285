"""Texts that are too long: head, tail, an exact count, and the whole text in a private file."""

from __future__ import annotations

import os
import re
import resource
import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded import FrontEnd, other, stream, throttle

from ivy_kernel.models import Message
from ivy_kernel.session.output_limit import OLD_SECONDS, TAIL_PIECES, OutputLimit

NOTE = re.compile(r"\n\[… ([0-9,]+) bytes of output are not shown here; (.*)\. The setting ")


def shown_by(
    limit: OutputLimit, messages: list[Message]
) -> tuple[str, int, Path | None, str, list[Message]]:
    """Head, count of what was cut, file, tail, and the tail's messages."""
    head = "".join(m.content["text"] for each in messages for m in limit.take(each))
    end = limit.finish()
    if not end or not NOTE.match(end[0].content["text"]):
        return head, 0, None, "".join(m.content["text"] for m in end), end
    found = NOTE.match(end[0].content["text"])
    assert found is not None
    where = found[2].removeprefix("the whole text is in ")
    path = Path(where) if where != found[2] else None
    tail = end[1:]
    return (
        head,
        int(found[1].replace(",", "")),
        path,
        "".join(m.content["text"] for m in tail),
        tail,
    )


def utf8(text: str) -> int:
    """Length in bytes."""
    return len(text.encode("utf-8", "replace"))


@given(
    pieces=st.lists(
        st.tuples(st.text("aé€🐍\n", max_size=30), st.sampled_from(["stdout", "stderr"])),
        max_size=30,
    ),
    limit_bytes=st.integers(1, 200),
)
@settings(deadline=None, max_examples=100)
def test_head_tail_and_count_are_exact_in_bytes(
    pieces: list[tuple[str, str]], limit_bytes: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whatever the pieces: nothing above the limit, no broken character, every byte counted."""
    directory = tmp_path_factory.getbasetemp() / "limit"
    text = "".join(piece for piece, _ in pieces)
    messages = [stream(piece, name) for piece, name in pieces]
    head, cut, path, tail, _ = shown_by(OutputLimit(limit_bytes, directory), messages)
    assert utf8(head) + cut + utf8(tail) == utf8(text)
    assert utf8(head) <= limit_bytes // 2 or not cut
    assert utf8(head) + utf8(tail) <= limit_bytes
    assert text.startswith(head)
    assert text.endswith(tail)
    if cut:
        assert path is not None
        assert path.read_text("utf-8") == text
        path.unlink()
        # As much as fits is shown: only the rest of a character may be missing, at either side.
        assert utf8(head) + utf8(tail) > limit_bytes - 8
    else:
        assert head + tail == text
    assert not list(directory.glob("*")) if directory.exists() else True


def test_the_file_is_private_and_whole(tmp_path: Path) -> None:
    """0600 in a directory of 0700, with both streams as they came."""
    directory = tmp_path / "a" / "outputs"
    messages = [stream(f"line {n}\n", "stderr" if n % 7 == 0 else "stdout") for n in range(5000)]
    head, cut, path, tail, _ = shown_by(OutputLimit(1000, directory), messages)
    assert path is not None
    assert path.stat().st_mode & 0o777 == 0o600
    assert directory.stat().st_mode & 0o777 == 0o700
    whole = "".join(m.content["text"] for m in messages)
    assert path.read_text() == whole
    assert cut == len(whole) - 1000
    assert (head, tail) == (whole[:500], whole[-500:])


def test_the_tail_keeps_its_streams(tmp_path: Path) -> None:
    """Stderr stays stderr, and parents stay parents."""
    messages = [
        stream("x" * 1000),
        stream("err", "stderr"),
        stream("out"),
        stream("cell", "stdout", {"msg_id": "a"}),
    ]
    *_, tail = shown_by(OutputLimit(40, tmp_path), messages)
    assert [(m.content["name"], m.content["text"], m.parent_header) for m in tail] == [
        ("stdout", "x" * 10, None),
        ("stderr", "err", None),
        ("stdout", "out", None),
        ("stdout", "cell", {"msg_id": "a"}),
    ]


def test_a_text_at_the_limit_is_shown_whole_and_kept_nowhere(tmp_path: Path) -> None:
    """Neither note nor file, although head and tail were kept apart meanwhile."""
    text = "x" * 1000
    head, cut, path, tail, _ = shown_by(
        OutputLimit(1000, tmp_path), [stream(text[:400]), stream(text[400:])]
    )
    assert (head + tail, cut, path) == (text, 0, None)
    assert list(tmp_path.iterdir()) == []


def test_without_a_limit_everything_is_shown_at_once(tmp_path: Path) -> None:
    """0 means no limit, no file, no memory."""
    limit = OutputLimit(0, tmp_path)
    messages = [stream("x" * 100_000) for _ in range(10)]
    assert [m for each in messages for m in limit.take(each)] == messages
    assert limit.finish() == []
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_written_costs_only_the_file(tmp_path: Path) -> None:
    """Head and tail are shown all the same, and the note does not lie about a file."""
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    text = "é" * 1000 + "\ud83d"
    limit = OutputLimit(100, blocked / "outputs")
    head = "".join(m.content["text"] for m in limit.take(stream(text)))
    note, *tail = limit.finish()
    assert head == "é" * 25
    assert "the whole text could not be kept" in note.content["text"]
    assert "".join(m.content["text"] for m in tail).startswith("é" * 24)


def test_a_full_disk_leaves_no_half_of_a_file_and_no_lie(tmp_path: Path) -> None:
    """When writing fails half-way, the part is removed and the note says so."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    limit = OutputLimit(100, tmp_path)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        messages = [stream("x" * 1000) for _ in range(200)]
        head, cut, path, tail, _ = shown_by(limit, messages)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path is None
    assert list(tmp_path.iterdir()) == []
    assert (len(head), cut, len(tail)) == (50, 199_900, 50)


def test_a_disk_that_is_full_at_the_very_end_is_noticed_too(tmp_path: Path) -> None:
    """The last buffer is written when the file is closed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    limit = OutputLimit(100, tmp_path)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50, hard))
    try:
        _, cut, path, _, _ = shown_by(limit, [stream("x" * 1000)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (cut, path) == (900, None)
    assert list(tmp_path.iterdir()) == []


def test_old_files_are_removed_when_a_new_one_is_kept(tmp_path: Path) -> None:
    """Those of a week ago, and nothing else."""
    old, young, foreign = (tmp_path / n for n in ("output-1.txt", "output-2.txt", "notes.txt"))
    for path in (old, young, foreign):
        path.write_text("x")
    long_ago = time.time() - OLD_SECONDS - 60
    os.utime(old, (long_ago, long_ago))
    os.utime(foreign, (long_ago, long_ago))
    shown_by(OutputLimit(10, tmp_path), [stream("x" * 100)])
    assert not old.exists()
    assert young.exists()
    assert foreign.exists()


@pytest.mark.parametrize(
    ("pieces", "names"),
    [(40_000, ("stdout",)), (30_000, ("stdout", "stderr"))],
    ids=["one stream", "two by turns"],
)
def test_a_cell_that_prints_for_ever_takes_little_memory(
    pieces: int, names: tuple[str, ...], tmp_path: Path
) -> None:
    """Single characters, many times the limit: memory stays near the limit."""
    limit = OutputLimit(20_000, tmp_path)
    tracemalloc.start()
    try:
        for number in range(pieces):
            limit.take(stream("x", names[number % len(names)]))
            if number % 10 == 0:
                limit.take(stream("", names[number % len(names)]))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    note, *tail = limit.finish()
    found = NOTE.match(note.content["text"])
    assert found is not None
    shown = sum(len(m.content["text"]) for m in tail) + 10_000
    assert shown + int(found[1].replace(",", "")) == pieces
    assert len(tail) <= TAIL_PIECES
    assert peak < 2_000_000


async def test_the_next_cell_has_its_whole_limit(tmp_path: Path) -> None:
    """Through the throttle: note and tail come at the end of the cell, after all that was shown."""
    front_end = FrontEnd()
    throttled = throttle(front_end, tmp_path, limit_bytes=1000)
    for _ in range(2):
        front_end.got.clear()
        throttled(stream("a" * 600))
        throttled(other("display_data", number=1))
        throttled(stream("b" * 900))
        await throttled.finish()
        assert front_end.text() == "a" * 500 + "b" * 500
        assert [m.msg_type for m in front_end.messages] == [
            *("stream", "display_data", "stream", "stream"),
        ]
        assert "500 bytes of output are not shown here" in front_end.text("stderr")
    assert len(list(tmp_path.iterdir())) == 2
    throttled.set_limit(OutputLimit(0, tmp_path))
    front_end.got.clear()
    throttled(stream("x" * 5000))
    await throttled.finish()
    assert front_end.text() == "x" * 5000


@pytest.mark.parametrize("wait", [False, True])
async def test_clearing_the_output_starts_the_limit_anew(wait: bool, tmp_path: Path) -> None:
    """A progress display that clears itself may go on for ever, and keeps no file."""
    front_end = FrontEnd()
    throttled = throttle(front_end, tmp_path, limit_bytes=1000)
    for number in range(100):
        throttled(stream(f"{number:03d}" + "x" * 297))
        throttled(other("clear_output", wait=wait))
    throttled(stream("y" * 5000))
    throttled(other("clear_output", wait=wait))
    throttled(stream("z" * 400))
    await throttled.finish()
    text = front_end.text()
    assert all(f"{number:03d}x" in text for number in range(100))
    assert text.endswith("y" * 500 + "z" * 400)
    assert front_end.text("stderr") == ""
    assert list(tmp_path.iterdir()) == []


async def test_a_clear_that_waits_for_output_that_never_comes_clears_nothing(
    tmp_path: Path,
) -> None:
    """The tail of the text is shown, since the front end still shows its head."""
    front_end = FrontEnd()
    throttled = throttle(front_end, tmp_path, limit_bytes=100)
    throttled(stream("x" * 500))
    throttled(other("clear_output", wait=True))
    await throttled.finish()
    assert front_end.text() == "x" * 100
    assert "400 bytes" in front_end.text("stderr")


async def test_a_cell_that_never_came_to_its_end_leaves_no_file(tmp_path: Path) -> None:
    """The next cell's limit closes and removes what the last one had open."""
    throttled = throttle(FrontEnd(), tmp_path, limit_bytes=100)
    throttled(stream("x" * 500))
    throttled.set_limit(OutputLimit(100, tmp_path))
    assert list(tmp_path.iterdir()) == []
    await throttled.finish()


def test_a_text_beyond_all_measure_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cell that prints for ever does not fill the disk, and the note does not claim a file."""
    monkeypatch.setattr("ivy_kernel.session.output_limit.KEPT_LIMIT_BYTES", 10_000)
    limit = OutputLimit(100, tmp_path)
    for _ in range(200):
        limit.take(Message("stream", {"name": "stdout", "text": "x" * 99 + "\n"}))
    assert not list(tmp_path.iterdir())
    note = limit.finish()[0].content["text"]
    assert "could not be kept" in note
