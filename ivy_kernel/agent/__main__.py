"""The archive's entry: ``serve DIRECTORY OPTIONS`` for the daemon, ``shell FD`` for the shell."""

from __future__ import annotations

import json
import sys


def main(arguments: list[str]) -> None:
    """Run what the first argument names."""
    if arguments[0] == "serve":
        from .daemon import serve

        serve(arguments[1], json.loads(arguments[2]))
    elif arguments[0] == "shell":
        from .shell import run_shell

        run_shell(int(arguments[1]))
    else:
        sys.exit(f"unknown entry: {arguments[0]}")
