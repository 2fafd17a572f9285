"""The archive's entry: ``serve DIRECTORY OPTIONS`` for the daemon, ``shell FD`` for the shell."""

from __future__ import annotations

import json
import sys


def main(arguments: list[str]) -> None:
    """Run the daemon or the built-in shell, as the first argument says."""
    # Imported here, because each of the two starts quicker without the other's modules.
    if arguments[0] == "serve":
        from .daemon import serve

        serve(arguments[1], json.loads(arguments[2]))
    elif arguments[0] == "shell":
        from .shell.loop import run_shell

        run_shell(int(arguments[1]))
    else:
        sys.exit(f"unknown entry: {arguments[0]}")
