"""Lets a cell of IPython wait for work in the sandbox: outputs, questions and Ctrl-C included."""

from __future__ import annotations

import asyncio
import getpass
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from ivy_kernel.blocking import BlockingCall, LoopThread
from ivy_kernel.magics.output import NativeOutput
from ivy_kernel.models import Message

Result = TypeVar("Result")

CELL_MAGIC = "get_ipython().run_cell_magic('ivy'"
LINE_MAGIC = "get_ipython().run_line_magic('ivy'"


@dataclass(frozen=True, slots=True)
class Question:
    """Something that the user is asked.

    Parameters
    ----------
    prompt
        What is shown.
    is_secret
        Whether the answer must not be seen.
    answer
        Takes what was typed, or what kept the user from typing.
    """

    prompt: str
    is_secret: bool
    answer: Callable[[str | BaseException], None]


Post = Callable[[Message | Question], None]
"""Hands something over to the waiting cell; may be called from any thread."""


async def ask(prompt: str, post: Post, *, is_secret: bool = False) -> str:
    """Ask the user, on behalf of work on the loop thread.

    Raises
    ------
    CancelledError
        The user interrupted the question. (A task that raised `KeyboardInterrupt` would end the
        event loop.)
    Exception
        Nobody can be asked here.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[str | BaseException] = loop.create_future()

    def settle(value: str | BaseException) -> None:
        if not future.done():
            future.set_result(value)

    def answer(value: str | BaseException) -> None:
        loop.call_soon_threadsafe(settle, value)

    post(Question(prompt, is_secret, answer))
    value = await future
    if isinstance(value, KeyboardInterrupt):
        raise asyncio.CancelledError
    if isinstance(value, BaseException):
        raise value
    return value


def wait_in_cell(
    shell: Any,
    work: Callable[[Post], Coroutine[Any, Any, Result]],
    *,
    stop: Callable[[], Coroutine[Any, Any, None]],
    thread: LoopThread,
    is_remote: bool,
) -> tuple[Result, NativeOutput]:
    """Run work on the loop thread, and show in this cell what it posts.

    Parameters
    ----------
    shell
        IPython's shell.
    work
        The work.
    stop
        Asks the work to stop, when the user interrupts.
    thread
        Where it runs.
    is_remote
        Whether what it shows comes from the sandbox.
    """
    output = NativeOutput(shell, is_alone=_is_alone(shell), is_remote=is_remote)

    def show(item: Message | Question) -> None:
        if isinstance(item, Question):
            output.end()
            with call.ctrl_c_raises():
                try:
                    reply = getpass.getpass if item.is_secret else input
                    item.answer(reply(item.prompt))
                except KeyboardInterrupt as exc:
                    item.answer(exc)
                    call.interrupt()
                except Exception as exc:  # nobody can be asked here
                    item.answer(exc)
        else:
            output.show(item)

    call: BlockingCall[Message | Question, Result] = BlockingCall(
        work, show=show, interrupt=stop, thread=thread
    )
    try:
        return call.run(), output
    finally:
        output.end()


def _is_alone(shell: Any) -> bool:
    """Whether the magic is all that the present cell holds."""
    inputs = shell.user_ns.get("In") or [""]
    code = str(inputs[-1]).strip()
    return code.startswith(CELL_MAGIC) or (code.startswith(LINE_MAGIC) and "\n" not in code)
