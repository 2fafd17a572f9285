"""``%ivy`` and ``%%ivy``: cells of any Python notebook or terminal run in the sandbox.

::

    ivy_magics.py  the two magics of an IPython shell; their sessions, one for each chat
    commands.py    %ivy: the table of commands, which the Ivy Sandbox kernel shares
    files.py       the commands about files, which jupyter ivy files shares: ls, get, put, …
    recovery.py    the commands about what outlives the sandbox: checkpoint, restore, packages
    options.py     their options; those of %%ivy
    cell.py        runs one %%ivy cell
    waiting.py     lets a cell wait for the event loop's thread, with input and Ctrl-C
    output.py      shows messages and errors by IPython's means
    variables.py   push and pull, and the variables of a %%ivy cell
    value_codec.py  their values as bytes, without pickle: plain data
    array_codec.py  … arrays of NumPy, tables of Arrow, frames of polars
    frame_codec.py  … frames of pandas; whole values; what hidden cells call in the sandbox
    widget.py      the status widget
"""

SHELL_ATTRIBUTE = "_ivy_magics"
"""Attribute of an IPython shell that holds the magics of `ivy_magics.load`."""
