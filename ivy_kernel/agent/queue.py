"""The queue of cells that runs in the agent alone: one run at a time, each cell exactly once."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import PROTOCOL_VERSION
from .outputs import NotebookFile, replace_file

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .kernel_process import KernelProcess

    Handed = Callable[[KernelProcess], None]

WRITE_SECONDS = 1.0  # while a cell streams, the notebook is written so often at most,
WRITE_SHARE = 10.0  # and after so many times the last writing's time: the agent has one thread
RETRY_SECONDS = 5.0  # after a file could not be written, as on a full disk
CANCEL_SECONDS = 10.0  # for the running cell to end after the interrupt of a cancelled run
LINGER_SECONDS = 60.0  # an agent that was started for one run ends so long after it
RUN_ID = re.compile(r"[0-9a-zA-Z-]{4,64}\Z")


class QueueError(Exception):
    """The request cannot be done; says why."""


class QueuedRun:
    """One run: its notebook with the outputs so far, its record, and their two files.

    Parameters
    ----------
    request
        ``id``, ``name``, ``notebook`` (JSON of format 4), ``directory`` (the state directory),
        ``cells`` (a list of ``[cell id, position in the notebook, allows_error]``), ``number`` (of
        the cell before the first), ``about`` (what the record says beside), ``ends_agent``.
    working_directory
        Where a relative directory begins.
    agent
        What the record says of the agent.
    """

    def __init__(
        self, request: dict[str, Any], working_directory: str, agent: dict[str, Any]
    ) -> None:
        self.id = str(request["id"])
        if not RUN_ID.match(self.id):
            raise QueueError(f"the run's id {self.id!r} cannot be a directory's name")
        self.cells = [(str(cell), int(at), bool(allows)) for cell, at, allows in request["cells"]]
        count = len(request["notebook"]["cells"])
        if not all(0 <= at < count for _, at, _ in self.cells):
            raise QueueError(f"a cell is not among the {count} of the notebook")
        self.ends_agent = bool(request.get("ends_agent"))
        self._number = int(request.get("number", 0))
        self._directory = Path(working_directory, str(request["directory"]), "runs", self.id)
        self.notebook = NotebookFile(request["notebook"], self._directory / "notebook.ipynb")
        self.reply: dict[str, Any] = {}
        self._receipt: dict[str, Any] = {}
        self.has_ended_cell = False
        self.record: dict[str, Any] = {
            "version": 1,
            "id": self.id,
            "name": str(request.get("name", "")),
            "state": "running",
            "cell": 0,
            "is_under_way": False,
            "cells": len(self.cells),
            "started": _now(),
            "ended": "",
            "error": "",
            "agent": agent,
            "about": request.get("about") or {},
            "queue": request["cells"],
            "number": self._number,
            "lock": {},
        }

    @property
    def message_id(self) -> str:
        """The message id of the cell that was sent last; its number counts from 0."""
        return f"{self.id}-{self.record['cell'] - 1}"

    @property
    def allows_error(self) -> bool:
        """Whether the run goes on after an error of the cell that was sent last."""
        place = int(self.record["cell"])
        return self.cells[place - 1][2]

    def create(self) -> None:
        """Make the run's directory, which must be new: an id is never run twice."""
        self._directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._directory.mkdir(mode=0o700)
        try:
            self.notebook.write()
            self.write_record()
        except BaseException:
            shutil.rmtree(str(self._directory), ignore_errors=True)  # so that it can be repeated
            raise

    def write_record(self) -> None:
        """Write ``run.json``; it is on the disk when this returns."""
        text = json.dumps(self.record, indent=1)
        replace_file(self._directory / "run.json", text.encode(), must_last=True)

    def begin_cell(self) -> tuple[str, dict[str, Any], dict[str, Any]]:
        """Go to the next cell; return its request: message id, content, metadata.

        Its number is on the disk when this returns.
        """
        cell_id, at, allows_error = self.cells[self.record["cell"]]
        self.record.update(cell=self.record["cell"] + 1, is_under_way=True)
        try:
            self.write_record()
        except OSError:
            self.record.update(cell=self.record["cell"] - 1, is_under_way=False)
            raise
        self.notebook.begin(at)
        self.reply, self._receipt, self.has_ended_cell = {}, {}, False
        code = self.notebook.source(at)
        content = {
            "code": code,
            "silent": False,
            "store_history": True,
            "user_expressions": {},
            "allow_stdin": False,
            "stop_on_error": not allows_error,
        }
        digest = hashlib.sha256(code.encode("utf-8", "surrogatepass")).hexdigest()
        number = self._number + self.record["cell"]
        metadata = {"ivy": {"cell": cell_id, "number": number, "code": digest}}
        return self.message_id, content, metadata

    def take_reply(self, content: dict[str, Any], metadata: dict[str, Any]) -> None:
        """Keep the reply of the cell that was sent last."""
        self.reply = content
        ivy = metadata.get("ivy") or {}
        self._receipt = ivy.get("receipt") or {}
        self.record["lock"] = ivy.get("lock") or self.record["lock"]
        if metadata.get("started"):
            self.notebook.note_time("shell.execute_reply.started", str(metadata["started"]))

    def end_cell(self) -> None:
        """Note that the cell which was sent last has ended: what it showed is whole."""
        self.record["is_under_way"] = False
        if self._receipt:
            self.notebook.note_receipt(self.message_id, self._receipt)


class CellQueue:
    """Runs the cells of a run one after the other, without any client.

    The next cell is sent when the one before has replied and the kernel is idle. A cell's number is
    on the disk before it is sent, so that nothing that begins after a kill sends it again. The
    cells of clients wait behind the run.

    Parameters
    ----------
    working_directory
        The kernel's.
    agent
        What a run's record says of the agent: where it is, and its nonce.
    send
        Sends a request to the kernel: message id, content, metadata.
    hand_over
        Hands a client's request to the kernel.
    interrupt
        Interrupts a request: its message id, and the interrupt's own id.
    """

    def __init__(
        self,
        working_directory: str,
        agent: dict[str, Any],
        send: Callable[[str, dict[str, Any], dict[str, Any]], None],
        hand_over: Callable[[str, Handed], None],
        interrupt: Callable[[str, str], object],
    ) -> None:
        self._working_directory = working_directory
        self._agent = dict(agent, protocol=PROTOCOL_VERSION, pid=os.getpid(), **_machine())
        self._send = send
        self._hand_over = hand_over
        self._interrupt = interrupt
        self._run: QueuedRun | None = None
        self.held: dict[str, Handed] = {}
        """The cells of clients that wait behind the run, by message id."""
        self._must_advance = False
        self._lost = ""
        self._cancel_at: float | None = None
        self._cancels = 0
        self._write_at: float | None = None
        self._written_seconds = 0.0
        self._is_unwritten = False

    @property
    def is_running(self) -> bool:
        """Whether a run is under way."""
        return self._run is not None and self._run.record["state"] == "running"

    @property
    def current(self) -> str:
        """The message id of the run's cell that was sent last; empty while no run is under way."""
        run = self._run
        return run.message_id if run is not None and self.is_running and run.record["cell"] else ""

    @property
    def lifetime_seconds(self) -> float:
        """How long the agent may live on without a request when nothing runs."""
        is_over = self._run is not None and self._run.ends_agent and not self.is_running
        return LINGER_SECONDS if is_over else float("inf")

    # -- requests

    def answer(self, request: dict[str, Any], generation: int, now: float) -> dict[str, Any]:
        """Do what a request's ``run`` asks: ``queue``, ``cancel`` or ``look``; return the record.

        Repeated, it does nothing again.
        """
        try:
            if "queue" in request:
                self._begin(request["queue"], int(request.get("g", generation)) == generation)
            elif self._run is None or self._run.id != request.get("cancel", request.get("look")):
                return {"error": "this agent has no such run"}
            elif "cancel" in request and self.is_running:
                self._cancels += 1
                self._cancel_at = self._cancel_at or now + CANCEL_SECONDS
                self._interrupt(self.current, f"{self.current}-{self._cancels}")
            run = self._run
            return dict(run.record, writes=run.notebook.writes) if run is not None else {}
        except (QueueError, OSError, LookupError, TypeError, ValueError) as error:
            return {"error": str(error) or repr(error)}

    def _begin(self, request: dict[str, Any], is_for_this_kernel: bool) -> None:
        if self._run is not None and self._run.id == request.get("id"):
            return
        if not is_for_this_kernel:
            raise QueueError("its kernel was replaced, and the variables with it")
        if self._run is not None and self.is_running:
            raise QueueError(f"the run {self._run.id} is under way here")
        run = QueuedRun(request, self._working_directory, self._agent)
        run.create()
        self._run, self._must_advance, self._cancel_at, self._lost = run, True, None, ""

    def hold(self, message_id: str, msg_type: str, send: Handed) -> bool:
        """Keep a client's cell until the run is over; return whether that was needed."""
        is_held = self.is_running and msg_type == "execute_request" and message_id != self.current
        if is_held:
            self.held[message_id] = send
        return is_held

    # -- what the kernel says

    def take(self, channel: str, parts: Sequence[bytes], buffers: Sequence[Any]) -> None:
        """Take a message of the run's cell: header, metadata, content as JSON bytes."""
        if self._run is None:
            return
        try:
            has_changed = _take(self._run, channel, parts, buffers)
        except (AttributeError, LookupError, TypeError, ValueError):
            return  # code in the sandbox can send messages of any shape
        if has_changed and self._write_at is None:
            pause_seconds = max(WRITE_SECONDS, WRITE_SHARE * self._written_seconds)
            self._write_at = time.monotonic() + pause_seconds

    def cell_ended(self) -> None:
        """Note that the run's cell has replied and the kernel is idle after it, or never will."""
        if self._run is not None:
            self._run.has_ended_cell = True
        self._must_advance = True

    def on_event(self, name: str, details: dict[str, Any]) -> None:
        """Take an event of the kernel's life: a run ends with its kernel."""
        lost = details.get("lost", ())
        for message_id in lost:
            self.held.pop(message_id, None)
        if not self.is_running:
            return
        if name == "unanswered" and details.get("id") == self.current:
            self.cell_ended()
        elif name == "restarted":
            self._lost = "the kernel was restarted"
        # One that never got ready has run nothing, and the next one takes its requests.
        elif name == "died" and (self.current in lost or not details.get("never_ready")):
            words = str(details.get("words", "")).strip().rpartition("\n")[2]
            said = f", saying: {words}" if words else ""
            self._lost = f"the kernel died (exit code {details.get('code')}){said}"
        self._must_advance = self._must_advance or bool(self._lost)

    # -- the clock

    def next_time(self) -> float | None:
        """Return when :meth:`tick` has something to do next, on the monotonic clock."""
        if self._must_advance and self.is_running:
            return 0.0
        known = [at for at in (self._write_at, self.is_running and self._cancel_at) if at]
        return min(known) if known else None

    def tick(self, now: float) -> None:
        """Do what is due: send the next cell, write the notebook, end the run."""
        run = self._run
        if run is None:
            return
        if self.is_running and self._must_advance:
            self._must_advance = False
            self._advance(run, now)
        elif self.is_running and self._cancel_at is not None and now >= self._cancel_at:
            self._end(
                run, "cancelled", f"cell {run.record['cell']} goes on after the interrupt", now
            )
        elif self._write_at is not None and now >= self._write_at:
            self._write(run, now)

    def _advance(self, run: QueuedRun, now: float) -> None:
        if run.has_ended_cell:
            self._write_at = None
            run.end_cell()
            self._keep(run.notebook.write, now)
        reply = run.reply
        if self._lost:
            if run.record["is_under_way"]:  # the notebook says it as well
                error = {"ename": "DeadKernelError", "evalue": self._lost, "traceback": []}
                run.notebook.take("error", error, {})
            self._end(run, "failed", self._lost, now)
        elif self._cancel_at is not None:
            self._end(run, "cancelled", "", now)
        elif run.has_ended_cell and not reply:
            self._end(run, "failed", "the kernel did not say how the cell ended", now)
        elif reply.get("status") == "error" and not run.allows_error:
            self._end(run, "failed", f"{reply.get('ename')}: {reply.get('evalue')}", now)
        elif run.record["cell"] == len(run.cells):
            self._end(run, "ended", "", now)
        else:
            self._send_next(run, now)

    def _send_next(self, run: QueuedRun, now: float) -> None:
        try:
            request = run.begin_cell()
        except OSError as error:  # without its number on the disk it could be sent twice
            self._end(run, "failed", f"the next cell was not sent: {error}", now)
            return
        self._send(*request)

    def _end(self, run: QueuedRun, state: str, error: str, now: float) -> None:
        run.record.update(state=state, error=error, ended=_now())
        self._write_at = self._cancel_at = None
        self._write(run, now)
        held, self.held = self.held, {}
        for message_id, send in held.items():
            self._hand_over(message_id, send)

    def _write(self, run: QueuedRun, now: float) -> None:
        self._write_at = None
        self._keep(run.notebook.write, now)
        if not self.is_running or self._is_unwritten:
            self._keep(run.write_record, now)

    def _keep(self, write: Callable[[], None], now: float) -> None:
        """Write one of the files; what cannot be written now is tried again later."""
        began = time.monotonic()
        try:
            write()
            self._is_unwritten = False
        except OSError:
            self._is_unwritten = True
            self._write_at = now + RETRY_SECONDS
        self._written_seconds = time.monotonic() - began

    def stop(self) -> None:
        """Write how far the run has come. Called at the agent's end."""
        self.held.clear()
        if self._run is not None and self.is_running:
            self._end(self._run, "stopped", "the agent was ended", time.monotonic())


def _take(run: QueuedRun, channel: str, parts: Sequence[bytes], buffers: Sequence[Any]) -> bool:
    header, metadata, content = (json.loads(part.decode("utf-8")) for part in parts)
    msg_type, date, notebook = header["msg_type"], str(header.get("date", "")), run.notebook
    if channel == "shell" and msg_type == "execute_reply":
        notebook.note_time("shell.execute_reply", date)
        run.take_reply(content, metadata)
    if channel != "iopub":
        return False
    if msg_type == "status":
        notebook.note_time(f"iopub.status.{content['execution_state']}", date)
        return False
    if msg_type.startswith("comm_"):
        notebook.take_comm(content, buffers)
        return False
    if msg_type == "execute_input":
        notebook.note_time("iopub.execute_input", date)
    return notebook.take(msg_type, content, metadata, len(parts[2]))


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _machine() -> dict[str, str]:
    """Return what tells this machine, and this boot of it, from others."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = ""
    return {"host": socket.gethostname(), "boot": boot}
