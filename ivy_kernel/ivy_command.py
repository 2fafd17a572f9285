"""``%ivy``: the commands about the sandbox, the same in every kernel."""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable

from ivy_kernel.connect import LiveSettings
from ivy_kernel.describe import settings_table, status_lines
from ivy_kernel.errors import UsageError
from ivy_kernel.models import Message, Sink
from ivy_kernel.session import Session
from ivy_kernel.status import monotonic_seconds

HELP = """\
%ivy status       the sandbox: its state, and how cells reach it
%ivy create       start the chat's sandbox, if there is none, and wait until it is ready
%ivy terminate    shut the sandbox down, after asking; --yes does not ask
%ivy config       every setting, its value and where it came from; never a key
%ivy help         this text
"""

Confirm = Callable[[str], Awaitable[bool]]
"""Asks the user a yes/no question."""


class IvyCommand:
    """Runs ``%ivy`` lines.

    Parameters
    ----------
    live
        The settings.
    session
        Gives the session that the cells use; may raise `SettingError`.
    confirm
        Asks before something is lost.
    """

    def __init__(
        self, live: LiveSettings, session: Callable[[], Session], confirm: Confirm
    ) -> None:
        self._live = live
        self._session = session
        self._confirm = confirm

    async def run(self, line: str, sink: Sink) -> None:
        """Run one line, without its ``%ivy``; what it shows goes to ``sink``.

        Raises
        ------
        UsageError
            Unknown command or option: names it, and what there is.
        IvyError
            The command failed.
        """
        try:
            words = shlex.split(line)
        except ValueError as exc:
            raise UsageError(f"%ivy {line}: {exc}.") from None
        name, options = (words[0], words[1:]) if words else ("help", [])
        commands = {
            "status": self._status,
            "create": self._create,
            "config": self._config,
            "help": self._help,
            "--help": self._help,
            "-h": self._help,
            "loaded": self._loaded,
        }
        if name == "terminate":
            if options not in ([], ["--yes"]):
                raise UsageError(f"%ivy terminate takes --yes only, not {' '.join(options)!r}.")
            await self._terminate(sink, asked=bool(options))
            return
        if name not in commands:
            known = "status, create, terminate, config, help"
            raise UsageError(f"There is no %ivy {name}; there are {known}.")
        if options:
            raise UsageError(f"%ivy {name} takes no options, but got {' '.join(options)!r}.")
        await commands[name](sink)

    async def _help(self, sink: Sink) -> None:
        _print(sink, HELP)

    async def _loaded(self, sink: Sink) -> None:
        _print(sink, "The Ivy Sandbox kernel has %ivy built in; there is nothing to load.\n")

    async def _config(self, sink: Sink) -> None:
        _print(sink, settings_table(self._live.current()))

    async def _status(self, sink: Sink) -> None:
        session = self._session()
        status = await session.lifecycle.status()
        lines = status_lines(session.lifecycle, status, monotonic_seconds())
        lines += [f"{key}: {value}" for key, value in session.describe().items() if value != []]
        _print(sink, "\n".join(lines) + "\n")

    async def _create(self, sink: Sink) -> None:
        session = self._session()
        status = await session.create(sink)
        _print(sink, f"{session.lifecycle.name} is {status.state}.\n")

    async def _terminate(self, sink: Sink, *, asked: bool) -> None:
        session = self._session()
        name = session.lifecycle.name
        question = f"Terminate the sandbox of {name}? Its variables and processes are lost."
        if not asked and not await self._confirm(question):
            _print(sink, "Not terminated.\n")
            return
        await session.terminate()
        _print(sink, f"{name}: the sandbox is terminated. The next cell starts a new one.\n")


def _print(sink: Sink, text: str) -> None:
    sink(Message("stream", {"name": "stdout", "text": text}))
