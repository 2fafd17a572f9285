"""The agent: our program inside the sandbox, and the only code here that travels.

It is shipped by ``ivy_kernel.routes.agent`` as a zip archive and run by whatever Python the sandbox
has (3.8 or newer, nothing but the standard library; ``pyzmq`` and ``ipykernel`` are used when they
are importable there). It imports nothing from the rest of this package, only its own modules, and
those relatively, because on the far side the package has another name.

::

    start.py          the first call: finds a living agent, else unpacks and starts one
    __main__.py       the daemon's and the built-in shell's entry
    daemon.py         the loop: socket, connections, signals, the clock
    directory.py      the private directory: its lock, its end, leftovers
    service.py        what a request means, and what a kernel's message means
    polls.py          parked requests, and when each is answered
    ledger.py         numbered submissions, applied once and in order
    message_log.py    the kernel's messages as bytes addressed by offset
    wire.py           how requests and answers are framed
    flights.py        the requests that the kernel is working on, and interrupts aimed at them
    kernel.py         what the daemon asks of a kernel process
    ipython_kernel.py a real ipykernel, over its own sockets
    unnoticed.py      when it has to be woken, because it did not notice a request
    shell_kernel.py   the built-in shell, over a socket pair
    shell/            the built-in shell itself
"""

PROTOCOL_VERSION = 1
"""Raised whenever a request or an answer changes its meaning."""
