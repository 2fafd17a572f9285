"""Runs of notebooks that need no client: the agent in the sandbox works them off by itself.

All that is known of a run is in the sandbox, in ``.ivy/<notebook id>/runs/<run id>/``: ``run.json``
(its record) and ``notebook.ipynb`` (with the outputs so far). So a run is found, followed and
fetched from any machine that has the chat's key. Nothing here starts or wakes a sandbox, and
nothing that a sandbox says is believed beyond what it can be: text and numbers of a known shape.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any, Literal, cast, get_args

from ivy_kernel.agent import PROTOCOL_VERSION
from ivy_kernel.errors import (
    AnswerError,
    ApiError,
    NetworkError,
    NoSuchFileError,
    RouteError,
    SandboxFileError,
    UsageError,
    WorkError,
)
from ivy_kernel.models import Cell, Json, Sink, visible
from ivy_kernel.routes.agent.calls import Counters, ToolCaller
from ivy_kernel.routes.agent.frames import (
    AgentUnresponsiveError,
    NoAgentError,
    TruncatedError,
    run_record,
)
from ivy_kernel.routes.tools import NOTEBOOK_TOOL, PYTHON_TOOL, SandboxTools
from ivy_kernel.session.files import SandboxFiles
from ivy_kernel.session.session import Session

RunState = Literal["running", "ended", "failed", "cancelled", "stopped"]
"""``stopped``: the sandbox, or its agent, ended under the run."""

RECORD_LIMIT_BYTES = 1 << 20
NOTEBOOK_LIMIT_BYTES = 512 << 20
RUNS_LIMIT = 200
"""Most runs that are looked at, the newest first."""

READS_AT_ONCE = 4
CANCEL_SECONDS = 25.0
"""For a cancelled run to stop."""

LOOK_SECONDS = 0.25
"""Between looks at a run that is being cancelled."""

STATE_DIRECTORY = ".ivy"


@dataclass(frozen=True, slots=True)
class RunRecord:
    """What is known of one run.

    Parameters
    ----------
    run_id, name
        Its id, and the name of its notebook.
    state
        How it stands.
    cell, cells
        The place of the cell that was sent last, from 1 (0: none was), and how many there are.
    is_under_way
        Whether that cell has not ended, or had not when the run stopped.
    started, ended
        When; ``None`` where that is not so, or not known.
    error
        Why it failed or stopped; empty else.
    directory
        Where its files are in the sandbox.
    agent_directory, agent_nonce, tool
        How its agent is reached: directory, name, and the tool that shares that directory.
    queue
        Its cells: id, position in the notebook, whether an error lets it go on.
    about
        What was noted when it was submitted.
    number
        The number of the cell before its first.
    lock
        The packages that its cells had, as the kernel told them.
    writes
        How often its agent has written the notebook; 0 where that was not asked.
    """

    run_id: str
    name: str
    state: RunState
    cell: int
    cells: int
    is_under_way: bool
    started: datetime | None
    ended: datetime | None
    error: str
    directory: str
    agent_directory: str
    agent_nonce: str
    tool: str
    queue: tuple[tuple[str, int, bool], ...]
    about: Json
    number: int
    lock: Json
    writes: int = 0

    @property
    def state_directory(self) -> str:
        """The name of its notebook's directory in the sandbox."""
        return self.directory.split("/")[-3] if self.directory.count("/") >= 2 else ""

    @property
    def place_words(self) -> str:
        """How far it has come, in words."""
        return f"cell {self.cell} of {self.cells}"

    def to_json(self) -> Json:
        """Return it for ``--json``."""
        return {
            "id": self.run_id,
            "name": self.name,
            "state": self.state,
            "cell": self.cell,
            "cells": self.cells,
            "is_under_way": self.is_under_way,
            "started": self.started.isoformat() if self.started else None,
            "ended": self.ended.isoformat() if self.ended else None,
            "error": self.error,
            "directory": self.directory,
        }


def read_record(value: Any, directory: str) -> RunRecord | None:
    """Return a record as it was read in the sandbox; ``None`` where it is none.

    Parameters
    ----------
    value
        Decoded JSON, whatever it is: anybody in the sandbox may have written it.
    directory
        Where it was found; its last part is the run's id.
    """
    if not isinstance(value, dict) or value.get("id") != directory.rpartition("/")[2]:
        return None
    state, cell, cells = value.get("state"), value.get("cell"), value.get("cells")
    if state not in get_args(RunState) or type(cell) is not int or type(cells) is not int:
        return None
    if not 0 <= cell <= cells:
        return None
    agent, about = value.get("agent"), value.get("about")
    agent = agent if isinstance(agent, dict) else {}
    about = about if isinstance(about, dict) else {}
    return RunRecord(
        run_id=visible(value["id"]),
        name=visible(value.get("name", ""))[:200],
        state=cast("RunState", state),
        cell=cell,
        cells=cells,
        is_under_way=value.get("is_under_way") is True,
        started=_time(value.get("started")),
        ended=_time(value.get("ended")),
        error=visible(value.get("error", ""))[:500],
        directory=directory,
        agent_directory=str(agent.get("directory", "")),
        agent_nonce=str(agent.get("nonce", "")),
        tool=NOTEBOOK_TOOL if about.get("tool") == NOTEBOOK_TOOL else PYTHON_TOOL,
        queue=tuple(_queue(value.get("queue"))),
        about=about,
        number=value["number"] if type(value.get("number")) is int else 0,
        lock=lock if isinstance(lock := value.get("lock"), dict) else {},
        writes=value["writes"] if type(value.get("writes")) is int else 0,
    )


def _queue(value: Any) -> list[tuple[str, int, bool]]:
    rows = value if isinstance(value, list) else []
    return [
        (str(row[0]), row[1], row[2] is True)
        for row in rows
        if isinstance(row, list) and len(row) == 3 and type(row[1]) is int and row[1] >= 0
    ]


def _time(value: Any) -> datetime | None:
    try:
        return datetime.strptime(str(value), "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc)
    except ValueError:
        return None


def new_run_id() -> str:
    """Return an id for a run."""
    return secrets.token_hex(6)


async def submit_run(
    session: Session,
    notebook: Json,
    queue: Sequence[tuple[str, int, bool]],
    sink: Sink,
    *,
    run_id: str,
    name: str,
    notebook_id: str,
    number: int = 0,
    ends_agent: bool,
    about: Json | None = None,
) -> RunRecord:
    """Hand a notebook's cells to the agent, which runs them from now on; return its record.

    Sees first that sandbox, route and variables are there, as before a cell.

    Parameters
    ----------
    session
        The session in whose agent the cells run, after what runs there.
    notebook
        The notebook (JSON of format 4).
    queue
        The cells: id, position in the notebook, whether the run goes on after an error.
    sink
        Shows the start of a sandbox.
    run_id, name, notebook_id
        The ids of run and notebook, and a name for people.
    number
        The number of the notebook's cell before the first.
    ends_agent
        Whether the agent is there for this run alone, and ends soon after it.
    about
        What the record is to say beside.

    Raises
    ------
    RouteError
        No agent can live in this sandbox.
    WorkError
        The agent refuses the run; says why.
    IvyError
        It could not be asked.
    """
    route = await session.open_for(Cell(""), sink)
    facts = session.describe()
    if session.live is None:
        raise RouteError(
            f"A notebook runs on without this machine on the agent route alone, and the route of "
            f"this sandbox is {facts.get('route')}; jupyter ivy doctor says why. Nothing was run."
        )
    with suppress(WorkError):  # a kernel that keeps no checkpoints runs cells all the same
        await session.live.configure()
    await session.open_for(Cell(""), sink)  # tells a loss that opening the route has shown
    directory = f"{STATE_DIRECTORY}/{notebook_id}"
    told = await session.live.queue(
        {
            "queue": {
                "id": run_id,
                "name": name,
                "directory": directory,
                "notebook": notebook,
                "cells": [list(one) for one in queue],
                "number": number,
                "ends_agent": ends_agent,
                "about": {"tool": facts.get("call_tool", ""), **(about or {})},
            }
        }
    )
    record = read_record(told, f"{directory}/runs/{run_id}")
    session.holds(route.holder)
    if record is None:
        raise AnswerError("The agent in the sandbox took the run, and its answer cannot be read.")
    return record


class SandboxRuns:
    """The runs in one sandbox.

    Parameters
    ----------
    files
        The sandbox's files.
    tools
        Its tools.
    """

    def __init__(self, files: SandboxFiles, tools: SandboxTools) -> None:
        self._files = files
        self._tools = tools

    async def list(self) -> list[RunRecord]:
        """Return all runs, the newest first; one whose agent is gone is ``stopped``.

        Raises
        ------
        NoSandboxError
            When there is no sandbox to look into; none is started.
        """
        try:
            found = await self._files.glob(f"{STATE_DIRECTORY}/*/runs/*/run.json")
        except NoSuchFileError:
            return []
        files = [entry for entry in found.entries if entry.kind == "file"]
        files.sort(key=lambda entry: entry.modified_seconds or 0.0, reverse=True)
        gate = asyncio.Semaphore(READS_AT_ONCE)

        async def one(path: str) -> RunRecord | None:
            async with gate:
                record = await self._read(path)
                if record is None:
                    return None
                try:
                    return await self.current(record)
                except (ApiError, NetworkError):  # one agent that cannot be asked hides no others
                    return record

        records = await asyncio.gather(*(one(entry.path) for entry in files[:RUNS_LIMIT]))
        known = [record for record in records if record is not None]
        oldest = datetime.min.replace(tzinfo=timezone.utc)
        return sorted(known, key=lambda record: record.started or oldest, reverse=True)

    async def find(self, start: str) -> RunRecord:
        """Return the run whose id begins so.

        Raises
        ------
        UsageError
            When none does, or several do.
        """
        records = await self.list()
        found = [record for record in records if record.run_id.startswith(start)]
        exact = [record for record in found if record.run_id == start]
        if len(exact or found) == 1:
            return (exact or found)[0]
        there = ", ".join(record.run_id for record in (found or records)) or "none"
        what = "There is no run" if not found else "There are several runs whose id begins with"
        raise UsageError(
            f"{what} {visible(start)!r} in {self._files.lifecycle.name}; runs: {there}."
        )

    async def current(self, record: RunRecord) -> RunRecord:
        """Return how a run stands now: its agent tells, or is gone."""
        if record.state != "running":
            return record
        told = await self._asked(record, {"look": record.run_id})
        if told is not None:
            return told
        # It may have ended, and its agent with it, since the record was read.
        again = await self._read(f"{record.directory}/run.json") or record
        if again.state != "running":
            return again
        when = f"during {again.place_words}" if again.is_under_way else f"after {again.place_words}"
        why = f"the sandbox (or its agent) ended {when}"
        return replace(again, state="stopped", error=why)

    async def notebook(self, record: RunRecord) -> Json:
        """Return a run's notebook with the outputs so far.

        Raises
        ------
        SandboxFileError
            When the file is not there, or no notebook.
        """
        data = await self._files.read(
            f"{record.directory}/notebook.ipynb", limit_bytes=NOTEBOOK_LIMIT_BYTES
        )
        try:
            notebook = json.loads(data)
        except (ValueError, RecursionError):
            notebook = None
        cells = notebook.get("cells") if isinstance(notebook, dict) else None
        is_whole = isinstance(cells, list) and all(isinstance(cell, dict) for cell in cells)
        if notebook is None or not is_whole or notebook.get("nbformat") != 4:
            raise SandboxFileError(
                f"{record.directory}/notebook.ipynb in the sandbox is no notebook of format 4."
            )
        return cast("Json", notebook)

    async def cancel(self, record: RunRecord) -> RunRecord:
        """Interrupt a run's cell and have no later one begin; return how it stands then."""
        record = await self.current(record)
        if record.state != "running":
            return record
        await self._asked(record, {"cancel": record.run_id})
        loop = asyncio.get_running_loop()
        deadline = loop.time() + CANCEL_SECONDS
        while record.state == "running" and loop.time() < deadline:
            await asyncio.sleep(LOOK_SECONDS)
            record = await self.current(record)
        return record

    async def _read(self, path: str) -> RunRecord | None:
        try:
            data = await self._files.read(path, limit_bytes=RECORD_LIMIT_BYTES)
            return read_record(json.loads(data), path.rpartition("/")[0])
        except (SandboxFileError, ValueError, RecursionError):
            return None

    async def _asked(self, record: RunRecord, request: Json) -> RunRecord | None:
        """What the run's agent answers; ``None`` where it is gone.

        Raises
        ------
        IvyError
            When that cannot be found out.
        """

        async def call(tool: str, code: str, timeout_seconds: float) -> object:
            return await self._tools.run(tool, code, timeout_seconds)

        if not record.agent_directory.startswith("/"):
            return None
        caller = ToolCaller(call, record.tool, record.agent_directory, Counters())
        question: Json = {"v": PROTOCOL_VERSION, "nonce": record.agent_nonce, "run": request}
        try:
            response = await caller.ask(question)
            if response.header.get("error") in ("nonce", "version"):
                return None  # another agent is there
            return read_record(run_record(response), record.directory)
        except (NoAgentError, WorkError):
            return None
        except (AgentUnresponsiveError, TruncatedError) as error:
            raise AnswerError(
                f"The agent of run {record.run_id} does not answer: {error}"
            ) from error


def remaining(record: RunRecord, saved: int, *, rerun: bool) -> list[tuple[str, int, bool]]:
    """Return the cells that a run which is over has left.

    Parameters
    ----------
    record
        The run.
    saved
        The number of the cell after which the variables were saved that are there now.
    rerun
        Whether cells may run again that have run since, or may have.

    Raises
    ------
    UsageError
        When some would, and may not: names them. Or none is left.
    """
    done = saved - record.number
    if not 0 <= done <= record.cells:
        raise UsageError(
            f"The variables that are saved are those after cell {saved}, which is none of run "
            f"{record.run_id}; run the notebook again."
        )
    again = list(range(done + 1, record.cell + 1))
    if again and not rerun:
        known = [f"cell {place}" for place in again if place < record.cell]
        if record.is_under_way:
            known.append(f"cell {record.cell}, which was under way and may have run in part")
        elif record.cell > done:
            known.append(f"cell {record.cell}")
        raise UsageError(
            f"To go on from the variables that are saved (after cell {done} of {record.cells}), "
            f"{', '.join(known)} must run again; --rerun does that. Nothing was run."
        )
    if done == record.cells:
        raise UsageError(f"Run {record.run_id} has no cell left to run.")
    return list(record.queue[done:])
