"""``jupyter ivy status · create · terminate · files · serve``: a sandbox and its life."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from traitlets import Bool, Enum, Int

from ivy_kernel.api.operations import one_line
from ivy_kernel.cli.app import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    JSON_FLAG,
    YES_FLAG,
    IvyCommandApp,
    ProgressLine,
    confirmed,
    print_line,
)
from ivy_kernel.errors import NoSandboxError
from ivy_kernel.magics.options import FILE_ARGUMENTS, HelpAskedError, file_parser
from ivy_kernel.models import Json, Message, visible
from ivy_kernel.session import local_server
from ivy_kernel.session.chats import note_use
from ivy_kernel.session.describe import (
    deadline_words,
    duration_words,
    state_words,
    status_lines,
    warnings,
)
from ivy_kernel.session.lifecycle import PATIENT_DEADLINES_SECONDS, Lifecycle
from ivy_kernel.session.notebook_record import checkpoint_line
from ivy_kernel.session.open import open_lifecycle, open_session
from ivy_kernel.session.session import Session
from ivy_kernel.status.clock import monotonic_seconds
from ivy_kernel.status.model import END_STATES, SandboxStatus, State, StatusReading
from ivy_kernel.status.schedule import PERMANENT_ERRORS


class _LifecycleApp(IvyCommandApp):
    flags = JSON_FLAG

    async def run(self) -> int:
        lifecycle = open_lifecycle(self.live_settings())
        try:
            return await self.act(lifecycle)
        finally:
            await lifecycle.aclose()

    async def act(self, lifecycle: Lifecycle) -> int:
        """Do the work; the exit code."""
        raise NotImplementedError

    def show(self, lifecycle: Lifecycle, status: SandboxStatus) -> None:
        """Print a status, as lines or JSON."""
        now = monotonic_seconds()
        if self.as_json:
            self.print_json(status_facts(lifecycle, status.to_json(now)))
        else:
            newest = checkpoint_line(lifecycle.key[:2])
            for line in [*status_lines(lifecycle, status, now), *newest]:
                print_line(line)


class StatusApp(_LifecycleApp):
    """Show the sandbox's state, once or for as long as you watch.

    Exit codes: 0 when it is active (with --until: when what was waited for is so), 1 when it is
    not, or its status cannot be read, 2 for a wrong option or setting, 130 when --until was
    interrupted before its time. --watch alone ends with Ctrl-C and 0.
    """

    name = "jupyter-ivy-status"
    description = __doc__
    watch = Bool(False, help="Go on, and show each change; in a terminal, a live countdown.").tag(
        config=True
    )
    until = Enum(
        ["", "active", "gone"],
        default_value="",
        help="With --watch: end when the sandbox is active, or gone.",
    ).tag(config=True)
    aliases = {  # noqa: RUF012 - the way that traitlets applications are declared
        **IvyCommandApp.aliases,
        "until": "StatusApp.until",
    }

    flags = {  # noqa: RUF012 - likewise
        **JSON_FLAG,
        "watch": ({"StatusApp": {"watch": True}}, "Go on, and show each change."),
    }

    async def act(self, lifecycle: Lifecycle) -> int:
        """Look once, or watch."""
        if self.watch or self.until:
            return await watch_status(lifecycle, until=self.until, as_json=self.as_json)
        status = await lifecycle.status(deadlines_seconds=PATIENT_DEADLINES_SECONDS)
        self.show(lifecycle, status)
        return 0 if status.effective_state(monotonic_seconds()) == "active" else EXIT_FAILED


class CreateApp(_LifecycleApp):
    """Start the chat's sandbox, if there is none, and wait until it is ready."""

    name = "jupyter-ivy-create"
    description = __doc__

    async def act(self, lifecycle: Lifecycle) -> int:
        """Create, then wait; progress on stderr."""
        await lifecycle.create()
        note_use(**lifecycle.registry_fields)
        told = ""

        def progress(status: SandboxStatus) -> None:
            nonlocal told
            eta = status.eta_remaining_seconds(monotonic_seconds())
            words = f"{status.phase or status.state}"
            if words != told and not self.as_json:
                left = "" if eta is None else f", about {duration_words(eta)} left"
                print_line(f"{lifecycle.name}: {words}{left}", error=True)
            told = words

        status = await lifecycle.wait_until_ready(progress)
        self.show(lifecycle, status)
        return 0 if status.state == "active" else EXIT_FAILED


class TerminateApp(_LifecycleApp):
    """Shut the sandbox down, after asking: variables and processes are lost."""

    name = "jupyter-ivy-terminate"
    description = __doc__

    flags = {**JSON_FLAG, **YES_FLAG}  # noqa: RUF012 - declared so by traitlets applications

    async def act(self, lifecycle: Lifecycle) -> int:
        """Ask, then terminate."""
        question = f"Terminate {lifecycle.name}? Variables and processes are lost."
        if not self.yes and not confirmed(question, "terminate"):
            print_line("Not terminated.")
            return EXIT_FAILED
        await lifecycle.terminate()
        self.show(lifecycle, await lifecycle.status())
        return 0


class FilesApp(_LifecycleApp):
    """List the files registered for the chat: uploads, job outputs, tool outputs, exports.

    With a word after it, commands about the files in the sandbox: ls, get, put, rm, export, sync;
    "jupyter ivy files get --help" tells about one. The word manifest stands for the list.

    Exit codes: 0 when it is done, 1 when it failed, 2 for a wrong option, path or setting, 130
    after Ctrl-C, which leaves a part that the same command goes on with.
    """

    name = "jupyter-ivy-files"
    description = __doc__
    words: tuple[str, ...] = ()
    """A command about files, and its words."""

    def parse_command_line(self, argv: Any = None) -> None:
        """Called by JupyterApp; a command's own words have a parser of their own."""
        words = list(sys.argv[1:] if argv is None else argv)
        if words[:1] == ["manifest"]:
            words = words[1:]
        elif words and words[0] in FILE_ARGUMENTS:
            ours = [one for one in words if not _SETTING_WORDS.match(one)]
            self.words = tuple(ours)
            words = [one for one in words if _SETTING_WORDS.match(one)]
        super().parse_command_line(words)

    async def run(self) -> int:
        """Run the command about files, or list what is registered."""
        if not self.words:
            return await super().run()
        from ivy_kernel.magics.commands import COMMANDS  # both for these commands only
        from ivy_kernel.magics.files import run_file_command

        name, *words = self.words
        parser = file_parser("jupyter ivy files", name, COMMANDS[name].about)
        try:
            options = parser.parse_line(words)
        except HelpAskedError as asked:
            print_line(str(asked))
            return 0
        self.as_json = self.as_json or options.as_json
        session = open_session(self.live_settings())
        try:
            caller = _TerminalCaller(session)
            await run_file_command(options, caller)
        except NoSandboxError as error:
            raise NoSandboxError(str(error).replace("%ivy create", "jupyter ivy create")) from error
        finally:
            await session.aclose()
        return EXIT_FAILED if caller.has_refused else 0

    async def act(self, lifecycle: Lifecycle) -> int:
        """List them, oldest first."""
        files = await (await lifecycle.client()).manifest(lifecycle.chat_id)
        if self.as_json:
            self.print_json(files)
        elif not files:
            print_line(f"{lifecycle.name}: no files are registered.", error=True)
        # The fields of an entry are not documented, so the likely names are tried.
        for entry in [] if self.as_json else files:
            name = next((entry[k] for k in ("path", "name", "filename") if k in entry), "?")
            size = next((entry[k] for k in ("sizeBytes", "size", "bytes") if k in entry), "")
            print_line(f"{visible(name)}\t{visible(size)}")
        return 0


_SETTING_WORDS = re.compile(r"--(\w+\.\w+|debug$|log-level)")
"""Words of the command line that are settings, or options of every command."""


class _TerminalCaller:
    """A terminal, as commands about files see it; see `ivy_kernel.magics.files.Caller`."""

    prefix = "jupyter ivy files"
    stays_inside = False

    def __init__(self, session: Session) -> None:
        self._session = session
        self._line = ProgressLine()
        self.directory = Path.cwd()
        self.open_files = session.files
        self.has_refused = False

    async def prepare(self) -> None:
        await self._session.prepare(self._show_start)
        self._line.clear()

    def _show_start(self, message: Message) -> None:
        data = message.content.get("data", {})
        words = str(data.get("text/plain", "")).partition("\n")[0]
        if words:
            self._line.show(words, None)

    async def confirm(self, question: str) -> bool:
        self.has_refused = not confirmed(question, "rm")
        return not self.has_refused

    def show(self, text: str) -> None:
        print_line(text)

    def warn(self, text: str) -> None:
        self._line.clear()
        print_line(text, error=True)

    def progress(self) -> ProgressLine:
        return self._line


def status_facts(lifecycle: Lifecycle, status: Json) -> Json:
    """Return what ``--json`` prints: the sandbox, and its canonical status."""
    return {
        "name": lifecycle.name,
        "local": lifecycle.local,
        "chat_id": lifecycle.chat_id,
        "status": status,
    }


# The local sandbox --------------------------------------------------------------------------------
class ServeApp(IvyCommandApp):
    """Run the local sandbox in the foreground, until Ctrl-C.

    Kernels and commands without an account find it by themselves. It runs code as you, with your
    rights: it is no security boundary.

    With --profile cloud its sandboxes live as briefly as in the cloud, so that all countdowns can
    be seen without an account: they start within seconds, hibernate 5 minutes after the last cell,
    and expire after half an hour.
    """

    name = "jupyter-ivy-serve"
    description = __doc__
    aliases = {  # noqa: RUF012 - declared so by traitlets applications
        **IvyCommandApp.aliases,
        "port": "ServeApp.port",
        "profile": "ServeApp.profile",
    }
    port = Int(0, help="Port to listen on, at 127.0.0.1; 0 for any free one.").tag(config=True)
    profile = Enum(
        ["local", "cloud"],
        default_value="local",
        help="How long sandboxes live: until they are terminated (local), or as in the cloud.",
    ).tag(config=True)

    async def run(self) -> int:
        """Serve until the server ends or the user stops it."""
        found = local_server.find()
        if found is not None:
            print_line(
                f"The local sandbox runs already, at {found.url}, as it was started; end its "
                f"process {found.process_id} and run this again to have it started anew.",
                error=True,
            )
            return EXIT_FAILED
        # In the foreground it ends when the user says so, not when it has been idle.
        command = local_server.server_command(idle_exit_seconds=365 * 24 * 3600.0)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *command,
            *("--port", str(self.port)),
            *("--config", json.dumps(_PROFILES[self.profile])),
            env=local_server.server_environment(),
            cwd=local_server.runtime_file().parent,
        )
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, _end_process, process)
        print_line("Kernels without an account use this sandbox. Stop it with Ctrl-C.", error=True)
        code = await process.wait()
        # An end by the signal that was passed on is the end that the user asked for.
        return 0 if code in (0, -signal.SIGINT, -signal.SIGTERM) else EXIT_FAILED


_PROFILES: dict[str, Json] = {
    "local": {},
    "cloud": {
        "profile": "cloud",
        # Long enough for steps and estimate to be read.
        "provision_seconds": {"compute": 6, "mount": 4},
        "restore_seconds": {"compute": 3, "mount": 2},
    },
}
"""The settings of the local sandbox that each profile stands for."""


def _end_process(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        process.terminate()


# The watch: jupyter ivy status --watch ------------------------------------------------------------
TICK_SECONDS = 1.0

WAITING_SECONDS = 3.0
"""Greatest age of a status while ``--until`` waits for a state."""


async def watch_status(lifecycle: Lifecycle, *, until: str, as_json: bool) -> int:
    """Show a sandbox's status until interrupted or until a state is reached; the exit code.

    Parameters
    ----------
    lifecycle
        The sandbox.
    until
        ``active`` or ``gone``; empty for no end of its own.
    as_json
        Whether to print one JSON object a line, for each change.

    Raises
    ------
    IvyError
        With ``until``, when the platform refuses to tell the status: it never would end.
    """
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    # Not KeyboardInterrupt: the last line must be ended, and the exit code depends on --until.
    loop.add_signal_handler(signal.SIGINT, stopped.set)
    screen = _Screen(lifecycle, as_json=as_json)
    monitor = lifecycle.monitor()
    ended: list[int | Exception] = []

    def on_reading(reading: StatusReading) -> None:
        screen.show_change(reading)
        end = _exit_code(reading, until)
        if end is not None:
            ended.append(end)
            stopped.set()

    asking: asyncio.Future[StatusReading] | None = None
    try:
        with monitor.watch(on_reading):
            while not stopped.is_set():
                screen.tick(monitor.reading)
                if until and (asking is None or asking.done()):
                    # A script that waits shall go on soon; the monitor's own interval may be long.
                    refresh = monitor.refresh(max_age_seconds=WAITING_SECONDS)
                    asking = asyncio.ensure_future(refresh)
                await _wait(stopped)
    finally:
        if asking is not None:
            asking.cancel()
        screen.end()
        loop.remove_signal_handler(signal.SIGINT)
        await monitor.aclose()
    if not ended:
        return EXIT_INTERRUPTED if until else 0
    if isinstance(ended[0], Exception):
        raise ended[0]
    return ended[0]


async def _wait(stopped: asyncio.Event) -> None:
    try:
        await asyncio.wait_for(stopped.wait(), TICK_SECONDS)
    except asyncio.TimeoutError:
        return


def _exit_code(reading: StatusReading, until: str) -> int | Exception | None:
    """Return the exit code, or the error, that ends the watch; ``None`` to go on."""
    if not until:
        return None
    if isinstance(reading.error, PERMANENT_ERRORS):
        return reading.error
    if reading.status is None or reading.error is not None:
        return None
    state = reading.status.effective_state(monotonic_seconds())
    if until == "gone":
        return 0 if state in END_STATES else None
    if state == "active":
        return 0
    return EXIT_FAILED if state == "failed" else None


class _Screen:
    """The output of the watch: lines, JSON, or in a terminal one line that is rewritten."""

    def __init__(self, lifecycle: Lifecycle, *, as_json: bool) -> None:
        self._lifecycle = lifecycle
        self._as_json = as_json
        self._is_live = sys.stdout.isatty() and not as_json
        self._told: tuple[Any, ...] = ()

    def show_change(self, reading: StatusReading) -> None:
        """Print a line if something has changed that is not just time passing."""
        now = monotonic_seconds()
        if self._as_json:
            facts = status_facts(self._lifecycle, reading.to_json(now))
            print_line(json.dumps(facts, separators=(",", ":")))
            return
        shown = reading.to_json(now)
        told = tuple(str(shown[name]) for name in ("label", "phase", "stale_reason", "unknown"))
        if told != self._told and not self._is_live:
            print_line(status_line(self._lifecycle.name, reading, now))
        self._told = told

    def tick(self, reading: StatusReading) -> None:
        """Rewrite the one line of a terminal."""
        if not self._is_live:
            return
        line = status_line(self._lifecycle.name, reading, monotonic_seconds())
        # A line as wide as the terminal would wrap, and "\r" would not lead back to its start.
        width = shutil.get_terminal_size().columns
        sys.stdout.write(f"\r\x1b[K{line[: width - 1]}")
        sys.stdout.flush()

    def end(self) -> None:
        """Leave the last line as it is."""
        if self._is_live:
            sys.stdout.write("\n")
            sys.stdout.flush()


def status_line(name: str, reading: StatusReading, now: float) -> str:
    """Return state, countdowns and faults in one line."""
    reason = reading.stale_reason(now)
    if reading.status is None:
        return f"{name}: {reason}"
    status = reading.status
    state: State = status.effective_state(now)
    parts = [f"{name}: {state_words(status, now)}"]
    eta = status.eta_remaining_seconds(now)
    if state in ("provisioning", "restoring"):
        parts += [one_line(status.phase)] if status.phase else []
        parts += [f"about {duration_words(eta)} left"] if eta is not None else []
    parts += deadline_words(status, now)
    parts += ["SOON"] if warnings(status, now) else []
    parts += [one_line(status.error)] if status.error else []
    parts += [f"stale: {reason}"] if reason else []
    parts += [f"unknown: {sentence}" for sentence in status.unknown]
    return ", ".join(parts)
