"""``jupyter ivy status · create · terminate · files``."""

from __future__ import annotations

import sys

from jupyter_core.application import base_aliases
from traitlets import Bool, Enum

from ivy_kernel.cli.base import EXIT_FAILED, JSON_FLAG, YES_FLAG, IvyCommandApp, plain, print_line
from ivy_kernel.cli.watch import status_facts, watch_status
from ivy_kernel.connect import open_lifecycle
from ivy_kernel.describe import duration_words, status_lines
from ivy_kernel.errors import UsageError
from ivy_kernel.lifecycle import Lifecycle
from ivy_kernel.status import SandboxStatus, monotonic_seconds


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
            for line in status_lines(lifecycle, status, now):
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
        **base_aliases,
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
        status = await lifecycle.status()
        self.show(lifecycle, status)
        return 0 if status.effective_state(monotonic_seconds()) == "active" else EXIT_FAILED


class CreateApp(_LifecycleApp):
    """Start the chat's sandbox, if there is none, and wait until it is ready."""

    name = "jupyter-ivy-create"
    description = __doc__

    async def act(self, lifecycle: Lifecycle) -> int:
        """Create, then wait; progress on stderr."""
        await lifecycle.create()
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
        if not self.yes:
            if not sys.stdin.isatty():
                raise UsageError("terminate asks first, and nobody can answer here: add --yes.")
            question = f"Terminate {lifecycle.name}? Variables and processes are lost. [y/N] "
            answer = input(question)  # noqa: ASYNC250 - nothing else is under way here
            if answer.strip().lower() not in ("y", "yes"):
                print_line("Not terminated.")
                return EXIT_FAILED
        await lifecycle.terminate()
        self.show(lifecycle, await lifecycle.status())
        return 0


class FilesApp(_LifecycleApp):
    """List the files registered for the chat: uploads, job outputs, tool outputs, exports."""

    name = "jupyter-ivy-files"
    description = __doc__

    async def act(self, lifecycle: Lifecycle) -> int:
        """List them, oldest first."""
        files = await (await lifecycle.client()).manifest(lifecycle.chat_id)
        if self.as_json:
            self.print_json(files)
        elif not files:
            print_line(f"{lifecycle.name}: no files are registered.", error=True)
        for entry in [] if self.as_json else files:
            name = next((entry[k] for k in ("path", "name", "filename") if k in entry), "?")
            size = next((entry[k] for k in ("sizeBytes", "size", "bytes") if k in entry), "")
            print_line(f"{plain(name)}\t{plain(size)}")
        return 0
