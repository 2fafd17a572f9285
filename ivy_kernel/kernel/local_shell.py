"""``%%local``: a Python of this process, made when it is first used."""

from __future__ import annotations

import signal
from typing import Any, cast

from ivy_kernel.models import Json


class LocalShell:
    """An IPython shell in the kernel's own process.

    Parameters
    ----------
    kernel
        The kernel, whose session and sockets its outputs use.
    """

    def __init__(self, kernel: Any) -> None:
        from ipykernel.zmqshell import ZMQInteractiveShell  # made only when it is needed

        self._kernel = kernel
        shell = ZMQInteractiveShell.instance(
            parent=kernel, profile_dir=kernel.profile_dir, kernel=kernel
        )
        self._shell = cast("Any", shell)  # its parts are of subclasses that are not declared
        self._shell.ask_exit = _end_the_cell  # `exit()` would end this process, the kernel
        self._shell.history_manager.enabled = False  # its file belongs to the user's own IPython
        self._shell.displayhook.session = kernel.session
        self._shell.displayhook.pub_socket = kernel.iopub_socket
        self._shell.displayhook.topic = kernel._topic("execute_result")
        self._shell.display_pub.session = kernel.session
        self._shell.display_pub.pub_socket = kernel.iopub_socket

    def run(self, code: str, parent: Json, *, count: int, silent: bool) -> Json:
        """Run code here, blocking, and return the content of the reply.

        Ctrl-C and interrupts raise `KeyboardInterrupt` in it, as in any Python notebook.
        """
        self._shell.set_parent(parent)
        self._shell.execution_count = count
        # Without this the event loop would hear of the same signal afterwards, and stop a cell.
        wakeup = signal.set_wakeup_fd(-1)
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            result = self._shell.run_cell(code, store_history=True, silent=silent)
        finally:
            signal.signal(signal.SIGINT, before)
            signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        error = result.error_before_exec or result.error_in_exec
        if error is None:
            return {"status": "ok", "user_expressions": {}, "payload": []}
        content = {
            "ename": type(error).__name__,
            "evalue": str(error),
            "traceback": self._shell._last_traceback or [],
        }
        return {"status": "error", "user_expressions": {}, "payload": [], **content}


def _end_the_cell() -> None:
    """Called by IPython for ``exit()`` and ``quit()``."""
    raise SystemExit
