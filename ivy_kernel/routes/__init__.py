"""The routes: ways to run a cell through the platform's tools.

::

    base.py      Route and LiveKernel: what a session asks of a route, and its listener
    events.py    what a route reports beside messages
    outcomes.py  how a cell ends: the outcome, and the error message that says the same
    tools.py     the table of tools, and calls of them
    agent/       cells run in a kernel that our agent keeps in the sandbox
    notebook.py  each cell is one call of the notebook tool
    script.py    each cell is one call of a script tool, without variables of earlier cells
    one_call.py  what those two share
    decode/      reads a tool's result, whatever its shape
"""
