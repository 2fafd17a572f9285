"""``%ivy``: the commands about the sandbox, the same in every kernel.

A new command is a function and a row of `COMMANDS`, both in this file.
"""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ivy_kernel.errors import IvyError, UsageError
from ivy_kernel.magics.options import (
    VARIABLES_HELP,
    HelpAskedError,
    OptionParser,
    cell_parser,
    file_parser,
    renamed,
    split_line,
)
from ivy_kernel.models import Message, Sink
from ivy_kernel.routes.events import KeptCell
from ivy_kernel.session.describe import (
    chats_table,
    route_lines,
    settings_table,
    state_words,
    status_lines,
)
from ivy_kernel.session.lifecycle import PATIENT_DEADLINES_SECONDS
from ivy_kernel.session.open import SessionOwner, open_lifecycle
from ivy_kernel.session.session import Session
from ivy_kernel.session.start_progress import ProgressDisplay
from ivy_kernel.status.clock import monotonic_seconds
from ivy_kernel.status.model import SandboxStatus


class CommandOwner(SessionOwner, Protocol):
    """The notebook whose cell holds a command."""

    @property
    def directory(self) -> Path:
        """The directory of the notebook, which local paths of a command are relative to.

        Raises
        ------
        UsageError
            When it is not there any more.
        """

    def namespace(self) -> dict[str, Any]:
        """Return the notebook's variables in this process. Called by ``push`` and ``pull``."""

    async def confirm(self, question: str) -> bool:
        """Ask the user a yes/no question, before something is lost."""

    @property
    def number(self) -> int:
        """The number of the notebook's last cell before the next one. Called by ``detach``."""

    def expect(self, cells: Sequence[KeptCell]) -> None:
        """Keep what cells will say that the sandbox runs by itself. Called by ``detach``."""

    async def follow(self, status: SandboxStatus, sink: Sink) -> None:
        """Show what runs on in the sandbox, until it has ended. Called by ``reconnect``."""


async def run_command(line: str, sink: Sink, owner: CommandOwner) -> None:
    """Run one ``%ivy`` line.

    Parameters
    ----------
    line
        The line, without its ``%ivy``; ``loaded`` stands for ``%load_ext ivy_kernel``.
    sink
        Takes what the command shows.
    owner
        The notebook.

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
    command = COMMANDS.get(name)
    if command is None:
        raise UsageError(f"There is no %ivy {name}; there are {', '.join(COMMANDS)}.")
    try:
        options = command.parser(name).parse_line(words[1:])
    except HelpAskedError as asked:
        _print(sink, str(asked))
        return
    await command.run(owner, options, sink)


# The commands -----------------------------------------------------------------------------------
Options = argparse.Namespace


async def _status(owner: CommandOwner, options: Options, sink: Sink) -> None:
    session = owner.session()
    patience = PATIENT_DEADLINES_SECONDS
    _show(sink, session, await session.lifecycle.status(deadlines_seconds=patience))


async def _widget(owner: CommandOwner, options: Options, sink: Sink) -> None:
    from ivy_kernel.magics.widget import open_widget  # needs packages that not everyone has

    sink(Message("display_data", await open_widget(owner)))


async def _create(owner: CommandOwner, options: Options, sink: Sink) -> None:
    session = owner.session()
    status = await session.create(sink)
    _print(sink, f"{session.lifecycle.name} is {state_words(status, monotonic_seconds())}.\n")


async def _reconnect(owner: CommandOwner, options: Options, sink: Sink) -> None:
    owner.live.reload()
    session = owner.session()
    status = await session.reconnect()
    await owner.follow(status, sink)
    _show(sink, session, status)


async def _terminate(owner: CommandOwner, options: Options, sink: Sink) -> None:
    session = owner.session()
    name = session.lifecycle.name
    question = f"Terminate the sandbox of {name}? Its variables and processes are lost."
    if not options.yes and not await owner.confirm(question):
        _print(sink, "Not terminated.\n")
        return
    await session.terminate()
    kept = session.recovery is not None and bool(session.recovery.chat.copy)
    more = " %ivy restore, before any cell, brings its variables back there." if kept else ""
    _print(sink, f"{name}: the sandbox is terminated. The next cell starts a new one.{more}\n")
    # So that widget and panel, which hear of this look, show at once what it has become.
    with suppress(IvyError):
        await session.lifecycle.status(retry=False)


async def _attach(owner: CommandOwner, options: Options, sink: Sink) -> None:
    from ivy_kernel.session.chats import find_chat  # not every kernel needs it

    own = owner.live.beside().current()
    chat = find_chat(own, options.chat)
    chat_id = options.chat if chat is None else chat.chat_id
    campaign_id = options.campaign
    if chat is not None and chat_id != own.used_chat_id:
        campaign_id = campaign_id or chat.campaign_id or None
    undo = owner.live.attach(chat_id, campaign_id=campaign_id, session_id=options.session)
    # The status is read before any cell is sent there: a wrong chat must not become the attached
    # one. An interrupt takes it back too, hence BaseException.
    try:
        found = open_lifecycle(owner.live)
        try:
            status = await found.status()
        finally:
            await found.aclose()
    except BaseException:
        undo()
        raise
    session = owner.session()
    _print(sink, f"Cells now run in {session.lifecycle.name}.\n")
    _show(sink, session, status)


async def _chats(owner: CommandOwner, options: Options, sink: Sink) -> None:
    from ivy_kernel.session import chats  # likewise

    own = owner.live.beside().current()
    present = owner.live.current().used_chat_id
    if sum(each is not None for each in (options.name, options.forget, options.default)) > 1:
        raise UsageError("%ivy chats: give one of --name, --forget and --default; see --help.")
    if options.chat is not None and options.name is None:
        raise UsageError(
            "%ivy chats: CHAT stands behind --name NAME, --forget or --default; see --help."
        )
    if options.name is not None:
        chat_id = present
        if options.chat is not None:
            found = chats.find_chat(own, options.chat)
            chat_id = options.chat if found is None else found.chat_id
            owner.live.beside(chat_id=chat_id).current()  # an id that can be none is refused
        if not chat_id:
            own.require("chat_id")
        chats.change_chat(own, chat_id, name=options.name)
        _print(sink, f"Chat {chat_id} is now called {options.name.strip()}.\n")
    elif options.forget is not None:
        chat = chats.chat_called(own, options.forget)
        chats.forget_chat(own, chat.chat_id)
        _print(sink, f"Chat {chat.chat_id} is forgotten; its sandbox and its files stay.\n")
    elif options.default is not None:
        chat = chats.chat_called(own, options.default)
        saved = chats.save_default(owner.live, chat.chat_id)
        lines = [
            f"The default chat is now {chat.chat_id}, in {saved.path}. Notebooks that are attached "
            f"to no chat of their own use it from their next cell on.",
            *saved.notes,
        ]
        _print(sink, "\n".join(lines) + "\n")
    else:
        _print(sink, chats_table(chats.list_chats(own), own.used_chat_id, present))


async def _config(owner: CommandOwner, options: Options, sink: Sink) -> None:
    _print(sink, settings_table(owner.live.current()))


async def _files(owner: CommandOwner, options: Options, sink: Sink) -> None:
    from ivy_kernel.magics.files import run_file_command  # no other cell needs what it imports

    await run_file_command(options, _FileCaller(owner, sink))


class _FileCaller:
    """A cell that holds a command about files; see `ivy_kernel.magics.files.Caller`."""

    prefix = "%ivy"

    def __init__(self, owner: CommandOwner, sink: Sink) -> None:
        self._owner = owner
        self._sink = sink
        self._session = owner.session()
        self.confirm = owner.confirm
        self.open_files = self._session.files

    @property
    def directory(self) -> Path:
        return self._owner.directory

    @property
    def stays_inside(self) -> bool:
        return not self._owner.live.current().allow_local

    async def prepare(self) -> None:
        await self._session.prepare(self._sink)

    def show(self, text: str) -> None:
        _print(self._sink, f"{text}\n")

    def warn(self, text: str) -> None:
        self._sink(Message("stream", {"name": "stderr", "text": f"[{text}]\n"}))

    def progress(self) -> ProgressDisplay:
        return ProgressDisplay(self._sink)


async def _push(owner: CommandOwner, options: Options, sink: Sink) -> None:
    from ivy_kernel.magics.variables import Exchange  # no other cell needs what it imports

    await Exchange(owner.session(), owner.namespace(), sink).push(options.names)


async def _pull(owner: CommandOwner, options: Options, sink: Sink) -> None:
    from ivy_kernel.magics.variables import Exchange  # no other cell needs what it imports

    await Exchange(owner.session(), owner.namespace(), sink).pull(options.names)


async def _checkpoint(owner: CommandOwner, options: Options, sink: Sink) -> None:
    from ivy_kernel.magics.recovery import run_checkpoint  # no other cell needs what it imports

    await run_checkpoint(owner, options, sink)


async def _restore(owner: CommandOwner, options: Options, sink: Sink) -> None:
    from ivy_kernel.magics.recovery import run_restore  # no other cell needs what it imports

    await run_restore(owner, options, sink)


async def _packages(owner: CommandOwner, options: Options, sink: Sink) -> None:
    from ivy_kernel.magics.recovery import run_packages  # no other cell needs what it imports

    await run_packages(owner, options, sink)


async def _detach(owner: CommandOwner, options: Options, sink: Sink) -> None:
    from ivy_kernel.magics.recovery import run_detach  # no other cell needs what it imports

    await run_detach(owner, options, sink)


async def _cell(owner: CommandOwner, options: Options, sink: Sink) -> None:
    _print(sink, cell_parser().format_help())


async def _help(owner: CommandOwner, options: Options, sink: Sink) -> None:
    _print(
        sink,
        "".join(f"%ivy {name:<10} {command.about}\n" for name, command in COMMANDS.items()),
    )


# The table of commands --------------------------------------------------------------------------
Argument = tuple[str, dict[str, Any]]
"""An argument's name or flag, with the keywords of argparse's ``add_argument``."""


@dataclass(frozen=True, slots=True)
class Command:
    """A row of the table of commands.

    Parameters
    ----------
    about
        Its line of help.
    run
        Runs it.
    arguments
        Its arguments, made by `_argument`.
    more
        Last text of its own help.
    """

    about: str
    run: Callable[[CommandOwner, Options, Sink], Awaitable[None]]
    arguments: tuple[Argument, ...] = ()
    more: str = ""

    def parser(self, name: str) -> OptionParser:
        """Make the parser of its options."""
        parser = OptionParser(f"%ivy {name}", self.about, self.more)
        for argument, keywords in self.arguments:
            parser.add_argument(argument, **keywords)
        return parser


class _FileCommand(Command):
    """A row of a command about files, which the command line has too."""

    def parser(self, name: str) -> OptionParser:
        """Make the parser of its options."""
        return file_parser("%ivy", name, self.about)


def _argument(name: str, **keywords: Any) -> Argument:
    return name, keywords


_NAMES = (
    _argument("names", metavar="NAME", nargs="+", type=renamed, help="a variable, or NEW=OLD"),
)

COMMANDS = {
    "status": Command("the sandbox: its state, its countdowns, and how cells reach it", _status),
    "widget": Command("the same as a live panel, with buttons", _widget),
    "create": Command(
        "start the chat's sandbox, if there is none, and wait until it is ready", _create
    ),
    "reconnect": Command(
        "drop the connections, read the settings again, look again; variables stay", _reconnect
    ),
    "terminate": Command(
        "shut the sandbox down, after asking; --yes does not ask",
        _terminate,
        (_argument("--yes", action="store_true", help="do not ask"),),
    ),
    "attach": Command(
        "CHAT: use another chat's sandbox for the cells that follow; a name will do",
        _attach,
        (
            _argument(
                "chat",
                metavar="CHAT",
                help="the chat's id or name; the one of the settings leads back to them",
            ),
            _argument(
                "--campaign",
                metavar="ID",
                help="the chat's campaign (default: as it was, or as the settings say)",
            ),
            _argument(
                "--session",
                metavar="ID",
                help="session id for a new sandbox (default: generated once per chat)",
            ),
        ),
    ),
    "ls": _FileCommand("[PATH…]: list the sandbox's files; -l, -R", _files),
    "get": _FileCommand("PATH… [HERE]: copy files of the sandbox to this machine", _files),
    "put": _FileCommand("PATH… [THERE]: copy files of this machine to the sandbox", _files),
    "rm": _FileCommand("PATH…: remove files of the sandbox; asks before a directory", _files),
    "export": _FileCommand("PATH: register a file of the sandbox among the chat's files", _files),
    "sync": _FileCommand(
        "DIR [THERE]: make a directory of the sandbox what a small folder here is", _files
    ),
    "chats": Command(
        "the chats that you have used, with their names",
        _chats,
        (
            _argument("--name", metavar="NAME", help="give CHAT, or the present chat, this name"),
            _argument("chat", metavar="CHAT", nargs="?", help="a chat's id or name"),
            _argument(
                "--forget", metavar="CHAT", help="take a chat out of the list; its sandbox stays"
            ),
            _argument("--default", metavar="CHAT", help="write a chat into the config file"),
        ),
    ),
    "push": Command(
        "NAME…: set variables of the sandbox to those of this notebook; NEW=OLD renames",
        *(_push, _NAMES, VARIABLES_HELP),
    ),
    "pull": Command(
        "NAME…: set variables of this notebook to those of the sandbox; NEW=OLD renames",
        *(_pull, _NAMES, VARIABLES_HELP),
    ),
    "checkpoint": Command(
        "write down all variables now, and say what cannot be; they outlive the sandbox",
        _checkpoint,
    ),
    "restore": Command(
        "bring variables back from the newest checkpoint; --at CELL, --rerun",
        _restore,
        (
            _argument(
                "--at", metavar="CELL", type=int, help="as they were after the cell of this number"
            ),
            _argument(
                "--rerun",
                action="store_true",
                help="run again the cells that made what is not in it, and those after it",
            ),
        ),
    ),
    "packages": Command(
        "the packages that were installed since the sandbox began; --install after a loss",
        _packages,
        (
            _argument(
                "--install", action="store_true", help="install what was there before, after asking"
            ),
            _argument("--yes", action="store_true", help="do not ask"),
        ),
    ),
    "detach": Command(
        "CELLS: have the sandbox run cells by itself; JupyterLab's command Run Remaining Cells",
        _detach,
        (
            _argument(
                "cells",
                metavar="CELLS",
                help='base64 of the JSON {"cells": [[id, source, allows_error], …], "name": …}',
            ),
        ),
    ),
    "config": Command("every setting, its value and where it came from; never a key", _config),
    "cell": Command("the options of %%ivy, a cell that runs in the sandbox", _cell),
    "help": Command("this text; %ivy COMMAND --help tells about one command", _help),
}
"""The commands, in the order in which ``%ivy help`` lists them."""


def _show(sink: Sink, session: Session, status: SandboxStatus) -> None:
    from ivy_kernel.magics.recovery import checkpoint_line  # no other cell needs what it imports

    lines = status_lines(session.lifecycle, status, monotonic_seconds())
    lines += [*route_lines(session.describe()), checkpoint_line(session)]
    _print(sink, "\n".join(lines) + "\n")


def _print(sink: Sink, text: str) -> None:
    sink(Message("stream", {"name": "stdout", "text": text}))
