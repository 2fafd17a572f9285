"""How large answers may be: what is learned from those that arrive, and those that do not."""

from __future__ import annotations

from ivy_kernel.routes.agent.pacing import (
    FIRST_LIMIT_CHARS,
    LARGEST_LIMIT_CHARS,
    SMALLEST_LIMIT_CHARS,
    ResponseSizeLimit,
)

QUICKLY = 0.1


def fill(size_limit: ResponseSizeLimit, times: int = 10) -> None:
    """Full answers arrive, quickly."""
    for _ in range(times):
        size_limit.accepted(size_limit.limit_chars, QUICKLY)


def test_full_answers_make_the_next_larger() -> None:
    """Up to a bound; small ones say nothing."""
    size_limit = ResponseSizeLimit()
    size_limit.accepted(1000, QUICKLY)
    assert size_limit.limit_chars == FIRST_LIMIT_CHARS
    fill(size_limit, 1)
    assert size_limit.limit_chars > FIRST_LIMIT_CHARS
    fill(size_limit)
    assert size_limit.limit_chars == LARGEST_LIMIT_CHARS
    assert size_limit.may_be_plain


def test_on_a_slow_line_answers_stay_small() -> None:
    """Full ones that take a while do not grow, and those that take long become smaller again."""
    size_limit = ResponseSizeLimit()
    size_limit.accepted(FIRST_LIMIT_CHARS, 2.5)
    assert size_limit.limit_chars == FIRST_LIMIT_CHARS
    fill(size_limit)
    for _ in range(10):
        size_limit.accepted(size_limit.limit_chars, 10.0)
    assert size_limit.limit_chars == FIRST_LIMIT_CHARS


def test_what_a_tool_cuts_is_asked_for_in_smaller_answers_for_good() -> None:
    """A cut answer tells how much the tool prints; that does not grow again."""
    size_limit = ResponseSizeLimit()
    size_limit.truncated(30_000)
    assert size_limit.limit_chars == 27_000
    assert size_limit.may_be_plain
    fill(size_limit, 100)
    assert size_limit.limit_chars == 27_000
    for _ in range(30):
        size_limit.truncated(100)
    assert size_limit.limit_chars == SMALLEST_LIMIT_CHARS


def test_what_has_arrived_whole_is_not_doubted_at_once() -> None:
    """A cut after few characters does not make the limit smaller than what the tool has printed."""
    size_limit = ResponseSizeLimit()
    size_limit.accepted(200_000, QUICKLY)
    size_limit.truncated(30)
    assert size_limit.limit_chars == 200_000
    size_limit.truncated(30)
    assert size_limit.limit_chars < 200_000


def test_changed_plain_text_is_asked_for_packed() -> None:
    """However small the answer was that showed it; changed packed text was cut in its middle."""
    size_limit = ResponseSizeLimit()
    size_limit.corrupted(20_000, was_plain=True)
    assert not size_limit.may_be_plain
    assert size_limit.limit_chars == FIRST_LIMIT_CHARS
    size_limit.corrupted(30_000, was_plain=False)
    assert size_limit.limit_chars == 27_000


def test_failures_of_large_answers_end_the_growth() -> None:
    """What always fails with large answers settles below; a passing failure is forgotten."""
    size_limit = ResponseSizeLimit()
    size_limit.failed()
    assert size_limit.limit_chars == FIRST_LIMIT_CHARS
    bearable_chars = 3 << 20
    failures = 0
    for _ in range(100):
        if size_limit.limit_chars > bearable_chars:
            size_limit.failed()
            failures += 1
        else:
            fill(size_limit, 1)
    assert failures < 12
    assert size_limit.limit_chars >= FIRST_LIMIT_CHARS
    fill(size_limit, 200)
    assert size_limit.limit_chars == LARGEST_LIMIT_CHARS
