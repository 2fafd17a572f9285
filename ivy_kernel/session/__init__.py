"""The session: our use of one sandbox, from the first look at it to the last cell.

::

    session.py         runs cells, one at a time, each to its one end
    gate.py            before a cell: sandbox, route and namespace are there, or why not
    route_choice.py    which way cells take: the best route that works, found once
    lifecycle.py       the sandbox's life: status, create, terminate, and who is told of it
    local_server.py    finds or starts the embedded local sandbox's server
    start_progress.py  the progress of a start, shown in the cell that waits for it
    open.py            from settings to a session; the session ids that are kept per chat
    output.py          how fast output is shown, and what waits, is merged or dropped
    output_limit.py    how much text is shown; the file of the whole
    kernel_registry.py which kernels use which sandbox, for the panel
    private_file.py    files for their user's eyes only, written whole or not at all
    describe.py        states, deadlines and settings as lines of text
"""
