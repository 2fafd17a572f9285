"""What a request means, and what a kernel's message means. Knows nothing of sockets."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Sequence
from typing import Any

from . import PROTOCOL_VERSION
from .inflight import Flights, Ledger, TakenOverError
from .kernel import Kernel
from .message_log import MessageLog, Recorder
from .polls import Poll, Polls
from .supervisor import Keeper
from .wire import Uploads, WireError, read_request, to_json, write_answer

QUIET_TYPES = ("status", "execute_input")
"""Messages that nobody is woken for."""

LAST_TYPES = ("execute_result", "error")
"""Output that is most often the last of its cell."""

END_GRACE_SECONDS = 0.02
"""How long output waits at least for a cell's end that seems near: together they are one call."""

INTERRUPTIBLE_TYPES = ("execute_request", "comm_open", "comm_msg", "comm_close")
"""Requests that run the user's code: cells, and the callbacks of widgets."""

LOG_LIMIT_BYTES = 64 << 20


class Connection:
    """Where an answer goes. Implemented by the daemon."""

    def answer(self, frame: bytes) -> bool:
        """Send a framed answer; false when nobody is there any more."""
        raise NotImplementedError


class Service:
    """One kernel at a time, its message log, and the one client that may speak.

    Parameters
    ----------
    directory
        The private directory.
    options
        ``working_directory``, ``kernel`` (``auto``, ``ipykernel`` or ``shell``) and
        ``log_limit_bytes``.
    clock
        A monotonic clock.
    """

    def __init__(self, directory: str, options: dict[str, Any], clock: Callable[[], float]) -> None:
        self.nonce = os.urandom(8).hex()
        self.is_stopping = False
        self.contacts = 0
        self.last_contact = clock()
        self._clock = clock
        self._log = MessageLog(int(options.get("log_limit_bytes", LOG_LIMIT_BYTES)))
        self._recorder = Recorder(self._log)
        self._polls = Polls(self._log, self._answer_poll)
        self._ledger = Ledger()
        self._flights = Flights()
        self._uploads = Uploads()
        self._comms: set[str] = set()
        self.keeper = Keeper(
            directory, options, self._flights, self.on_message, self._event, clock()
        )

    @property
    def is_busy(self) -> bool:
        """Whether a request is being worked on or about to be."""
        return len(self._flights) > 0 or self._ledger.is_holding

    # -- requests

    def handle(self, connection: Connection, payload: bytes) -> None:
        """Take one request from the socket, whole or a fragment."""
        try:
            if payload.startswith(b"F:"):
                whole = self._uploads.add(payload)
                if whole is None:
                    self._reply(connection, {"fragment": True})
                    return
                payload = whole
            request = read_request(payload)
            self.contacts += 1
            self.last_contact = self._clock()
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
        if request.get("nonce") != self.nonce:
            self._reply(connection, {"error": "nonce"})
            return
        self._ledger.check(int(request.get("session", 0)))
        for submission in self._ledger.take(request.get("submit", ())):
            self._submit(submission, now)
        extra = {}
        if "interrupt" in request:
            extra["interrupt"] = self._flights.interrupt(request["interrupt"], now)
        self.is_stopping = self.is_stopping or bool(request.get("shutdown"))
        wish = request.get("poll")
        if wish is None or self.is_stopping:
            self._reply(connection, extra)
        else:
            self._polls.park(Poll(connection, wish, now), wish, now)

    def _attach(self, token: str, now: float) -> dict[str, Any]:
        before = self._ledger.session
        session = self._ledger.attach(token)
        if session != before:
            self._polls.release(now)
        return {"attached": session, "base": self._log.base, "under_way": self._flights.ids}

    def _submit(self, submission: dict[str, Any], now: float) -> None:
        if "do" in submission:
            if submission["do"] == "restart":
                self.keeper.restart(str(submission.get("id")), now)
            return  # whatever else it says is a submission that was taken back
        header, content = submission["h"], submission["d"]
        message_id, msg_type = str(header["msg_id"]), str(header["msg_type"])
        if submission.get("g", self.keeper.generation) != self.keeper.generation:
            self._event("refused", id=message_id)
            return
        if submission["c"] != "stdin":
            self._flights.start(message_id, msg_type)
        self._follow_comm(msg_type, content)
        parts = [to_json(submission.get(name, {})) for name in ("h", "p", "m", "d")]
        buffers = [base64.b64decode(text) for text in submission.get("b", ())]

        def send(kernel: Kernel) -> None:
            kernel.send(str(submission["c"]), parts, buffers)

        self.keeper.submit(message_id, send)

    # -- answers

    def _header(self) -> dict[str, Any]:
        return {
            "v": PROTOCOL_VERSION,
            "nonce": self.nonce,
            "generation": self.keeper.generation,
            "session": self._ledger.session,
            "acknowledged": self._ledger.applied,
            "end": self._log.end,
            "state": self.keeper.state,
            "running": self._flights.current,
            "pending": len(self._flights),
            "parked": len(self._polls),
            "comms": len(self._comms),
            "threads": self.keeper.more_threads,
        }

    def _reply(self, connection: Connection, extra: dict[str, Any]) -> None:
        header = self._header()
        header.update(extra)
        frame, _ = write_answer(header)
        connection.answer(frame)

    def _answer_poll(self, poll: Poll, offset: int, data: bytes) -> int:
        header = self._header()
        header["offset"] = offset
        header["parked_seconds"] = round(self._clock() - poll.arrived, 3)
        connection: Connection = poll.connection
        frame, taken = write_answer(
            header, data, limit_chars=poll.limit_chars, may_be_plain=poll.may_be_plain
        )
        return taken if connection.answer(frame) else 0

    def drop(self, connection: Connection) -> None:
        """A connection has been closed by its other side."""
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
        """Record one message of the kernel, and wake who waits for it."""
        now = self._clock()
        msg_type = str(json.loads(header.decode("utf-8")).get("msg_type", ""))
        parent_header = json.loads(parent.decode("utf-8"))
        self._recorder.message(channel, msg_type, (header, parent, metadata, content), buffers)
        ended = False
        if msg_type == "status":
            ended = self._on_status(parent_header, json.loads(content.decode("utf-8")), now)
        elif msg_type.startswith("comm_"):
            self._follow_comm(msg_type, json.loads(content.decode("utf-8")))
        if channel in ("shell", "control"):
            ended = self._flights.replied(str(parent_header.get("msg_id", "")))
        if ended or msg_type == "input_request":
            self._polls.speak(now, at_once=True)
        elif msg_type not in QUIET_TYPES and channel not in ("shell", "control"):
            ends_soon = msg_type in LAST_TYPES or self._flights.has_just_begun(now)
            self._polls.speak(now, least_grace=END_GRACE_SECONDS if ends_soon else 0.0)

    def _on_status(self, parent: dict[str, Any], content: dict[str, Any], now: float) -> bool:
        execution_state, message_id = content.get("execution_state"), str(parent.get("msg_id", ""))
        if execution_state == "busy" and parent.get("msg_type") in INTERRUPTIBLE_TYPES:
            self.keeper.state = "busy"
            self._flights.busy(message_id, now)
        elif execution_state == "idle":
            if message_id == self._flights.current:
                self.keeper.state = "idle"
            return self._flights.idle(message_id, now)
        return False

    def _follow_comm(self, msg_type: str, content: dict[str, Any]) -> None:
        if msg_type == "comm_open":
            self._comms.add(str(content.get("comm_id")))
        elif msg_type == "comm_close":
            self._comms.discard(str(content.get("comm_id")))

    def _event(self, name: str, **details: Any) -> None:
        if name in ("died", "restarted"):
            self._comms.clear()
        self._recorder.event(name, generation=self.keeper.generation, **details)
        is_news = name != "ready" or (len(self._polls) > 0 and not self.is_busy)
        if is_news:  # that the kernel is ready is none to a cell, which will say so itself
            self._polls.speak(self._clock(), at_once=True)

    # -- the clock

    def next_time(self) -> float | None:
        """When :meth:`tick` has something to do next, on the monotonic clock."""
        times = [
            self._polls.next_time(running=self.is_busy),
            self._flights.signal_at,
            self.keeper.next_time(),
        ]
        known = [time for time in times if time is not None]
        return min(known) if known else None

    def tick(self) -> None:
        """Do what is due. Called by the daemon after every turn of its loop."""
        now = self._clock()
        self.keeper.run(now)
        for message_id in self._flights.unanswered(now):
            self._event("unanswered", id=message_id)
        if self._flights.take_signal(now, is_ignored=self.keeper.ignores_interrupts):
            self.keeper.interrupt()
        self._polls.run(now, running=self.is_busy)

    def stop(self, wait: Callable[[float], None]) -> None:
        """Answer everyone and end the kernel. Called by the daemon at its end."""
        self._polls.release(self._clock())
        self.keeper.stop(self._clock, wait)
