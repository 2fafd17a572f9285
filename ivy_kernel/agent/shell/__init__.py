"""The built-in shell, which runs cells where ipykernel is not installed.

It speaks the same message types as a Jupyter kernel (message spec, "Messages on the shell channel"
and "… IOPub channel") as JSON lines over a socket pair, with the standard library alone.

::

    loop.py           takes requests in turn, replies, publishes busy and idle
    agent_socket.py   the socket: messages out, requests and input in
    execution.py      runs a cell: ``!``, ``%``, ``?``, last value, top-level await, errors
    display.py        rich representations, ``display``, ``clear_output``, matplotlib figures
    figure_backend.py what matplotlib imports as its backend
    capture.py        stdout and stderr, of Python and of child processes
    completion.py     completion and inspection
"""
