"""Drives kernels that have the magics loaded, as a front end does."""

from __future__ import annotations

import time
from collections.abc import Mapping
from queue import Empty
from typing import Any

from home import Home
from jupyter_kernel_test.msgspec_v5 import validate_message
from kernel_driver import CellRun, KernelDriver, sandbox_variables
from sandbox_server import REPOSITORY

Json = dict[str, Any]


class MagicKernel(KernelDriver):
    """A kernel with comms; by default the plain ``python3`` one, with the magics loaded.

    Parameters
    ----------
    home, variables
        As for `KernelDriver`.
    kernel_name
        The kernelspec.
    """

    def __init__(
        self, home: Home, variables: Mapping[str, str], kernel_name: str = "python3"
    ) -> None:
        super().__init__(home, variables, kernel_name=kernel_name)
        self.is_plain = kernel_name == "python3"
        self.all_messages: list[Json] = []

    def start(self) -> None:
        """Start it, and loads the magics."""
        super().start()
        if self.is_plain:
            assert self.run("%load_ext ivy_kernel").reply["status"] == "ok"

    def next_message(self, message_id: str, deadline: float) -> Json:
        """The next iopub message of a cell; those of comms have no schema to be valid by."""
        while True:
            message = self.any_message(deadline)
            if message["parent_header"].get("msg_id") == message_id:
                if not message["msg_type"].startswith("comm_"):
                    validate_message(message, message["msg_type"], message_id)
                return message

    def any_message(self, deadline: float) -> Json:
        """The next iopub message, whatever it belongs to."""
        try:
            remaining = max(0.01, deadline - time.monotonic())
            message: Json = self.client.get_iopub_msg(timeout=remaining)
        except Empty:
            log = self.log.read_text()[-3000:]
            raise AssertionError(f"no further message came; the kernel's log: {log}") from None
        self.all_messages.append(message)
        return message

    def attach(self, chat_id: str) -> None:
        """Make the kernel use another chat, with that chat's own campaign and session."""
        ids = f"{chat_id} --campaign campaign-of-{chat_id} --session s-{chat_id}"
        assert self.run(f"%ivy attach {ids}").reply["status"] == "ok"

    def ivy(self, code: str, options: str = "", **more: Any) -> CellRun:
        """Run a ``%%ivy`` cell."""
        return self.run(f"%%ivy {options}\n{code}", **more)

    def answer(self, text: str, timeout_seconds: float = 20.0) -> Json:
        """Wait for an ``input_request`` and answers it; return its content."""
        request = self.client.get_stdin_msg(timeout=timeout_seconds)
        self.client.input(text)
        return dict(request["content"])


def magic_variables(server: Any, chat_id: str, **more: str) -> dict[str, str]:
    """Return `sandbox_variables` for processes that load the magics of this tree."""
    return sandbox_variables(server, chat_id, PYTHONPATH=str(REPOSITORY), **more)
