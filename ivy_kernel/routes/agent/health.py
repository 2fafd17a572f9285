"""What failed calls in a row mean: wait and try again, say that nobody answers, or give up."""

from __future__ import annotations

from collections.abc import Callable

from ivy_kernel.errors import AnswerError, IvyError, SandboxError, SandboxLostError
from ivy_kernel.routes.agent.failures import Backoff, is_final
from ivy_kernel.routes.agent.frames import NoAgentError
from ivy_kernel.routes.agent.inbox import InboxFullError

UNREACHABLE_AFTER_SECONDS = 5.0
ABSENCES_BELIEVED = 3
UNREADABLE_BELIEVED = 6
UNREADABLE_SECONDS = 30.0
REFUSED_SECONDS = 20.0
"""How long refusals must last while something runs: a key may be changed just then, or a replica
may be wrong, and the cell works on all the same."""


class StrangerError(Exception):
    """Another agent answered than the one we know; nothing was handed over."""


class TakenOverError(SandboxError):
    """A newer client speaks to the agent now."""


class Health:
    """Whether the agent can be reached, as told by how its polls end.

    Parameters
    ----------
    give_up_seconds
        How long calls may fail before the conversation is over.
    is_at_work
        Whether something of ours may be running in the sandbox.
    on_reachable
        Called with an error when calls have failed for some seconds, and with ``None`` when one
        gets through again.
    """

    def __init__(
        self,
        *,
        give_up_seconds: float,
        is_at_work: Callable[[], bool],
        on_reachable: Callable[[Exception | None], None],
    ) -> None:
        self.not_before = 0.0
        self._give_up_seconds = give_up_seconds
        self._is_at_work = is_at_work
        self._on_reachable = on_reachable
        self._backoff = Backoff()
        self._failing_since: float | None = None
        self._is_unreachable = False

    def succeeded(self) -> None:
        """A call has been answered."""
        self._backoff.succeeded()
        self.not_before = 0.0
        self._failing_since = None
        if self._is_unreachable:
            self._is_unreachable = False
            self._on_reachable(None)

    def failed(self, error: Exception, now: float) -> Exception | None:
        """A call has failed; why the conversation is over, if this means that."""
        self.not_before = now + self._backoff.failed(error)
        if self._failing_since is None:
            self._failing_since = now
        failed_seconds = now - self._failing_since
        verdict = self._verdict(error, failed_seconds)
        is_news = verdict is None and not self._is_unreachable
        if is_news and failed_seconds > UNREACHABLE_AFTER_SECONDS:
            self._is_unreachable = True
            self._on_reachable(error)
        return verdict

    def _verdict(self, error: Exception, failed_seconds: float) -> Exception | None:
        times = self._backoff.same_failures
        if isinstance(error, TakenOverError | InboxFullError):
            return error
        if is_final(error, times) and (failed_seconds > REFUSED_SECONDS or not self._is_at_work()):
            return error
        if isinstance(error, StrangerError):
            return SandboxLostError("The variables are gone, because the sandbox was started anew.")
        if isinstance(error, NoAgentError) and times >= ABSENCES_BELIEVED:
            return SandboxLostError(
                "The variables are gone, because the sandbox's agent has ended "
                f"(the sandbox was recycled, or its memory ran out: {error})."
            )
        if isinstance(error, AnswerError) and times >= UNREADABLE_BELIEVED:
            return error if failed_seconds > UNREADABLE_SECONDS else None
        if failed_seconds > self._give_up_seconds:
            return error if isinstance(error, IvyError) else AnswerError(str(error))
        return None
