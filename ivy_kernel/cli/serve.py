"""``jupyter ivy serve``: the local sandbox in the foreground."""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import suppress

from traitlets import Int

from ivy_kernel.cli.base import EXIT_FAILED, IvyCommandApp, print_line
from ivy_kernel.session import local_server

ALIASES = {"port": "ServeApp.port"}


class ServeApp(IvyCommandApp):
    """Run the local sandbox in the foreground, until Ctrl-C.

    Kernels and commands without an account find it by themselves. It runs code as you, with your
    rights: it is no security boundary.
    """

    name = "jupyter-ivy-serve"
    description = __doc__
    aliases = ALIASES
    port = Int(0, help="Port to listen on, at 127.0.0.1; 0 for any free one.").tag(config=True)

    async def run(self) -> int:
        """Serve until the server ends or the user stops it."""
        found = local_server.find()
        if found is not None:
            print_line(f"The local sandbox runs already, at {found.url}.", error=True)
            return EXIT_FAILED
        command = local_server.server_command(idle_exit_seconds=365 * 24 * 3600.0)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *command,
            "--port",
            str(self.port),
            env=local_server.server_environment(),
            cwd=local_server.runtime_file().parent,
        )
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, _end, process)
        print_line("Kernels without an account use this sandbox. Stop it with Ctrl-C.", error=True)
        code = await process.wait()
        return 0 if code in (0, -signal.SIGINT, -signal.SIGTERM) else EXIT_FAILED


def _end(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        process.terminate()
