"""The program around the kernel."""

from __future__ import annotations

from ipykernel.kernelapp import IPKernelApp
from traitlets import Instance

from ivy_kernel.kernel.kernel import IvyKernel
from ivy_kernel.kernel.ports import HeldPorts

CONTROL_END_SECONDS = 2.0


class IvyKernelApp(IPKernelApp):
    """ipykernel's application with our kernel, and our settings as ``--Ivy.…`` flags.

    Our config files are not read here but with the first cell, so that a mistake in them shows in
    that cell instead of as a kernel that died.
    """

    name = "ivy-kernel"
    description = "The Ivy Sandbox kernel: runs cells in the sandbox of an Ivy Biosciences chat."
    kernel_class = IvyKernel
    held_ports = Instance(HeldPorts, allow_none=True)

    def init_sockets(self) -> None:
        """Called by ``initialize``: binds the ports that were kept free for it."""
        if self.held_ports is not None:
            self.held_ports.release()
        super().init_sockets()

    def start(self) -> None:
        """Called by `launch_instance`; returns when the kernel has been shut down."""
        super().start()
        # The control thread still flushes the output streams. Were their thread stopped first, at
        # exit, the flush would wait for it in vain and every shutdown would take seconds.
        if self.control_thread is not None and self.control_thread.is_alive():
            self.control_thread.join(CONTROL_END_SECONDS)
