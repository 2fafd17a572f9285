"""The built-in shell: what runs cells where ipykernel is not installed.

It speaks the same message types as a Jupyter kernel (message spec, "Messages on the shell channel"
and "… IOPub channel") as JSON lines over a socket pair, with the standard library alone.

::

    loop.py        takes requests in turn, replies, says busy and idle
    wiring.py      the socket: messages out, requests and input in
    execution.py   runs a cell: syntax, last value, top-level await, errors
    source.py      what is not Python in a cell: ``!``, ``%``, ``%%``, ``?``
    commands.py    what those do
    display.py     rich representations, ``display``, ``clear_output``
    figures.py     matplotlib figures; figure_backend.py is what matplotlib loads
    capture.py     stdout and stderr, of Python and of child processes
    insight.py     completion and inspection
"""

from .loop import run_shell

__all__ = ["run_shell"]
