"""Coalescing changes no text and no order, and delays nothing that need not wait."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jupyter_client.session import json_packer
from recorded import FrontEnd, flattened, other, stream, throttle

from ivy_kernel.models import Message
from ivy_kernel.session.output import COALESCE_BYTES, COALESCE_SECONDS, Rate

TEXTS = st.text(max_size=20)
PARENTS = st.sampled_from([None, {"msg_id": "a"}, {"msg_id": "b"}])
STREAMS = st.builds(stream, TEXTS, st.sampled_from(["stdout", "stderr"]), PARENTS)
OTHERS = st.builds(
    other,
    st.sampled_from(["display_data", "update_display_data", "execute_result", "comm_msg", "error"]),
    number=st.integers(0, 99),
) | st.builds(other, st.just("clear_output"), wait=st.booleans())
STEPS = st.lists(STREAMS | OTHERS | st.just("pause"), max_size=40)


@given(STEPS, st.sampled_from([0, 10_000_000]), st.booleans())
@settings(deadline=None, max_examples=60)
def test_text_and_order_are_kept_exactly(
    steps: list[Message | str], limit_bytes: int, has_rate: bool
) -> None:
    """Any sequence of messages is seen by a reader as if nothing stood in between."""
    front_end = FrontEnd()
    rate = Rate(window_seconds=0.005, window_bytes=3000, window_messages=3) if has_rate else None

    async def run() -> None:
        throttled = throttle(front_end, Path("/nonexistent"), rate=rate, limit_bytes=limit_bytes)
        for step in steps:
            if isinstance(step, str):
                await asyncio.sleep(0)
            else:
                throttled(step)
        await throttled.finish()

    asyncio.run(run())
    given_messages = [step for step in steps if not isinstance(step, str)]
    assert flattened(front_end.messages) == flattened(given_messages)


async def test_halves_of_a_character_are_joined_and_lone_ones_replaced(tmp_path: Path) -> None:
    """UTF-8 cannot carry them, and the kernel must not end for a text that it cannot send."""
    front_end = FrontEnd()
    throttled = throttle(front_end, tmp_path)
    for text in ("snake: \ud83d", "\udc0d", " half: \ud83d", " end \udc0d"):
        throttled(stream(text))
    await throttled.finish()
    assert front_end.text() == "snake: 🐍 half: \ufffd end \ufffd"
    assert all(json_packer(m.content) for m in front_end.messages)


async def test_a_display_that_utf8_cannot_carry_is_shown_with_replacements(
    tmp_path: Path,
) -> None:
    """It and all that follows arrives, through the packer that the kernel sends with."""
    front_end = FrontEnd()
    throttled = throttle(front_end, tmp_path)
    packed: list[bytes] = []

    def send(message: Message) -> None:
        packed.append(json_packer({"content": message.content, "metadata": message.metadata}))
        front_end(message)

    throttled._send = send
    bad = {"data": {"text/plain": "\ud83d", "x": ["a\udc0d", 5, None, {"k\ud83d": True}]}}
    throttled(Message("display_data", bad, metadata={"m": "\ud83d"}))
    throttled(other("display_data", number=2))
    await throttled.finish()
    assert front_end.messages[0].content == {
        "data": {"text/plain": "\ufffd", "x": ["a\ufffd", 5, None, {"k\ufffd": True}]}
    }
    assert front_end.messages[0].metadata == {"m": "\ufffd"}
    assert front_end.messages[1].content == {"number": 2}
    assert len(packed) == 2


async def test_the_first_message_goes_at_once(tmp_path: Path) -> None:
    """After a pause, output does not wait to be gathered."""
    front_end = FrontEnd()
    throttled = throttle(front_end, tmp_path)
    for _ in range(3):
        throttled(stream("x"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        count = len(front_end.got)
        assert front_end.text() == "x" * count
        await asyncio.sleep(2 * COALESCE_SECONDS)  # the pause itself is what is tested
    assert len(front_end.got) == 3
    await throttled.finish()


async def test_what_follows_closely_is_gathered(tmp_path: Path) -> None:
    """Ten thousand lines become a few messages."""
    front_end = FrontEnd()
    throttled = throttle(front_end, tmp_path)
    lines = [f"line {number}\n" for number in range(10_000)]
    for number, line in enumerate(lines):
        throttled(stream(line))
        if number % 100 == 0:
            await asyncio.sleep(0)
    await throttled.finish()
    assert front_end.text() == "".join(lines)
    assert len(front_end.got) < 100


async def test_output_that_follows_is_not_held_back_for_long(tmp_path: Path) -> None:
    """Without any further message, and without the cell's end, it appears."""
    front_end = FrontEnd()
    throttled = throttle(front_end, tmp_path)
    throttled(stream("first"))
    await asyncio.sleep(0)
    throttled(stream("second"))
    deadline = time.monotonic() + 2
    while front_end.text() != "firstsecond":
        assert time.monotonic() < deadline
        await asyncio.sleep(0.002)
    await throttled.finish()


async def test_output_that_comes_while_the_window_is_full_is_not_forgotten(tmp_path: Path) -> None:
    """It appears when there is room again, though no other message and no end follows."""
    front_end = FrontEnd()
    rate = Rate(window_seconds=0.15, window_bytes=10_000, window_messages=100)
    throttled = throttle(front_end, tmp_path, rate=rate)
    throttled(stream("a" * 8_000))
    await asyncio.sleep(0.02)
    throttled(stream("b" * 8_000))
    await asyncio.sleep(0.02)  # the sender waits for room now
    throttled(stream("c"))
    deadline = time.monotonic() + 3
    while not front_end.text().endswith("c"):
        assert time.monotonic() < deadline, "the last piece of text was never sent"
        await asyncio.sleep(0.005)
    await throttled.finish()


async def test_one_huge_text_is_sent_in_pieces(tmp_path: Path) -> None:
    """No message is larger than a front end takes in a window."""
    front_end = FrontEnd()
    throttled = throttle(front_end, tmp_path)
    text = "é🐍\n" * 500_000
    throttled(stream(text))
    await throttled.finish()
    assert front_end.text() == text
    assert max(len(m.content["text"]) for m in front_end.messages) <= COALESCE_BYTES


async def test_metadata_and_buffers_of_other_messages_are_untouched(tmp_path: Path) -> None:
    """What is no stream is the very object that came in."""
    front_end = FrontEnd()
    throttled = throttle(front_end, tmp_path)
    message = Message(
        "display_data", {"data": {}}, metadata={"a": 1}, buffers=(b"x",), header={"msg_id": "h"}
    )
    throttled(stream("before"))
    throttled(message)
    await throttled.finish()
    assert front_end.messages[1] is message


@pytest.mark.parametrize("rate", [None, Rate()])
async def test_finishing_with_nothing_to_send_is_done_at_once(
    rate: Rate | None, tmp_path: Path
) -> None:
    """A silent cell, and the same throttle again and again."""
    front_end = FrontEnd()
    throttled = throttle(front_end, tmp_path, rate=rate, limit_bytes=10)
    for _ in range(3):
        await asyncio.wait_for(throttled.finish(), 1)
    throttled(stream(""))
    await asyncio.wait_for(throttled.finish(), 1)
    assert front_end.got == []


async def test_a_throttle_serves_one_cell_after_the_other(tmp_path: Path) -> None:
    """Nothing of one cell is left for the next."""
    front_end = FrontEnd()
    throttled = throttle(front_end, tmp_path, limit_bytes=1000)
    for number in range(5):
        throttled(stream(f"cell {number}\n"))
        await throttled.finish()
        throttled.idle()
        assert front_end.text() == "".join(f"cell {each}\n" for each in range(number + 1))


async def test_a_cancelled_end_leaves_nothing_for_the_next_cell(tmp_path: Path) -> None:
    """What could not be sent is counted, displays go at once, and the next cell is clean."""
    front_end = FrontEnd()
    rate = Rate(window_seconds=60, window_bytes=3_000, window_messages=100)
    throttled = throttle(front_end, tmp_path, rate=rate)
    throttled(stream("a" * 1_500))
    throttled(other("display_data", number=1))
    throttled(stream("é" * 1_500))
    throttled(other("display_data", number=2))
    task = asyncio.ensure_future(throttled.finish())
    await asyncio.sleep(0.05)
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert front_end.text() == "a" * 1_500
    assert [m.content["number"] for m in front_end.messages if m.msg_type == "display_data"] == [
        *(1, 2),
    ]
    assert "interrupted: 3,000 bytes of output are not shown" in front_end.text("stderr")
    count = len(front_end.got)
    throttled.idle()
    throttled(stream("next"))
    await asyncio.wait_for(throttled.finish(), 2)
    assert [m.content["text"] for m in front_end.messages[count:]] == ["next"]
