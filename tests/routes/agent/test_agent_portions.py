"""How large answers may be: what is learned from those that arrive, and those that do not."""

from __future__ import annotations

from ivy_kernel.routes.agent.pacing import (
    FIRST_LIMIT_CHARS,
    LARGEST_LIMIT_CHARS,
    SMALLEST_LIMIT_CHARS,
    Portions,
)

QUICKLY = 0.1


def fill(portions: Portions, times: int = 10) -> None:
    """Full answers arrive, quickly."""
    for _ in range(times):
        portions.arrived(portions.limit_chars, QUICKLY)


def test_full_answers_make_the_next_larger() -> None:
    """Up to a bound; small ones say nothing."""
    portions = Portions()
    portions.arrived(1000, QUICKLY)
    assert portions.limit_chars == FIRST_LIMIT_CHARS
    fill(portions, 1)
    assert portions.limit_chars > FIRST_LIMIT_CHARS
    fill(portions)
    assert portions.limit_chars == LARGEST_LIMIT_CHARS
    assert portions.may_be_plain


def test_on_a_slow_line_answers_stay_small() -> None:
    """Full ones that take a while do not grow, and those that take long become smaller again."""
    portions = Portions()
    portions.arrived(FIRST_LIMIT_CHARS, 2.5)
    assert portions.limit_chars == FIRST_LIMIT_CHARS
    fill(portions)
    for _ in range(10):
        portions.arrived(portions.limit_chars, 10.0)
    assert portions.limit_chars == FIRST_LIMIT_CHARS


def test_what_a_tool_cuts_is_asked_for_in_smaller_answers_for_good() -> None:
    """A cut answer tells how much the tool prints; that does not grow again."""
    portions = Portions()
    portions.cut(30_000)
    assert portions.limit_chars == 27_000
    assert portions.may_be_plain
    fill(portions, 100)
    assert portions.limit_chars == 27_000
    for _ in range(30):
        portions.cut(100)
    assert portions.limit_chars == SMALLEST_LIMIT_CHARS


def test_what_has_arrived_whole_is_not_doubted_at_once() -> None:
    """A cut after few characters does not make the limit smaller than what the tool has printed."""
    portions = Portions()
    portions.arrived(200_000, QUICKLY)
    portions.cut(30)
    assert portions.limit_chars == 200_000
    portions.cut(30)
    assert portions.limit_chars < 200_000


def test_changed_plain_text_is_asked_for_packed() -> None:
    """However small the answer was that showed it; changed packed text was cut in its middle."""
    portions = Portions()
    portions.changed(20_000, was_plain=True)
    assert not portions.may_be_plain
    assert portions.limit_chars == FIRST_LIMIT_CHARS
    portions.changed(30_000, was_plain=False)
    assert portions.limit_chars == 27_000


def test_failures_of_large_answers_end_the_growth() -> None:
    """What always fails with large answers settles below; a passing failure is forgotten."""
    portions = Portions()
    portions.failed()
    assert portions.limit_chars == FIRST_LIMIT_CHARS
    bearable_chars = 3 << 20
    failures = 0
    for _ in range(100):
        if portions.limit_chars > bearable_chars:
            portions.failed()
            failures += 1
        else:
            fill(portions, 1)
    assert failures < 12
    assert portions.limit_chars >= FIRST_LIMIT_CHARS
    fill(portions, 200)
    assert portions.limit_chars == LARGEST_LIMIT_CHARS
