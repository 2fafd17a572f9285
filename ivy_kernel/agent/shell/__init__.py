"""The built-in shell, which runs cells where ipykernel is not installed.

It speaks the same message types as a Jupyter kernel (message spec, "Messages on the shell channel"
and "… IOPub channel") as JSON lines over a socket pair, with the standard library alone.

::

    loop.py           takes requests in turn, replies, publishes busy and idle
    execution.py      runs a cell: ``!``, ``%``, ``?``, last value, top-level await, errors;
                      completion and inspection
    output.py         stdout and stderr, rich representations, ``display``, matplotlib figures;
                      the socket that they go to
    figure_backend.py what matplotlib imports as its backend
"""
