"""The program of the kernel: ``main`` for the kernelspec, ``python -m ivy_kernel.kernel`` by hand.

Python looks for modules in the working directory first, which is the notebook's folder: a file
``random.py`` there would be run, with the user's key in reach. The kernelspec's command takes that
directory from the path before it imports anything, which ``python -m`` cannot: Python itself
imports modules to find out what to run.
"""

import os  # at hand in every interpreter, so that this looks nowhere
import sys
from contextlib import suppress

if __name__ == "__main__":
    with suppress(OSError):  # a directory that is gone is not on the path
        if sys.path[:1] == [os.getcwd()]:  # noqa: PTH109 - Path is not imported yet
            del sys.path[0]

from ivy_kernel.kernel.ports import PortTakenError, held_ports


def main() -> None:
    """Run a kernel to its end, as the arguments of this process say."""
    try:
        held = held_ports(sys.argv)  # first, because the next import takes a second
    except PortTakenError as error:
        sys.exit(str(error))
    from ivy_kernel.kernel.kernel import IvyKernelApp

    IvyKernelApp.launch_instance(held_ports=held)


if __name__ == "__main__":
    main()
