"""How large answers may be: what is learned from those that arrive, and those that do not."""

from __future__ import annotations

from ivy_kernel.routes.agent.portions import (
    FIRST_LIMIT_CHARS,
    LARGEST_LIMIT_CHARS,
    SMALLEST_LIMIT_CHARS,
    Portions,
)


def fill(portions: Portions, times: int = 10) -> None:
    """Full answers arrive."""
    for _ in range(times):
        portions.arrived(portions.limit_chars)


def test_full_answers_make_the_next_larger() -> None:
    """Up to a bound; small ones say nothing."""
    portions = Portions()
    portions.arrived(1000)
    assert portions.limit_chars == FIRST_LIMIT_CHARS
    fill(portions, 1)
    assert portions.limit_chars > FIRST_LIMIT_CHARS
    fill(portions)
    assert portions.limit_chars == LARGEST_LIMIT_CHARS
    assert portions.may_be_plain


def test_what_a_tool_cuts_is_asked_for_in_smaller_answers_for_good() -> None:
    """A cut answer tells how much the tool prints; that does not grow again."""
    portions = Portions()
    portions.truncated(30_000)
    assert portions.limit_chars == 27_000
    assert not portions.may_be_plain
    fill(portions)
    assert portions.limit_chars == 27_000
    for _ in range(20):
        portions.truncated(100)
    assert portions.limit_chars == SMALLEST_LIMIT_CHARS


def test_failures_of_large_answers_end_the_growth() -> None:
    """What always fails with large answers settles below; other failures change nothing."""
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
    assert failures < 5
    assert FIRST_LIMIT_CHARS <= portions.limit_chars <= bearable_chars
