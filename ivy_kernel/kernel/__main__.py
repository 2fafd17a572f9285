"""``python -m ivy_kernel.kernel -f CONNECTION_FILE``, as the kernelspec starts it."""

import sys

from ivy_kernel.kernel.ports import PortTakenError, held_ports

if __name__ == "__main__":
    try:
        held = held_ports(sys.argv)  # first, because the next import takes a second
    except PortTakenError as error:
        sys.exit(str(error))
    from ivy_kernel.kernel.kernel import IvyKernelApp

    IvyKernelApp.launch_instance(held_ports=held)
