"""Applies requests to the kernel and answers them; knows nothing of sockets."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from typing import Any

from . import PROTOCOL_VERSION
from .inflight import InFlightRequests, SubmissionSequence, TakenOverError
from .kernel_process import KernelProcess
from .message_log import (
    KEPT_BYTES,
    CellIndex,
    LongPoll,
    LongPolls,
    MessageLog,
    MessageRecorder,
)
from .meters import Meters
from .queue import CellQueue
from .retained_log import DiskLog, output_directory
from .supervisor import KernelSupervisor
from .wire import (
    SLICE_LIMIT_BYTES,
    FragmentReassembly,
    WireError,
    read_request,
    to_json,
    write_answer,
)

QUIET_TYPES = ("status", "execute_input")
"""Messages that are no reason to answer a poll."""

LAST_TYPES = ("execute_result", "error")
"""Output that is most often the last of its cell."""

END_BATCHING_SECONDS = 0.02
"""The least batching delay while a cell's end seems near: both then travel in one call."""

INTERRUPTIBLE_TYPES = ("execute_request", "comm_open", "comm_msg", "comm_close")
"""Requests that run the user's code: cells, and the callbacks of widgets."""

LOG_LIMIT_BYTES = 64 << 20
HOLD_BYTES = 4 << 20
"""While so much is not fetched by a client that listens, the kernel is held up."""

CLIENT_PRESENT_SECONDS = 15.0
"""After its last request a client is thought to listen for so long."""


class Connection:
    """The other side of one request. Implemented by the daemon."""

    def answer(self, frame: bytes) -> bool:
        """Send a framed answer; false when the other side is gone."""
        raise NotImplementedError


class Service:
    """One kernel at a time, its message log, and the one client that may speak.

    Parameters
    ----------
    directory
        The private directory.
    options
        ``working_directory``, ``kernel`` (``auto``, ``ipykernel`` or ``shell``),
        ``log_limit_bytes``, and ``notebook``: the name under which its outputs are kept on the
        disk; empty for not at all.
    clock
        A monotonic clock.
    """

    def __init__(self, directory: str, options: dict[str, Any], clock: Callable[[], float]) -> None:
        self.nonce = os.urandom(8).hex()
        self.is_stopping = False
        self.request_count = 0
        self.last_request_at = clock()
        self._clock = clock
        limit_bytes = int(options.get("log_limit_bytes", LOG_LIMIT_BYTES))
        self._log = MessageLog(limit_bytes, KEPT_BYTES)
        self._cells = CellIndex(self._log, self.nonce)
        working_directory = str(options.get("working_directory", ""))
        outputs = output_directory(working_directory, str(options.get("notebook", "")))
        if outputs is not None:
            self._log.store = DiskLog(outputs, self.nonce, 0)
        self._hold_bytes = min(HOLD_BYTES, limit_bytes // 4)
        self._recorder = MessageRecorder(self._log)
        self._polls = LongPolls(self._log, self._answer_poll)
        self._submissions = SubmissionSequence()
        self._requests = InFlightRequests()
        self._fragments = FragmentReassembly()
        self._meters = Meters(working_directory)
        self.queue = CellQueue(
            working_directory,
            {"directory": directory, "nonce": self.nonce},
            self._send_cell,
            lambda message_id, send: self.supervisor.submit(message_id, send),
            lambda target, i: self._requests.interrupt({"id": i, "target": target}, self._clock()),
        )
        self.supervisor = KernelSupervisor(
            directory,
            options,
            self._requests,
            self.on_message,
            self._on_probed,
            self._record_event,
            clock(),
        )

    @property
    def is_busy(self) -> bool:
        """Whether a request is being worked on or about to be."""
        is_working = len(self._requests) > 0 or self.queue.is_running
        return is_working or self._submissions.is_holding

    # -- requests

    def handle(self, connection: Connection, payload: bytes) -> None:
        """Take one request from the socket, whole or a fragment."""
        try:
            if payload.startswith(b"F:"):
                whole = self._fragments.add(payload)
                if whole is None:
                    self._reply(connection, {"fragment": True})
                    return
                payload = whole
            request = read_request(payload)
            self.request_count += 1
            self.last_request_at = self._clock()
            self._apply(connection, request)
        except TakenOverError:
            self._reply(connection, {"error": "taken over"})
        except (WireError, KeyError, TypeError, ValueError) as error:
            self._reply(connection, {"error": "unreadable", "why": repr(error)})

    def _apply(self, connection: Connection, request: dict[str, Any]) -> None:
        now = self._clock()
        if request.get("v") != PROTOCOL_VERSION:
            self._reply(connection, {"error": "version"})
            return
        if "attach" in request:
            self._reply(connection, self._attach(str(request["attach"]), now))
            return
        # Everything that follows was meant for one agent: its offsets, numbers and kernel. Another
        # one that was started in the same directory meanwhile must not act on it.
        if request.get("nonce") != self.nonce:
            self._reply(connection, {"error": "nonce"})
            return
        # About a run anyone may ask who reaches the socket: that takes nothing over.
        if "session" in request or "run" not in request:
            self._submissions.check(int(request.get("session", 0)))
        # Submissions first: an interrupt in the same call may be aimed at one of them.
        for submission in self._submissions.take(request.get("submit", ())):
            self._submit(submission, now)
        extra: dict[str, Any] = {}
        if "run" in request:
            extra["run"] = self.queue.answer(request["run"], self.supervisor.generation, now)
        if "interrupt" in request:
            extra["interrupt"] = self._requests.interrupt(request["interrupt"], now)
        self.is_stopping = self.is_stopping or bool(request.get("shutdown"))
        if request.get("cells"):
            extra["cells"] = self._cells.newest()
        if "read" in request:
            offset, limit = request["read"]
            self._answer_read(connection, extra, int(offset), int(limit), request)
            return
        poll_options = request.get("poll")
        if poll_options is None or self.is_stopping:
            self._reply(connection, extra)
        else:
            self._polls.park(LongPoll(connection, poll_options, now), now)

    def _attach(self, token: str, now: float) -> dict[str, Any]:
        before = self._submissions.client_number
        client_number = self._submissions.attach(token)
        self._meters.forget_told()
        if client_number != before:
            # The parked polls are the earlier client's, whose next request hears "taken over".
            self._polls.answer_all(now)
        return {"attached": client_number, "base": self._log.base, "under_way": self._requests.ids}

    def _submit(self, submission: dict[str, Any], now: float) -> None:
        if "do" in submission:
            if submission["do"] == "restart":
                self.supervisor.restart(str(submission.get("id")), now)
            return  # anything else is a submission that was taken back, and keeps its number
        header = submission["h"]
        message_id, msg_type = str(header["msg_id"]), str(header["msg_type"])
        if submission.get("g", self.supervisor.generation) != self.supervisor.generation:
            # Meant for a kernel that has ended, whose variables it would not find in this one.
            self._record_event("refused", id=message_id)
            return
        # An input_reply has neither reply nor "idle" of its own: nothing would ever end it.
        if submission["c"] != "stdin":
            self._requests.add(message_id, msg_type, now, channel=str(submission["c"]))
        if msg_type == "execute_request":
            self._cells.began(message_id, submission.get("m"))
        parts = [to_json(submission.get(name, {})) for name in ("h", "p", "m", "d")]
        buffers = [base64.b64decode(text) for text in submission.get("b", ())]

        def send(kernel: KernelProcess) -> None:
            kernel.send(str(submission["c"]), parts, buffers)

        if not self.queue.hold(message_id, msg_type, send):
            self.supervisor.submit(message_id, send)

    def _send_cell(
        self, message_id: str, content: dict[str, Any], metadata: dict[str, Any]
    ) -> None:
        """Submit a cell of the queue, as a client submits its own."""
        now = datetime.now(timezone.utc).isoformat()
        header = {"msg_id": message_id, "msg_type": "execute_request", "username": "ivy"}
        header.update(session="ivy", date=now, version="5.3")
        self._submit({"c": "shell", "h": header, "d": content, "m": metadata}, self._clock())

    # -- answers

    def _header(self) -> dict[str, Any]:
        return {
            "nonce": self.nonce,
            "generation": self.supervisor.generation,
            "acknowledged": self._submissions.applied,
            "end": self._log.end,
            "pending": len(self._requests),
            "parked": len(self._polls),
        }

    def _reply(self, connection: Connection, extra: dict[str, Any]) -> None:
        header = self._header()
        header.update(extra)
        frame, _ = write_answer(header)
        connection.answer(frame)

    def _answer_poll(self, poll: LongPoll, offset: int, data: bytes) -> int:
        header = self._header()
        header["offset"] = offset
        # Looked for only where it matters: while a request is under way there are polls anyway.
        header["background"] = 0 if self.is_busy else self.supervisor.count_background()
        now = self._clock()
        header["parked_seconds"] = round(now - poll.arrived, 3)
        resources = self._meters.news(now, self.supervisor.kernel_pid)
        if resources is not None:
            header["resources"] = resources
        connection: Connection = poll.connection
        frame, taken = write_answer(
            header, data, limit_chars=poll.limit_chars, may_be_plain=poll.may_be_plain
        )
        return taken if connection.answer(frame) else 0

    def _answer_read(
        self,
        connection: Connection,
        header: dict[str, Any],
        offset: int,
        limit_bytes: int,
        request: dict[str, Any],
    ) -> None:
        """Answer with a slice of what is kept; it acknowledges nothing, and no poll loses it."""
        limit_bytes = max(1, min(limit_bytes, SLICE_LIMIT_BYTES))
        header["offset"], data = self._log.read_kept(max(0, offset), limit_bytes)
        header.update(self._header())
        frame, _ = write_answer(
            header,
            data,
            limit_chars=int(request.get("limit", 1 << 20)),
            may_be_plain=bool(request.get("plain")),
        )
        connection.answer(frame)

    def drop(self, connection: Connection) -> None:
        """Forget the poll of a connection that its other side has closed."""
        self._polls.drop(connection)

    # -- the kernel's messages

    def on_message(
        self,
        channel: str,
        header: bytes,
        parent: bytes,
        metadata: bytes,
        content: bytes,
        buffers: Sequence[Any],
    ) -> None:
        """Record one message of the kernel, and have the polls answered that wait for it."""
        now = self._clock()
        msg_type = str(json.loads(header.decode("utf-8")).get("msg_type", ""))
        parent_header = json.loads(parent.decode("utf-8"))
        # Before anything else: whatever an answer says of requests, their messages are in the log.
        self._recorder.record(channel, msg_type, (header, parent, metadata, content), buffers)
        ended = False
        parent_id = str(parent_header.get("msg_id", ""))
        is_queued = parent_id != "" and parent_id == self.queue.current
        if is_queued:
            self.queue.take(channel, (header, metadata, content), buffers)
        if channel == "iopub":
            self._requests.heard(parent_id, now)
            self._cells.heard(parent_id)
        if msg_type == "status":
            ended = self._on_status(parent_header, json.loads(content.decode("utf-8")), now)
        if channel in ("shell", "control"):
            ended = self._requests.replied(parent_id)
            self._cells.replied(parent_id, content)
        if ended:
            self._cells.ended(parent_id)
            if is_queued:
                self.queue.cell_ended()
        if ended or msg_type == "input_request":
            self._polls.notify(now, at_once=True)
        elif msg_type not in QUIET_TYPES and channel not in ("shell", "control"):
            ends_soon = msg_type in LAST_TYPES or self._requests.has_just_begun(now)
            self._polls.notify(now, least_delay=END_BATCHING_SECONDS if ends_soon else 0.0)

    def _on_status(self, parent: dict[str, Any], content: dict[str, Any], now: float) -> bool:
        execution_state, message_id = content.get("execution_state"), str(parent.get("msg_id", ""))
        # Requests on the control channel are busy and idle beside a cell that is running: only
        # what runs the user's code makes the kernel busy.
        if execution_state == "busy" and parent.get("msg_type") in INTERRUPTIBLE_TYPES:
            self.supervisor.state = "busy"
            self._requests.busy(message_id, now)
        elif execution_state == "idle":
            if message_id == self._requests.current:
                self.supervisor.state = "idle"
            return self._requests.idle(message_id, now)
        return False

    def _on_probed(self, is_running: bool) -> None:
        """Take the kernel's answer to a probe."""
        self._requests.probe_answered(self._clock(), is_running=is_running)
        if not self._requests.current and self.supervisor.state == "busy":
            self.supervisor.state = "idle"

    def _record_event(self, name: str, **details: Any) -> None:
        self.queue.on_event(name, details)
        if name == "died":
            details.update(self._meters.of_death(self._clock()))
        self._recorder.record_event(name, generation=self.supervisor.generation, **details)
        for message_id in details.get("lost", ()):
            self._cells.ended(message_id, "lost")
        if name == "unanswered":
            self._cells.ended(details["id"], "unknown")
        # A ready kernel is no news to a waiting cell, whose own messages say so: it saves a call.
        is_news = name != "ready" or (len(self._polls) > 0 and not self.is_busy)
        if is_news:
            self._polls.notify(self._clock(), at_once=True)

    def _may_read_output(self, now: float) -> bool:
        """Whether to read what the kernel publishes; if not, it is held up until it is fetched.

        Without a client that listens it goes on, and what does not fit into the log is dropped. So
        does a request that was interrupted, which has to come to its end.
        """
        if self._polls.unread_bytes <= self._hold_bytes or self._requests.is_ending:
            return True
        return not self._polls and now - self.last_request_at > CLIENT_PRESENT_SECONDS

    # -- the clock

    def next_time(self) -> float | None:
        """Return when :meth:`tick` has something to do next, on the monotonic clock."""
        times = [
            self._polls.next_time(running=self.is_busy),
            self._requests.signal_at,
            self._requests.probe_at,
            self.supervisor.next_time(),
            self.queue.next_time(),
        ]
        known = [time for time in times if time is not None]
        return min(known) if known else None

    def tick(self) -> None:
        """Do what is due. Called by the daemon after every turn of its loop."""
        now = self._clock()
        # The kernel's messages come first: they may end the request that would be signalled, and
        # they are what the polls are answered with.
        may_read_output = self._may_read_output(now)
        self.supervisor.run(now, may_read_output=may_read_output)
        # What is missing may be among what has not been read.
        if may_read_output and not self.supervisor.has_more:
            for message_id in self._requests.take_unanswered(now):
                self._record_event("unanswered", id=message_id)
        if self._requests.take_probe(now, {**self.supervisor.waiting, **self.queue.held}):
            self.supervisor.probe()
        if self._requests.take_signal(now, is_ignored=self.supervisor.ignores_interrupts):
            self.supervisor.interrupt()
        self.queue.tick(now)
        # After the supervisor: a look at what a kernel that has just ended left would be too late.
        if self._meters.look(now, self.supervisor.kernel_pid) and self.is_busy:
            self._record_event("memory")  # whose answer tells how full it is
        self._polls.run(now, running=self.is_busy)
        self._cells.flush_due(now, is_busy=self.is_busy)

    def stop(self, wait: Callable[[float], None]) -> None:
        """Answer every parked poll and end the kernel. Called by the daemon at its end."""
        self.queue.stop()
        self._polls.answer_all(self._clock())
        self.supervisor.stop(self._clock, wait)
        if self._log.store is not None:
            self._log.store.close()
