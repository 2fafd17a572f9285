"""Ivy Sandbox for Jupyter: run notebook cells in the sandbox of an Ivy Biosciences chat."""

from ivy_kernel._version import __version__

__all__ = ["__version__"]
