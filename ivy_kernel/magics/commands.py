"""``%ivy``: the commands about the sandbox, the same in every kernel."""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable

from ivy_kernel.errors import UsageError
from ivy_kernel.magics.options import HelpAskedError, OptionParser, cell_parser, split_line
from ivy_kernel.models import Message, Sink
from ivy_kernel.session.describe import route_lines, settings_table, status_lines
from ivy_kernel.session.open import open_lifecycle
from ivy_kernel.session.session import Session
from ivy_kernel.settings.live import LiveSettings
from ivy_kernel.status import SandboxStatus, monotonic_seconds

COMMANDS = {
    "status": "the sandbox: its state, its countdowns, and how cells reach it",
    "widget": "the same as a live panel, with buttons",
    "create": "start the chat's sandbox, if there is none, and wait until it is ready",
    "reconnect": "drop the connections, read the settings again, look again; variables stay",
    "terminate": "shut the sandbox down, after asking; --yes does not ask",
    "attach": "CHAT: use another chat's sandbox for the cells that follow",
    "config": "every setting, its value and where it came from; never a key",
    "cell": "the options of %%ivy, a cell that runs in the sandbox",
    "help": "this text; %ivy COMMAND --help tells about one command",
}

HELP = "".join(f"%ivy {name:<10} {about}\n" for name, about in COMMANDS.items())

Confirm = Callable[[str], Awaitable[bool]]
"""Asks the user a yes/no question."""

Follow = Callable[[SandboxStatus, Sink], Awaitable[None]]
"""Shows what runs on in the sandbox, until it has ended."""


def _parsers() -> dict[str, OptionParser]:
    parsers = {name: OptionParser(f"%ivy {name}", about) for name, about in COMMANDS.items()}
    parsers["terminate"].add_argument("--yes", action="store_true", help="do not ask")
    attach = parsers["attach"]
    attach.add_argument(
        "chat", metavar="CHAT", help="the chat's id; the one of the settings leads back to them"
    )
    attach.add_argument(
        "--campaign", metavar="ID", help="the chat's campaign (default: as the settings say)"
    )
    attach.add_argument(
        "--session",
        metavar="ID",
        help="session id for a new sandbox (default: generated once per chat)",
    )
    return parsers


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
    follow
        Used by ``reconnect``; ``None`` where nothing can have run on.
    """

    def __init__(
        self,
        live: LiveSettings,
        session: Callable[[], Session],
        confirm: Confirm,
        follow: Follow | None = None,
    ) -> None:
        self._live = live
        self._session = session
        self._confirm = confirm
        self._follow = follow

    async def run(self, line: str, sink: Sink) -> None:
        """Run one line, without its ``%ivy``; what it shows goes to ``sink``.

        Raises
        ------
        UsageError
            Unknown command or option: names it, and what there is.
        IvyError
            The command failed.
        """
        words = split_line("%ivy", line)
        name = words[0] if words else "help"
        if name in ("--help", "-h"):
            name = "help"
        if line == "loaded":
            _print(sink, "The Ivy Sandbox kernel has %ivy built in; there is nothing to load.\n")
            return
        parser = _parsers().get(name)
        if parser is None:
            raise UsageError(f"There is no %ivy {name}; there are {', '.join(COMMANDS)}.")
        try:
            options = parser.parse_line(words[1:])
        except HelpAskedError as asked:
            _print(sink, str(asked))
            return
        commands = {
            "status": self._status,
            "widget": self._widget,
            "create": self._create,
            "reconnect": self._reconnect,
            "terminate": self._terminate,
            "attach": self._attach,
            "config": self._config,
            "cell": self._cell,
            "help": self._help,
        }
        await commands[name](options, sink)

    async def _help(self, options: argparse.Namespace, sink: Sink) -> None:
        _print(sink, HELP)

    async def _cell(self, options: argparse.Namespace, sink: Sink) -> None:
        _print(sink, cell_parser().format_help())

    async def _config(self, options: argparse.Namespace, sink: Sink) -> None:
        _print(sink, settings_table(self._live.current()))

    async def _status(self, options: argparse.Namespace, sink: Sink) -> None:
        session = self._session()
        _show(sink, session, await session.lifecycle.status())

    async def _widget(self, options: argparse.Namespace, sink: Sink) -> None:
        from ivy_kernel.magics.widget import open_widget  # needs packages that not everyone has

        sink(Message("display_data", await open_widget(self._session, self._live.reload)))

    async def _create(self, options: argparse.Namespace, sink: Sink) -> None:
        session = self._session()
        status = await session.create(sink)
        _print(sink, f"{session.lifecycle.name} is {status.state}.\n")

    async def _reconnect(self, options: argparse.Namespace, sink: Sink) -> None:
        self._live.reload()
        session = self._session()
        status = await session.reconnect()
        if self._follow is not None:
            await self._follow(status, sink)
        _show(sink, session, status)

    async def _terminate(self, options: argparse.Namespace, sink: Sink) -> None:
        session = self._session()
        name = session.lifecycle.name
        question = f"Terminate the sandbox of {name}? Its variables and processes are lost."
        if not options.yes and not await self._confirm(question):
            _print(sink, "Not terminated.\n")
            return
        await session.terminate()
        _print(sink, f"{name}: the sandbox is terminated. The next cell starts a new one.\n")

    async def _attach(self, options: argparse.Namespace, sink: Sink) -> None:
        undo = self._live.attach(
            options.chat, campaign_id=options.campaign, session_id=options.session
        )
        try:
            found = open_lifecycle(self._live)
            try:
                status = await found.status()
            finally:
                await found.aclose()
        except BaseException:
            undo()  # cells go on where they went before
            raise
        session = self._session()
        _print(sink, f"Cells now run in {session.lifecycle.name}.\n")
        _show(sink, session, status)


def _show(sink: Sink, session: Session, status: SandboxStatus) -> None:
    lines = status_lines(session.lifecycle, status, monotonic_seconds())
    lines += route_lines(session.describe())
    _print(sink, "\n".join(lines) + "\n")


def _print(sink: Sink, text: str) -> None:
    sink(Message("stream", {"name": "stdout", "text": text}))
