"""Makes calls that carry everything the agent has not acknowledged: submissions, and interrupts."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable

from ivy_kernel.errors import AnswerError
from ivy_kernel.models import Json
from ivy_kernel.routes.agent.exchange import Exchange
from ivy_kernel.routes.agent.failures import Backoff, is_final, provably_not_run
from ivy_kernel.routes.agent.frames import Answer, NoAgentError
from ivy_kernel.routes.agent.health import StrangerError, TakenOverError
from ivy_kernel.routes.agent.outbox import Outbox, Submission
from ivy_kernel.routes.agent.start import Contact


class Carrier:
    """Calls of one client to one agent.

    Parameters
    ----------
    exchange
        Makes the calls.
    contact
        The agent.
    on_failed_call
        Called after each failed call: what it carried may be known not to have arrived.
    """

    def __init__(
        self, exchange: Exchange, contact: Contact, *, on_failed_call: Callable[[], None]
    ) -> None:
        self.contact = contact
        self.counters = exchange.counters
        self.outbox = Outbox()
        self._exchange = exchange
        self._on_failed_call = on_failed_call
        self._wishes: dict[str, Json] = {}
        self._is_closed = False

    @property
    def has_load(self) -> bool:
        """Whether anything waits to reach the agent."""
        return len(self.outbox) > 0 or bool(self._wishes)

    def close(self) -> None:
        """Ask no more."""
        self._is_closed = True

    async def call(
        self, request: Json, carried: list[Submission], wait_seconds: float = 0.0
    ) -> Answer:
        """One call, with submissions taken from the outbox in it."""
        wish: Json = request.get("interrupt") or next(iter(self._wishes.values()), {})
        request = {
            **request,
            **({"interrupt": wish} if wish else {}),
            "nonce": self.contact.nonce,
            "session": self.contact.session,
            "submit": [[submission.number, submission.body] for submission in carried],
        }
        not_applied = False
        try:
            answer = await self._exchange.ask(request, wait_seconds=wait_seconds)
            error = answer.header.get("error")
            not_applied = error in ("taken over", "nonce", "version")
            _raise_refusal(answer)
        except Exception as failure:
            not_applied = not_applied or provably_not_run(failure)
            raise
        finally:
            self.outbox.put_down(carried, provably_not_applied=not_applied)
        self.outbox.acknowledge(answer.header.get("acknowledged", 0))
        if wish and self._wishes.get(wish["target"]) is wish:
            del self._wishes[wish["target"]]
        return answer

    async def interrupt(
        self, target: str, *, deadline_seconds: float, is_moot: Callable[[], bool]
    ) -> str:
        """Have the agent interrupt a request; its answer, empty when none came in time.

        The wish is kept then, and every later call carries it until one gets through.
        """
        wish = {"id": secrets.token_hex(8), "target": target}
        self._wishes[target] = wish
        answer = await self.ask(
            {"interrupt": wish}, deadline_seconds=deadline_seconds, is_moot=is_moot
        )
        return str(answer.header.get("interrupt")) if answer is not None else ""

    async def ask(
        self,
        request: Json,
        *,
        deadline_seconds: float,
        is_moot: Callable[[], bool] = lambda: False,
    ) -> Answer | None:
        """Ask something beside the polls; ``None`` when no answer could be had in time.

        It is not asked again once ``is_moot`` says that nobody needs it any more.
        """
        loop = asyncio.get_running_loop()
        backoff = Backoff()
        deadline = loop.time() + deadline_seconds
        while not (self._is_closed or is_moot()):
            try:
                rest = max(0.0, deadline - loop.time())
                return await asyncio.wait_for(self.call(request, self.outbox.take()), rest)
            except asyncio.TimeoutError:
                return None
            except (StrangerError, TakenOverError):
                return None
            except Exception as error:
                pause_seconds = backoff.failed(error)
                times = backoff.same_failures
                self._on_failed_call()
                is_gone = isinstance(error, NoAgentError) and times > 1
                if is_gone or is_final(error, times):
                    return None
                if is_moot() or loop.time() + pause_seconds > deadline:
                    return None
                await asyncio.sleep(pause_seconds)
        return None


def _raise_refusal(answer: Answer) -> None:
    error = answer.header.get("error")
    if error == "taken over":
        raise TakenOverError("Another notebook or a restarted kernel has taken over this session.")
    if error in ("nonce", "version"):
        raise StrangerError
    if error is not None or "fragment" in answer.header:
        raise AnswerError(f"The agent could not read a request: {answer.header.get('why')}")
