"""Ivy Sandbox for Jupyter: run notebook cells in the sandbox of an Ivy Biosciences chat."""

from __future__ import annotations

from typing import Any

from ivy_kernel._version import __version__

__all__ = ["__version__"]


def load_ipython_extension(shell: Any) -> None:
    """Called by IPython for ``%load_ext ivy_kernel``."""
    from ivy_kernel.magics.ivy_magics import load

    load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """Called by IPython for ``%unload_ext ivy_kernel``."""
    from ivy_kernel.magics.ivy_magics import unload

    unload(shell)


def __getattr__(name: str) -> Any:
    """Import the widget's class when it is first used, since its packages are optional."""
    if name == "StatusWidget":
        from ivy_kernel.magics.widget import StatusWidget

        return StatusWidget
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _jupyter_labextension_paths() -> list[dict[str, str]]:
    """Called by JupyterLab's developer tools to find the built panel."""
    return [{"src": "labextension", "dest": "ivy-kernel"}]


def _jupyter_server_extension_points() -> list[dict[str, Any]]:
    """Called by Jupyter Server to find the extension, which is imported only then."""
    from ivy_kernel.server_extension.app import IvyServerExtension

    return [{"module": "ivy_kernel.server_extension", "app": IvyServerExtension}]
