"""``python -m ivy_kernel.kernel -f CONNECTION_FILE``, as the kernelspec starts it."""

from ivy_kernel.kernel.app import IvyKernelApp

if __name__ == "__main__":
    IvyKernelApp.launch_instance()
