"""The "Ivy Sandbox" kernel: Jupyter's messages in, cells of the sandbox out.

::

    __main__.py         the program
    ports.py            holds the kernel's ports until it binds them
    kernel.py           the kernel: which request is answered by which object; its application
    base.py             ipykernel's base class, for a kernel that mostly waits for the sandbox
    requests.py         requests beside cells: code help, history, user's input, debugger, usage
    cells.py            runs cells: splits each, and sends its parts to where they run
    local.py            which parts run here; the Python of this process, for %%local
    comms.py            comms of this process and of the sandbox, and the way to both
    current_session.py  the session that the settings mean at the moment
    missed_outputs.py   outputs that no kernel has taken, on their way into the journal
    restart.py          what a kernel that ends sees to, and what it leaves to the next one
"""
