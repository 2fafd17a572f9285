"""``jupyter ivy install``: the kernelspec, for this environment's Jupyter or for another one."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel
from traitlets import Bool, Unicode

from ivy_kernel.cli.app import DEBUG_FLAG, IvyCommandApp, packaged_directory, print_line
from ivy_kernel.errors import IvyError, UsageError

KERNEL_NAME = "ivy-sandbox"
"""The kernelspec of our kernel."""


class InstallApp(IvyCommandApp):
    """Make the kernel known to a Jupyter that is installed in another environment.

    jupyter ivy install [--user | --sys-prefix | --prefix PATH]

    Installing the package has made it known to the Jupyter of its own environment. This writes a
    kernelspec that names this environment's Python by its full path: for all Jupyters of this user
    (--user, the default), for this environment's (--sys-prefix), or for that of the environment at
    PATH (--prefix).
    """

    name = "jupyter-ivy-install"
    description = __doc__
    aliases = {  # noqa: RUF012 - declared so by traitlets
        **IvyCommandApp.aliases,
        "prefix": "InstallApp.prefix",
    }
    flags = {  # noqa: RUF012 - likewise
        **DEBUG_FLAG,
        "user": ({"InstallApp": {"user": True}}, "For all Jupyters of this user; the default."),
        "sys-prefix": (
            {"InstallApp": {"sys_prefix": True}},
            "For the Jupyter of this Python's environment.",
        ),
    }
    user = Bool(False, help="For all Jupyters of this user; the default.").tag(config=True)
    sys_prefix = Bool(False, help="For the Jupyter of this Python's environment.").tag(config=True)
    prefix = Unicode("", help="For the Jupyter of the environment at this path.").tag(config=True)

    async def run(self) -> int:
        """Install it, and say where, and how to remove it."""
        if self.user + self.sys_prefix + bool(self.prefix) > 1:
            raise UsageError("Give one of --user, --sys-prefix and --prefix PATH.")
        prefix = (
            sys.prefix if self.sys_prefix else self.prefix and str(Path(self.prefix).absolute())
        )
        directory = install_kernelspec(prefix)
        print_line(f"The kernelspec {KERNEL_NAME} is in {directory}, and starts {sys.executable}.")
        print_line(f"To remove it:  rm -r {shlex.quote(directory)}")
        return 0


def install_kernelspec(prefix: str) -> str:
    """Write the kernelspec with this Python's full path; return its directory.

    Parameters
    ----------
    prefix
        The environment whose Jupyter is to find it; empty for all Jupyters of this user.

    Raises
    ------
    IvyError
        When it cannot be written.
    """
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place) / KERNEL_NAME
        shutil.copytree(packaged_directory("kernelspec"), copy)
        spec_file = copy / "kernel.json"
        spec = json.loads(spec_file.read_bytes())
        spec["argv"][0] = sys.executable
        spec_file.write_text(json.dumps(spec, indent=2) + "\n")
        manager: Any = KernelSpecManager()
        try:
            return str(
                manager.install_kernel_spec(
                    str(copy), KERNEL_NAME, user=not prefix, prefix=prefix or None
                )
            )
        except OSError as exc:
            where = prefix or manager.user_kernel_dir
            raise IvyError(
                f"The kernelspec cannot be written below {where}: {exc.strerror}."
            ) from None


def kernelspec_fault() -> tuple[str, str]:
    """Return where Jupyter finds the kernelspec, and what is wrong with it; empty for nothing."""
    try:
        spec = KernelSpecManager().get_kernel_spec(KERNEL_NAME)
    except NoSuchKernel:
        return "", f"Jupyter finds no kernel {KERNEL_NAME}"
    interpreter = Path(spec.argv[0])
    if interpreter.is_absolute() and not interpreter.exists():
        return spec.resource_dir, f"{spec.resource_dir} starts {interpreter}, which is not there"
    return spec.resource_dir, ""


def jupyter_command(command: str) -> str:
    """Return a command of this environment's Jupyter, for a shell in which it works as printed.

    The plain name is given only where it means this environment's.
    """
    jupyter = Path(sysconfig.get_path("scripts")) / "jupyter"
    found = shutil.which("jupyter")
    if found is not None and Path(found).resolve() == jupyter.resolve():
        return f"jupyter {command}"
    if jupyter.exists():
        return f"{shlex.quote(str(jupyter))} {command}"
    return f"{shlex.quote(sys.executable)} -m jupyter {command}"
