"""The agent: the program inside the sandbox, and the only code here that travels.

It is shipped by ``ivy_kernel.routes.agent`` as a zip archive and run by whatever Python the sandbox
has (3.8 or newer, nothing but the standard library; ``pyzmq`` and ``ipykernel`` are used when they
are importable there). It imports nothing from the rest of this package, only its own modules, and
those relatively, because on the far side the package has another name. What the two sides say to
each other is in ``docs/agent-protocol.md``.

::

    start.py          the start program: finds a living agent, else unpacks and starts one
    __main__.py       the entry of the daemon and of the built-in shell
    daemon.py         the private directory, and the loop: socket, signals, lifetimes
    service.py        applies requests, records the kernel's messages
    inflight.py       submissions by sequence number; requests in flight, and their interrupts
    queue.py          runs a notebook's cells one after the other, without any client
    message_log.py    the kernel's messages by offset, and the polls that wait for them
    retained_log.py   the same on the sandbox's disk, where it outlives the agent
    wire.py           the framing of requests and answers
    supervisor.py     starts, restarts and replaces the kernel process
    kernel_process.py the interface of a kernel process; the built-in shell's one
    ipython_kernel.py a real ipykernel, over its own sockets; the watchdog that wakes it
    meters.py         memory, processors, disk and GPUs of the sandbox, and what may be used
    background.py     what may still speak in the kernel's process between requests
    extension.py      requests and hooks for work beside cells, in the kernel's process
    outputs.py        a cell's outputs as a notebook has them, from its messages
    shell/            the built-in shell itself
    work/             beside cells in the kernel's process; travels in an archive of its own
"""

PROTOCOL_VERSION = 1
"""Raised whenever a request or an answer changes its meaning.

Both sides always come from one release, but an agent may live on while the client is upgraded.
"""
