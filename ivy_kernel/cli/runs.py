"""``jupyter ivy runs`` and ``run --detach``: notebooks that the sandbox runs by itself."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traitlets import Bool, Unicode

from ivy_kernel.cli.app import (
    EXIT_FAILED,
    JSON_FLAG,
    IvyCommandApp,
    OutputPrinter,
    ProgressLine,
    print_line,
)
from ivy_kernel.cli.execution import check_target, read_notebook, write_notebook
from ivy_kernel.cli.setup import KERNEL_NAME
from ivy_kernel.errors import (
    ApiError,
    NetworkError,
    SandboxError,
    SandboxFileError,
    UsageError,
)
from ivy_kernel.kernel.local import runs_locally, split_cell
from ivy_kernel.models import Cell, Json, Message, Sink, sendable
from ivy_kernel.routes.tools import SandboxTools
from ivy_kernel.session.describe import deadline_words, duration_words
from ivy_kernel.session.notebook_record import NotebookRecord
from ivy_kernel.session.open import code_fields, open_files, open_session
from ivy_kernel.session.receipts import seal
from ivy_kernel.session.runs import (
    RunRecord,
    SandboxRuns,
    new_run_id,
    remaining,
    submit_run,
)
from ivy_kernel.status.clock import monotonic_seconds

if TYPE_CHECKING:
    from ivy_kernel.session.session import Session
    from ivy_kernel.settings.live import LiveSettings

LOOK_SECONDS = 0.5
"""Between looks at a run that is followed."""

LONGEST_LOOK_SECONDS = 4.0
"""The same while nothing of it changes."""

PATIENCE_SECONDS = 60.0
"""A run is followed on when its sandbox is not reached for so long."""


# Detaching ----------------------------------------------------------------------------------------
def queue_of(notebook: Any, path: Path) -> list[tuple[str, int, bool]]:
    """Return the cells that are run, as `submit_run` takes them; the same ones as nbclient's.

    Raises
    ------
    UsageError
        When some cannot run without this machine: names them by number. Or there are none.
    """
    code_cells = [(at, cell) for at, cell in enumerate(notebook.cells) if cell.cell_type == "code"]
    bound = [str(number) for number, (_, cell) in enumerate(code_cells, 1) if is_bound(cell.source)]
    if bound:
        which = f"Cell {bound[0]} of {path} needs"
        if bound[1:]:
            which = f"Cells {', '.join(bound)} of {path} need"
        raise UsageError(
            f"{which} this machine (%%local, %ivy and %%ivy run here), which a detached run does "
            f"not have, so nothing was run. Take them out, or run it without --detach."
        )
    queue = []
    for at, cell in code_cells:
        tags = cell.metadata.get("tags", [])
        if cell.source.strip() and "skip-execution" not in tags:
            queue.append((str(cell.get("id", "")), at, "raises-exception" in tags))
    if not queue:
        raise UsageError(f"{path} has no cell to run.")
    return queue


def is_bound(code: str) -> bool:
    """Whether some of a cell would run on this machine."""
    try:
        parts = split_cell(code)
    except UsageError:  # a misplaced %ivy line, or a wrong %%local
        return True
    return runs_locally(code) or parts.options is not None or bool(parts.commands)


async def detach(app: IvyCommandApp, source: Path) -> int:
    """Hand a notebook to the sandbox; the exit code."""
    live = app.live_settings()
    live.current()  # what is wrong is told before anything starts
    notebook = read_notebook(source)
    queue = queue_of(notebook, source)
    run_id = new_run_id()
    keeps = NotebookRecord(kernel=f"run-{run_id}")
    session = open_session(live, session_key=f"run-{run_id}", record=keeps)
    line = ProgressLine()
    is_submitted = False
    try:
        await session.prepare(shown_in(line))
        line.clear()
        await tell_deadlines(session, live)
        record = await submit_run(
            session,
            executable(notebook),
            queue,
            shown_in(line),
            run_id=run_id,
            name=source.name,
            notebook_id=keeps.notebook_id,
            ends_agent=True,
            about={"kept_as": f"run-{run_id}"},
        )
        is_submitted = True
    finally:
        line.clear()
        await session.aclose(keep=is_submitted)
    print_line(
        f"{source.name} runs in {session.lifecycle.name} from now on, {len(queue)} cells, without "
        f"this machine. Follow it: jupyter ivy runs attach {record.run_id}. Get the notebook: "
        f"jupyter ivy runs fetch {record.run_id}.",
        error=True,
    )
    print_line(record.run_id)  # alone on stdout, for scripts
    return 0


def shown_in(line: ProgressLine) -> Sink:
    """Return what shows the start of a sandbox in a line."""

    def show(message: Message) -> None:
        words = str(message.content.get("data", {}).get("text/plain", "")).partition("\n")[0]
        if words:
            line.show(words, None)

    return show


def executable(notebook: Any) -> Json:
    """Return a notebook as `jupyter ivy run` would leave it, but for what its cells do."""
    from ivy_kernel.kernel.kernel import IvyKernel  # imports all of a kernel

    notebook.metadata["kernelspec"] = {
        "name": KERNEL_NAME,
        "display_name": "Ivy Sandbox",
        "language": "python",
    }
    notebook.metadata["language_info"] = dict(IvyKernel.language_info)
    whole: Json = sendable(notebook)
    return whole


async def tell_deadlines(session: Session, live: LiveSettings) -> None:
    """Say what is known of how long the sandbox lives, before a run begins in it."""
    settings = live.current()
    if settings.is_local:
        idle = duration_words(settings.local_idle_exit_seconds)
        print_line(
            f"The local sandbox runs on this machine: the run ends with it, and it ends {idle} "
            f"after its last use (the setting local_idle_exit_seconds).",
            error=True,
        )
        return
    status = await session.lifecycle.status()
    words = deadline_words(status, monotonic_seconds())
    known = f"this one {' and '.join(words)} if it does" if words else "nor when this one would be"
    print_line(f"Whether the platform hibernates a busy sandbox is not known; {known}.", error=True)


# The runs that there are --------------------------------------------------------------------------
class RunsApp(IvyCommandApp):
    """List, follow, fetch, cancel and resume runs that go on in the sandbox.

    jupyter ivy runs [list]
    jupyter ivy runs attach ID
    jupyter ivy runs fetch ID [--output PATH] [--force]
    jupyter ivy runs cancel ID
    jupyter ivy runs resume ID [--rerun]

    The beginning of an ID is enough. It works from any machine that has the chat's key; resume
    alone needs the machine that has detached the notebook, and starts a sandbox as run does. It
    restores the variables from the newest checkpoint, and goes on with the cells after it.

    Exit code 0 when the run has ended well (attach), or the command has done its work; 1 when the
    run failed, was cancelled or stopped, or the command failed; 2 when it was used wrongly; 130
    after Ctrl-C, which leaves the run running.
    """

    name = "jupyter-ivy-runs"
    description = __doc__
    takes_arguments = True
    flags = {  # noqa: RUF012 - the way that traitlets applications are declared
        **JSON_FLAG,
        "force": ({"RunsApp": {"force": True}}, "fetch: write over a file that is there."),
        "rerun": (
            {"RunsApp": {"rerun": True}},
            "resume: run cells again that have run, or may have, since the last checkpoint.",
        ),
    }
    aliases = {  # noqa: RUF012 - likewise
        **IvyCommandApp.aliases,
        "output": "RunsApp.output",
    }
    force = Bool(False, help="fetch: write over a file that is there.").tag(config=True)
    rerun = Bool(False, help="resume: run again what has run since the last checkpoint.").tag(
        config=True
    )
    output = Unicode(
        "", help="fetch: where to write it. Default: NAME.executed.ipynb in this directory."
    ).tag(config=True)

    async def run(self) -> int:
        """Do what the first word says."""
        words = list(self.extra_args) or ["list"]
        actions = {"attach": self.attach, "fetch": self.fetch, "cancel": self.cancel}
        there = ", ".join(("list", *actions, "resume"))
        if words[0] not in there.split(", "):
            raise UsageError(f"There is no jupyter ivy runs {words[0]!r}; there are {there}.")
        if len(words) != (1 if words[0] == "list" else 2):
            raise UsageError(f"Write it as jupyter ivy runs {words[0]}{_wants(words[0])}.")
        if words[0] == "resume":
            return await self.resume(words[1])
        async with open_runs(self.live_settings()) as runs:
            if words[0] == "list":
                return await self.list(runs)
            return await actions[words[0]](runs, await runs.find(words[1]))

    async def list(self, runs: SandboxRuns) -> int:
        """Print all runs, the newest first."""
        records = await runs.list()
        if self.as_json:
            self.print_json({"runs": [record.to_json() for record in records]})
            return 0
        for line in table(records, datetime.now(timezone.utc)):
            print_line(line)
        if not records:
            print_line("There are no runs in this sandbox.", error=True)
        return 0

    async def attach(self, runs: SandboxRuns, record: RunRecord) -> int:
        """Follow a run's outputs until it is over."""
        try:
            record = await follow(runs, record)
        except asyncio.CancelledError:
            print_line(f"The run goes on; see jupyter ivy runs attach {record.run_id}.", error=True)
            raise
        return self._told(record)

    async def fetch(self, runs: SandboxRuns, record: RunRecord) -> int:
        """Write a run's notebook on this machine, whole or not at all."""
        target = Path(self.output or file_name(record))
        check_target(target)
        if target.exists() and not self.force:
            raise UsageError(f"{target} is there already; --force writes over it.")
        document = as_document(await runs.notebook(record), record)
        kept = NotebookRecord(str(target))
        place, lock = record.state_directory, record.lock or None
        seal(document, owner=kept.notebook_id, key=kept.key, lock=lock, place=place)
        write_notebook(document, target)
        if self.as_json:
            self.print_json({**record.to_json(), "notebook": str(target)})
        else:
            so_far = " so far" if record.state == "running" else ""
            print_line(f"The notebook{so_far} is {target}; {state_words(record)}.", error=True)
        return 0

    async def cancel(self, runs: SandboxRuns, record: RunRecord) -> int:
        """Interrupt a run's cell, and have no later one begin."""
        was_over = record.state != "running"
        record = await runs.cancel(record)
        self._told(record)
        return EXIT_FAILED if was_over or record.state == "running" else 0

    async def resume(self, start: str) -> int:
        """Go on with what a run has left, from the variables that were saved."""
        live, line = self.live_settings(), ProgressLine()
        waking = open_session(live)
        try:
            await waking.prepare(shown_in(line))
            line.clear()
        finally:
            await waking.aclose(keep=True)
        async with open_runs(live) as runs:
            record = await runs.find(start)
            if record.state in ("running", "ended"):
                raise UsageError(f"Run {record.run_id}: {state_words(record)}; nothing is left.")
            for other in await runs.list():  # or its cells would run twice
                if other.about.get("resumes") == record.run_id:
                    raise UsageError(
                        f"Run {record.run_id} was resumed already, as run {other.run_id}: "
                        f"{state_words(other)}. Resume that one, if need be. Nothing was run."
                    )
            notebook = await runs.notebook(record)
        kept_as = str(record.about.get("kept_as", ""))
        keeps = NotebookRecord(kernel=kept_as)
        if keeps.notebook_id != record.state_directory:
            raise UsageError(
                f"Run {record.run_id} was begun in a notebook, or on another machine, which has "
                f"the key of its variables; resume it there, or run the notebook again."
            )
        run_id = new_run_id()
        session = open_session(live, session_key=f"run-{run_id}", record=keeps)
        is_submitted = False
        try:
            saved = await restored(session, record) if record.cell else record.number
            queue = remaining(record, saved, rerun=self.rerun)
            await tell_deadlines(session, live)
            told = await submit_run(
                session,
                notebook,
                queue,
                shown_in(line),
                run_id=run_id,
                name=record.name,
                notebook_id=keeps.notebook_id,
                number=saved,
                ends_agent=True,
                about={"kept_as": kept_as, "resumes": record.run_id},
            )
            is_submitted = True
        finally:
            line.clear()
            await session.aclose(keep=is_submitted)
        words = f"cells {saved - record.number + 1} to {record.cells}"
        print_line(f"Run {told.run_id} goes on with {words} of run {record.run_id}.", error=True)
        print_line(told.run_id)
        return 0

    def _told(self, record: RunRecord) -> int:
        """Say how a run stands; the exit code that says the same."""
        if self.as_json:
            self.print_json(record.to_json())
        else:
            print_line(f"Run {record.run_id}: {state_words(record)}.", error=True)
        return 0 if record.state == "ended" else EXIT_FAILED


async def restored(session: Session, record: RunRecord) -> int:
    """Restore the variables of a run that is over; return after which cell they were saved.

    Raises
    ------
    SandboxError
        When they cannot be.
    """

    def show(message: Message) -> None:
        content = message.content
        text = str(content.get("text") or content.get("data", {}).get("text/plain", ""))
        if text and message.msg_type != "error":
            print_line(text.rstrip("\n"), error=True)

    outcome = await session.restore(Cell(""), show, at=None, rerun=False)
    recovery = session.recovery
    if outcome.fate != "succeeded" or recovery is None:
        raise SandboxError(
            f"The variables of run {record.run_id} cannot be restored, so it cannot go on: "
            f"{outcome.reply.get('evalue', '')} Run the notebook again."
        )
    return int(recovery.summary.get("number", 0))


def _wants(action: str) -> str:
    return "" if action == "list" else " ID"


@asynccontextmanager
async def open_runs(live: LiveSettings) -> AsyncIterator[SandboxRuns]:
    """Open the runs of the sandbox that the settings name."""
    files = open_files(live)
    lifecycle = files.lifecycle
    try:
        tools = SandboxTools(lifecycle.client, lifecycle.chat_id, code_fields(live.current()))
        yield SandboxRuns(files, tools)
    finally:
        await files.aclose()


def state_words(record: RunRecord) -> str:
    """Describe how a run stands."""
    if record.state == "ended":
        return f"it has ended, all {record.cells} cells"
    if record.state == "running":
        return f"it runs {record.place_words}"
    where = f"{record.state} in {record.place_words}" if record.cell else record.state
    return f"it {'has ' if record.state != 'cancelled' else 'was '}{where}" + (
        f": {record.error.rstrip('.')}" if record.error else ""
    )


def table(records: Sequence[RunRecord], now: datetime) -> list[str]:
    """Return the lines of a list of runs."""
    rows = []
    for one in records:
        began = one.started.astimezone().strftime("%Y-%m-%d %H:%M") if one.started else "-"
        age = duration_words((now - one.started).total_seconds()) if one.started else "-"
        why = one.error if one.state in ("failed", "stopped") else ""
        rows.append((one.run_id, one.name, one.state, one.place_words, began, f"{age} ago", why))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def file_name(record: RunRecord) -> str:
    """Return a name for a run's notebook here; what the sandbox calls it is no path."""
    stem = re.sub(r"[^\w.-]+", "_", Path(record.name).stem).strip(".")[:100]
    return f"{stem or record.run_id}.executed.ipynb"


def as_document(notebook: Json, record: RunRecord) -> Any:
    """Return a notebook from the sandbox as nbformat has it.

    Raises
    ------
    SandboxFileError
        When nbformat finds fault with it.
    """
    import nbformat  # takes seconds on some machines

    try:
        document = nbformat.from_dict(sendable(notebook))
        nbformat.validate(document)
    except Exception as error:  # nbformat raises many kinds, all meaning the same
        raise SandboxFileError(
            f"The notebook of run {record.run_id} is not a valid one ({type(error).__name__}); "
            f"it is {record.directory}/notebook.ipynb in the sandbox."
        ) from None
    return document


# Following a run ----------------------------------------------------------------------------------
async def follow(runs: SandboxRuns, record: RunRecord) -> RunRecord:
    """Print what a run's cells show, as it comes, until the run is over; return its record.

    Raises
    ------
    IvyError
        The sandbox could not be reached for a minute; the run may go on.
    """
    printer = OutputPrinter()
    pause_seconds, seen, reached = LOOK_SECONDS, -1, monotonic_seconds()
    while True:
        try:
            if record.writes != seen or record.state != "running":
                begun = [at for _, at, _ in record.queue[: record.cell]]
                printer.show((await runs.notebook(record))["cells"], begun)
                seen, pause_seconds = record.writes, LOOK_SECONDS
            if record.state != "running":
                return record
            await asyncio.sleep(pause_seconds)
            pause_seconds = min(pause_seconds * 1.3, LONGEST_LOOK_SECONDS)
            record, reached = await runs.current(record), monotonic_seconds()
        except (ApiError, NetworkError):
            if monotonic_seconds() - reached > PATIENCE_SECONDS:
                raise
            await asyncio.sleep(LONGEST_LOOK_SECONDS)
