"""The program around the kernel."""

from __future__ import annotations

from ipykernel.kernelapp import IPKernelApp

from ivy_kernel.kernel.kernel import IvyKernel
from ivy_kernel.settings import Ivy


class IvyKernelApp(IPKernelApp):
    """ipykernel's application with our kernel, and our settings as ``--Ivy.…`` flags.

    Our config files are not read here but with the first cell, so that a mistake in them shows in
    that cell instead of as a kernel that died.
    """

    name = "ivy-kernel"
    description = "The Ivy Sandbox kernel: runs cells in the sandbox of an Ivy Biosciences chat."
    kernel_class = IvyKernel

    def __init__(self, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.classes = [*self.classes, Ivy]
