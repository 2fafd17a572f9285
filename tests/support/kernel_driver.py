"""Drives a real kernel as a front end does, and checks each message that it sends.

::

    with running_kernel(home, kernel_variables(server, "chat-1")) as kernel:
        cell = kernel.run("1 + 1")
        assert cell.result == "2"
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from queue import Empty
from typing import Any, TypeVar

from home import Home
from jupyter_client.manager import KernelManager
from jupyter_kernel_test.msgspec_v5 import validate_message

Json = dict[str, Any]

CELL_SECONDS = 40.0
REPLY_SECONDS = 30.0

_OUTPUTS = frozenset(
    {
        *("stream", "display_data", "update_display_data"),
        *("execute_result", "error", "clear_output"),
    }
)

_UNKNOWN_TO_THE_VALIDATOR = ("comm_", "debug_")


@dataclass
class CellRun:
    """The messages that a front end got about one cell.

    Parameters
    ----------
    reply
        The content of the ``execute_reply``.
    messages
        Its iopub messages, in order, from busy to idle.
    seconds
        From sending the request until reply and idle were there.
    """

    reply: Json
    messages: list[Json] = field(repr=False)
    seconds: float

    @property
    def outputs(self) -> list[Json]:
        """The output messages."""
        return [message for message in self.messages if message["msg_type"] in _OUTPUTS]

    @property
    def traceback(self) -> str:
        """The traceback of the reply, without colours."""
        return re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(self.reply["traceback"]))

    def text(self, name: str = "stdout") -> str:
        """All text of a stream."""
        return "".join(
            message["content"]["text"]
            for message in self.messages
            if message["msg_type"] == "stream" and message["content"]["name"] == name
        )

    def datas(self, msg_type: str) -> list[Json]:
        """The MIME bundles of all displays of a type."""
        return [m["content"]["data"] for m in self.messages if m["msg_type"] == msg_type]

    @property
    def result(self) -> str | None:
        """The text of the ``execute_result``; ``None`` when there was none."""
        datas = self.datas("execute_result")
        return str(datas[-1]["text/plain"]) if datas else None

    @property
    def error(self) -> Json | None:
        """The content of the error output; ``None`` when there was none. More than one is wrong."""
        errors = [m["content"] for m in self.messages if m["msg_type"] == "error"]
        assert len(errors) <= 1, errors
        return errors[0] if errors else None

    def shown(self) -> Json:
        """The parts that a user sees, for comparing cells."""
        return {
            "status": self.reply["status"],
            "stdout": self.text(),
            "stderr": self.text("stderr"),
            "result": self.result,
            "ename": (self.error or {}).get("ename"),
        }


class KernelDriver:
    """One kernel process and a front end's connection to it.

    Parameters
    ----------
    home
        The kernel's directories.
    variables
        Further variables of its environment.
    arguments
        Further arguments of its command line.
    kernel_name
        The kernelspec.
    """

    def __init__(
        self,
        home: Home,
        variables: Mapping[str, str] | None = None,
        arguments: list[str] | None = None,
        kernel_name: str = "ivy-sandbox",
    ) -> None:
        self.home = home
        self.variables = dict(variables or {})
        self._environment = home.environment(variables)
        self._arguments = list(arguments or [])
        self.manager = KernelManager(
            kernel_name=kernel_name,
            connection_file=str(home.runtime / f"kernel-{os.urandom(4).hex()}.json"),
        )
        self.log = home.path / "kernel.log"
        self._log_file = self.log.open("ab")

    def start(self) -> None:
        """Start the process and wait until it answers."""
        self.manager.start_kernel(
            env=self._environment,
            extra_arguments=self._arguments,
            cwd=str(self.home.work),
            stdout=self._log_file,  # open for as long as it may be started again
            stderr=self._log_file,
        )
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=30)

    @property
    def pid(self) -> int:
        """The kernel's process."""
        return int(self.manager.provisioner.pid)

    def restart(self) -> None:
        """Restart it as a front end does: a new process behind the same connection file."""
        self.manager.restart_kernel()
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        """Wait for replies and for outputs, which have a connection of their own.

        The latter may be there later, and what was said before that is lost.
        """
        self.client.wait_for_ready(timeout=30)
        deadline = time.monotonic() + 30.0
        while True:
            asked = self.client.kernel_info()
            assert time.monotonic() < deadline, "the kernel's outputs do not arrive"
            with contextlib.suppress(AssertionError):
                self.next_message(asked, time.monotonic() + 1.0)
                return

    def stop(self) -> float:
        """End it in order; return the seconds that took."""
        began = time.monotonic()
        if self.manager.has_kernel:
            self.manager.shutdown_kernel()
        took = time.monotonic() - began
        self.client.stop_channels()
        return took

    def kill(self) -> None:
        """End it at once, if it is still there."""
        if self.manager.has_kernel:
            self.manager.shutdown_kernel(now=True)
        with contextlib.suppress(AttributeError):
            self.client.stop_channels()
        self.manager.cleanup_resources()
        self._log_file.close()

    # Cells -------------------------------------------------------------------------------------

    def submit(self, code: str, **options: Any) -> str:
        """Send an ``execute_request``; return the message's id."""
        return str(
            self.client.execute(code, allow_stdin=options.pop("allow_stdin", False), **options)
        )

    def run(self, code: str, *, timeout_seconds: float = CELL_SECONDS, **options: Any) -> CellRun:
        """Run a cell to its end."""
        began = time.monotonic()
        message_id = self.submit(code, **options)
        return self.finish(message_id, began=began, timeout_seconds=timeout_seconds)

    def finish(
        self,
        message_id: str,
        *,
        began: float | None = None,
        timeout_seconds: float = CELL_SECONDS,
        earlier: list[Json] | None = None,
        beside: bool = False,
    ) -> CellRun:
        """Wait for a cell's idle and reply, and check that its messages came in the right order.

        Parameters
        ----------
        message_id
            The request.
        began
            When it was sent, or whatever `CellRun.seconds` shall count from.
        timeout_seconds
            The most that it may take.
        earlier
            Its messages that were taken already.
        beside
            Other requests were answered meanwhile, after which the cell's busy is told again.
        """
        began = time.monotonic() if began is None else began
        deadline = time.monotonic() + timeout_seconds
        messages = list(earlier or [])
        while not (messages and is_idle(messages[-1])):
            messages.append(self.next_message(message_id, deadline))
        reply = self.reply(message_id, max(1.0, deadline - time.monotonic()))
        assert reply["msg_type"] == "execute_reply", reply
        run = CellRun(reply["content"], messages, time.monotonic() - began)
        check_order(run, beside=beside)
        return run

    def until(
        self,
        message_id: str,
        condition: Callable[[Json], bool],
        timeout_seconds: float = CELL_SECONDS,
    ) -> list[Json]:
        """The messages of a cell up to the first that meets the condition."""
        deadline = time.monotonic() + timeout_seconds
        messages: list[Json] = []
        while not (messages and condition(messages[-1])):
            messages.append(self.next_message(message_id, deadline))
        return messages

    def next_message(self, message_id: str, deadline: float) -> Json:
        """The next iopub message of a cell, valid by the message spec."""
        while True:
            try:
                remaining = max(0.01, deadline - time.monotonic())
                message: Json = self.client.get_iopub_msg(timeout=remaining)
            except Empty:
                raise AssertionError(
                    f"no further message came; the kernel's log: {self.log.read_text()[-3000:]}"
                ) from None
            if message["parent_header"].get("msg_id") == message_id:
                if not message["msg_type"].startswith(_UNKNOWN_TO_THE_VALIDATOR):
                    validate_message(message, message["msg_type"], message_id)
                return message

    def reply(self, message_id: str, timeout_seconds: float = REPLY_SECONDS) -> Json:
        """The reply to a request on the shell channel; those to others are dropped."""
        deadline = time.monotonic() + timeout_seconds
        while True:
            try:
                remaining = max(0.01, deadline - time.monotonic())
                message: Json = self.client.get_shell_msg(timeout=remaining)
            except Empty:
                raise AssertionError(
                    f"no reply came; the kernel's log: {self.log.read_text()[-3000:]}"
                ) from None
            if message["parent_header"].get("msg_id") == message_id:
                if message["content"].get("status") != "aborted":  # the validator's word is "abort"
                    validate_message(message, message["msg_type"], message_id)
                return message

    def no_further_reply(self, seconds: float = 0.3) -> bool:
        """Whether nothing more comes on the shell channel."""
        try:
            self.client.get_shell_msg(timeout=seconds)
        except Empty:
            return True
        return False

    # Beside cells ------------------------------------------------------------------------------

    def interrupt(self) -> float:
        """Send an ``interrupt_request`` and wait for its reply; return the seconds that took."""
        began = time.monotonic()
        self.interrupt_replied(self.send_interrupt())
        return time.monotonic() - began

    def send_interrupt(self) -> str:
        """Send an ``interrupt_request``, from any thread; return the message's id."""
        message = self.client.session.msg("interrupt_request", {})
        self.client.control_channel.send(message)
        return str(message["header"]["msg_id"])

    def interrupt_replied(self, message_id: str) -> None:
        """Wait for the reply to an ``interrupt_request``."""
        reply = self.client.get_control_msg(timeout=REPLY_SECONDS)
        assert reply["parent_header"].get("msg_id") == message_id, reply
        assert reply["msg_type"] == "interrupt_reply", reply
        assert reply["content"]["status"] == "ok", reply["content"]

    def ask(self, name: str, *arguments: Any, **options: Any) -> Json:
        """The content of the reply to one of the client's other requests, such as ``complete``."""
        message_id = getattr(self.client, name)(*arguments, **options)
        return dict(self.reply(message_id)["content"])


def is_idle(message: Json) -> bool:
    """Whether a message tells that the kernel is idle."""
    return bool(message["msg_type"] == "status" and message["content"]["execution_state"] == "idle")


def check_order(run: CellRun, *, beside: bool = False) -> None:
    """Check the order busy, execute_input, outputs, idle, and that reply and outputs agree."""
    kinds = [message["msg_type"] for message in run.messages]
    states = [m["content"]["execution_state"] for m in run.messages if m["msg_type"] == "status"]
    assert states[0] == "busy", states
    assert states[-1] == "idle", states
    assert states.count("idle") == 1, states
    assert beside or states.count("busy") == 1, states
    assert kinds[0] == "status", kinds
    assert kinds.count("execute_input") <= 1, kinds
    if "execute_input" in kinds:
        assert all(kind == "status" for kind in kinds[: kinds.index("execute_input")]), kinds
    assert kinds[-1] == "status", kinds
    if run.reply["status"] == "error" and "execute_input" in kinds:
        assert run.error is not None, "an error reply without an error output"
        for name in ("ename", "evalue", "traceback"):
            assert run.error[name] == run.reply[name], name
    elif run.reply["status"] == "ok":
        assert run.error is None, "an error output with an ok reply"


Driver = TypeVar("Driver", bound=KernelDriver)


@contextlib.contextmanager
def running(kernel: Driver) -> Iterator[Driver]:
    """Start a kernel for the time of the ``with`` block."""
    try:
        kernel.start()
        yield kernel
        kernel.stop()
    finally:
        kernel.kill()


def running_kernel(
    home: Home, variables: Mapping[str, str] | None = None, arguments: list[str] | None = None
) -> contextlib.AbstractContextManager[KernelDriver]:
    """Start an "Ivy Sandbox" kernel for the time of the ``with`` block."""
    return running(KernelDriver(home, variables, arguments))


def sandbox_variables(server: Any, chat_id: str, **more: str) -> dict[str, str]:
    """Return the environment variables that name a chat of a test server.

    Parameters
    ----------
    server
        A `RunningSandbox`.
    chat_id
        The chat.
    more
        Further variables, by name.
    """
    return {
        "IVY_API_URL": server.url,
        "IVY_API_KEY": server.token,
        "IVY_CHAT_ID": chat_id,
        "IVY_CAMPAIGN_ID": f"campaign-of-{chat_id}",
        **more,
    }


def kernel_variables(server: Any, chat_id: str, **more: str) -> dict[str, str]:
    """Return `sandbox_variables` with a session; on the notebook route unless ``more`` says so."""
    session = {"IVY_SESSION_ID": f"session-of-{chat_id}", "IVY_ROUTE": "notebook"}
    return sandbox_variables(server, chat_id, **{**session, **more})


def agent_variables(server: Any, chat_id: str, **more: str) -> dict[str, str]:
    """Create a chat's sandbox, and return `kernel_variables` on the agent route."""
    server.ready(chat_id)
    return kernel_variables(server, chat_id, **{"IVY_ROUTE": "agent", **more})


StartKernel = Callable[..., KernelDriver]
"""Type of the fixture ``start_kernel``."""
