"""``%load_ext ivy_kernel``: cells of any Python notebook or terminal run in the sandbox."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ivy_kernel.magics.ivy_magics import IvyMagics

_NAME = "_ivy_magics"


def load(shell: Any) -> IvyMagics:
    """Add ``%ivy`` and ``%%ivy`` to a shell; a second time changes nothing."""
    from ivy_kernel.magics.ivy_magics import IvyMagics  # the kernel uses parts of this package only

    magics: IvyMagics | None = getattr(shell, _NAME, None)
    if magics is None:
        magics = IvyMagics(shell)
        setattr(shell, _NAME, magics)
        shell.register_magics(magics)
    return magics


def unload(shell: Any) -> None:
    """Take them away again, and let go of the sandbox."""
    magics = getattr(shell, _NAME, None)
    if magics is not None:
        setattr(shell, _NAME, None)
        for kind in ("line", "cell"):
            shell.magics_manager.magics[kind].pop("ivy", None)
        magics.close()
