"""The routes: ways to run a cell through the platform's tools.

::

    base.py      Route and LiveKernel: what a session asks of a route, and its listener
    events.py    what a route reports beside messages
    outcomes.py  how a cell ends: the outcome, and the error message that says the same
    tools.py     the table of tools, and calls of them
    agent/       cells run in a kernel that our agent keeps in the sandbox
    one_call.py  routes where each cell is one call: of the notebook tool, or of a script tool
    decode/      reads a tool's result, whatever its shape
    files.py     a sandbox's files as data: entries, paths, and what a way to them offers
    file_programs.py  small Python programs that read and write files in the sandbox
    file_access.py    the way to the files by these programs, and the choice of a way
    file_tools.py     the way by the platform's own file tools
"""
