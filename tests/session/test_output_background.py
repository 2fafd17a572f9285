"""Background output, superseded updates, and what an interrupt drops."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from recorded import FrontEnd, other, stream, throttle
from waiting import eventually

from ivy_kernel.models import Message
from ivy_kernel.session import output
from ivy_kernel.session.output import OutputThrottle, Rate
from ivy_kernel.session.output_limit import OutputLimit

pytestmark = pytest.mark.asyncio

PARENT = {"msg_id": "cell-1"}


async def test_background_text_above_the_limit_is_noted_at_once_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Head, a note that more follows, and after a pause the count, the file and the tail."""
    monkeypatch.setattr(output, "BACKGROUND_PAUSE_SECONDS", 0.2)
    front_end = FrontEnd()
    throttled = throttle(front_end, tmp_path, limit_bytes=1000)
    lines = [f"{number:08d}\n" for number in range(3000)]
    for line in lines:
        throttled.background(stream(line, parent=PARENT))
    await eventually(lambda: "more background output follows" in front_end.text("stderr"), "note")
    await eventually(lambda: "not shown here; the whole" in front_end.text("stderr"), "count")
    await eventually(lambda: front_end.text().endswith(lines[-1]), "tail")
    assert front_end.text().startswith(lines[0])
    assert 900 < len(front_end.text()) <= 1000
    assert {m.parent_header["msg_id"] for m in front_end.messages if m.parent_header} == {"cell-1"}
    assert all(message.parent_header for message in front_end.messages)
    (file,) = tmp_path.iterdir()
    assert file.read_text() == "".join(lines)


async def test_each_click_of_a_button_has_the_whole_limit(tmp_path: Path) -> None:
    """The texts of different requests do not add up, nor does the cell's that runs meanwhile."""
    front_end = FrontEnd()
    throttled = throttle(front_end, tmp_path, limit_bytes=1000)
    for number in range(40):
        throttled.background(stream("x" * 400, parent={"msg_id": f"click-{number}"}))
    throttled(stream("y" * 400))
    await throttled.finish()
    assert front_end.text().count("x") == 40 * 400
    assert front_end.text().count("y") == 400
    assert front_end.text("stderr") == ""


async def test_the_end_of_background_text_is_shown_when_the_kernel_ends(tmp_path: Path) -> None:
    """What is held back does not vanish with the process."""
    front_end = FrontEnd()
    throttled = throttle(front_end, tmp_path, limit_bytes=100)
    throttled.background(stream("a" * 500 + "z", parent=PARENT))
    throttled.end_background()
    await throttled.flush()
    assert front_end.text().endswith("z")
    assert "401 bytes of output are not shown here" in front_end.text("stderr")


def update(number: int) -> Message:
    """An update of a display."""
    return other("update_display_data", transient={"display_id": "d"}, data={"n": str(number)})


async def test_superseded_updates_are_left_out_while_many_wait(tmp_path: Path) -> None:
    """What a browser would show in the end is the same: last display, and all keys of a state."""
    front_end = FrontEnd()
    throttled = throttle(front_end, tmp_path)
    for number in range(1000):
        throttled(update(number))
        state = {f"key{number % 3}": number}
        data = {"method": "update", "state": state, "buffer_paths": []}
        throttled(other("comm_msg", comm_id="c", data=data))
    throttled(other("comm_open", comm_id="later"))
    await throttled.finish()
    displays = [m for m in front_end.messages if m.msg_type == "update_display_data"]
    states = [m for m in front_end.messages if m.msg_type == "comm_msg"]
    assert len(displays) < 100
    assert len(states) < 100
    assert displays[-1].content["data"] == {"n": "999"}
    together: dict[str, int] = {}
    for message in states:
        together.update(message.content["data"]["state"])
    assert together == {"key0": 999, "key1": 997, "key2": 998}
    assert front_end.messages[-1].msg_type == "comm_open"


async def test_a_state_is_not_moved_before_what_it_may_depend_on(tmp_path: Path) -> None:
    """An update that names a new widget comes after that widget was opened."""
    front_end = FrontEnd()
    throttled = throttle(front_end, tmp_path)
    for number in range(100):
        throttled(other("display_data", number=number))
    for step in range(3):
        data = {"method": "update", "state": {"child": step}, "buffer_paths": []}
        throttled(other("comm_open", comm_id=f"w{step}"))
        throttled(other("comm_msg", comm_id="box", data=data))
    await throttled.finish()
    kinds = [m.msg_type for m in front_end.messages[100:]]
    assert kinds == ["comm_open", "comm_msg"] * 3


async def test_an_interrupt_drops_what_waits_and_counts_it(tmp_path: Path) -> None:
    """The last outputs are shown at once, whatever the rate; the note stands where the gap is."""
    front_end = FrontEnd()
    rate = Rate(window_seconds=600, window_bytes=1 << 40, window_messages=300)
    throttled = throttle(front_end, tmp_path, rate=rate)
    for number in range(50_000):
        throttled(other("display_data", number=number))
    assert throttled.is_behind
    await eventually(lambda: len(front_end.got) == 300, "a full window")
    throttled.interrupted()
    assert not throttled.is_behind
    throttled(other("display_data", number=50_000))
    await throttled.finish()
    shown = [m.content["number"] for m in front_end.messages if m.msg_type == "display_data"]
    assert shown[-1] == 50_000
    assert len(shown) <= 300 + output.AFTER_INTERRUPT_MESSAGES
    notes = front_end.text("stderr").split("interrupted: ")[1:]
    assert sum(int(note.split()[0].replace(",", "")) for note in notes) == 50_001 - len(shown)


async def test_a_cell_ends_though_background_output_never_does(tmp_path: Path) -> None:
    """Its own output is shown, and then it has ended; what comes after that is shown later."""
    front_end = FrontEnd()

    def show(message: Message) -> None:
        front_end(message)
        if going_on:  # however much is shown, as much comes
            throttled.background(other("display_data"))

    going_on = True
    rate = Rate(window_seconds=0.05, window_messages=5)
    throttled = OutputThrottle(show, rate=rate, limit=OutputLimit(0, tmp_path))
    for _ in range(20):
        throttled.background(other("display_data"))
    throttled(stream("the cell's own\n"))
    await asyncio.wait_for(throttled.finish(), 20)
    assert front_end.text() == "the cell's own\n"
    shown = len(front_end.messages)
    await eventually(lambda: len(front_end.messages) > shown, "the rest is shown")
    going_on = False
    await throttled.flush()
