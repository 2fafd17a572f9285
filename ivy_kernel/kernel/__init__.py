"""The "Ivy Sandbox" kernel: Jupyter's messages in, cells of the sandbox out.

::

    app.py               the program around the kernel
    ports.py             keeps its ports free until it binds them
    kernel.py            the kernel: which request is answered by whom
    channels.py          ipykernel's base class, for a kernel that mostly waits for somebody else
    control_requests.py  debugger and usage, answered by the sandbox
    no_debugger.py       the debugger's answers while there is none
    code_help.py         completion, inspection, "is it complete"
    history.py           the cells of this kernel
    questions.py         asks the user while a cell runs
    cells.py             runs cells: takes each apart, sends its parts to where they belong
    local_cells.py       which parts run here
    local_shell.py       the Python of this process, for %%local
    cell_sink.py         takes the messages of one cell
    earlier_cells.py     messages of cells that an earlier process had started
    current_session.py   the session that the settings mean at the moment
    restart_mark.py      which chats must be emptied after a restart
    comms.py             the front end's way to all comms
    local_comms.py       comms of this process
    remote_comms.py      comms of the sandbox, as seen from here
"""
