"""Private JSON files: replaced atomically, and read only if no other user had access to them.

Jupyter's config file for Ivy Kernel is written as one, since it may hold keys.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jupyter_core.paths import jupyter_config_dir, jupyter_data_dir

from ivy_kernel.errors import SettingError
from ivy_kernel.models import Json
from ivy_kernel.settings.files import BASENAME, config_file_names, read_config_files
from ivy_kernel.settings.settings import environment_name, is_secret, setting_names, variable


def write_json(path: Path, value: object, *, indent: int | None = None) -> None:
    """Write a file with mode 0600, whole or not at all.

    Parameters
    ----------
    path
        The file; its directory must exist.
    value
        Anything that ``json.dump`` takes.
    indent
        Spaces per level; ``None`` for one line.

    Raises
    ------
    OSError
        It could not be written; an earlier file is unchanged.
    """
    # Beside the file, since a rename is atomic only within one file system; the name is random,
    # because several processes may write at once, and O_EXCL follows no link that waits there.
    partial = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(value, file, indent=indent)
        partial.replace(path)
    except OSError:
        with suppress(OSError):
            partial.unlink()
        raise


def read_json(path: Path, *, limit_bytes: int | None = None) -> Any:
    """Read a file that no other user could have read or written.

    Parameters
    ----------
    path
        The file.
    limit_bytes
        A larger file is not read; ``None`` for no limit.

    Raises
    ------
    OSError
        It is not there, no regular file (a link counts as none), not private, or too large.
    ValueError
        It holds no JSON.
    """
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode) or not is_private(status):
        raise PermissionError(path)
    if limit_bytes is not None and status.st_size > limit_bytes:
        raise OSError(path)
    return json.loads(path.read_text("utf-8"))


def is_private(status: os.stat_result, *, writable_only: bool = False) -> bool:
    """Whether it is ours, and others can neither change nor (unless allowed) read it."""
    others = 0o022 if writable_only else 0o077
    return status.st_uid == os.getuid() and not status.st_mode & others


@contextmanager
def locked(path: Path, *, is_optional: bool = False) -> Iterator[None]:
    """Keep the user's other processes from changing a file, by a lock beside it.

    Parameters
    ----------
    path
        The file; its directory is made.
    is_optional
        Whether to go without a lock where none can be made.

    Raises
    ------
    OSError
        When none can be made.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = path.with_name(f"{path.name}.lock").open("w")
    except OSError:
        if not is_optional:
            raise
        yield
        return
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


# The config file ----------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Saved:
    """What was saved, and what the user has to know of it. Holds no value.

    Parameters
    ----------
    names
        The settings that were written or removed.
    path
        The config file.
    notes
        Sentences: permissions that were narrowed, other places that set the same.
    checked
        What the platform said to a check; empty when there was none.
    """

    names: tuple[str, ...]
    path: Path
    notes: tuple[str, ...] = ()
    checked: str = ""


def config_file() -> Path:
    """Return the config file that is written: the one in Jupyter's own directory of this user.

    Raises
    ------
    SettingError
        When Jupyter was told to use none.
    """
    if os.environ.get("JUPYTER_NO_CONFIG"):
        raise SettingError(
            "JUPYTER_NO_CONFIG is set, so that Jupyter keeps no configuration; unset it to save "
            "settings."
        )
    return Path(jupyter_config_dir()) / f"{BASENAME}.json"


def save_settings(changes: Mapping[str, str | None]) -> Saved:
    """Write settings into the config file, whole or not at all; its other content stays.

    The file is readable by its user alone from its first byte on. A link is followed, so that the
    file it leads to is replaced.

    Parameters
    ----------
    changes
        The new values; ``None`` removes a setting.

    Raises
    ------
    SettingError
        When the file holds something that is not a JSON object of settings, belongs to somebody
        else, or cannot be written: names the file, and the line. Nothing has changed then.
    """
    path = config_file()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        target = path.resolve()
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with locked(Path(jupyter_data_dir()) / "ivy" / "config", is_optional=True):
            notes = _save(path, target, changes)
    except (OSError, RuntimeError) as exc:  # RuntimeError: a link that leads to itself
        reason = getattr(exc, "strerror", None) or "its link leads to itself"
        raise SettingError(
            f"The config file {path} cannot be written ({reason}), so nothing was saved; correct "
            f"its permissions, or move it away."
        ) from None
    notes += _elsewhere(changes, path)
    return Saved(tuple(changes), path, tuple(notes))


def _save(path: Path, target: Path, changes: Mapping[str, str | None]) -> list[str]:
    notes = []
    content: Json = {}
    if target.exists():
        status = target.stat()
        if status.st_uid != os.getuid():
            raise SettingError(
                f"The config file {path} belongs to another user, so nothing was saved; move it "
                f"away first."
            )
        content = _parsed(path, target.read_bytes())
        if status.st_mode & 0o077:
            notes.append(f"{path} was readable by others; now it is yours alone (mode 0600).")
    section = content.setdefault("Ivy", {})
    for name, value in changes.items():
        if value is None:
            section.pop(name, None)
        else:
            section[name] = value
    write_json(target, content, indent=2)
    return notes


def _parsed(path: Path, raw: bytes) -> Json:
    """Return the content of a config file; its text is never quoted, for it may hold a key."""
    place, content = "", None
    try:
        content = json.loads(raw.decode("utf-8"))
    except json.JSONDecodeError as exc:
        place = f" at line {exc.lineno}"
    except UnicodeDecodeError as exc:
        line = raw[: exc.start].count(b"\n") + 1
        place = f" at line {line}"
    except RecursionError:
        pass
    if not isinstance(content, dict) or not isinstance(content.get("Ivy", {}), dict):
        expected = "" if place else ': it must be an object like {"Ivy": {…}}'
        raise SettingError(
            f"The config file {path} holds no valid JSON settings{place}{expected}, so nothing was "
            f"saved and it is as it was; correct it, or move it away."
        )
    return content


def _elsewhere(changes: Mapping[str, str | None], path: Path) -> list[str]:
    """Tell of other places that set the same: they win or lose by Jupyter's order of files."""
    order = config_file_names()
    ours = order.index(path) if path in order else -1
    notes = []
    try:
        files = read_config_files()
    except SettingError as error:
        return [str(error)]
    for name, value in changes.items():
        for other, config in files:
            if other == path or name not in config.get("Ivy", {}):
                continue
            if value is None:
                notes.append(f"{other} sets {name} too, and still does.")
            elif order.index(other) < ours:
                notes.append(f"{other} sets {name} too, and wins: correct it there.")
            else:
                notes.append(f"{other} sets {name} too, but {path.name} wins.")
        if variable(environment_name(name)):
            where = f"The environment variable {environment_name(name)}"
            told = "still does" if value is None else f"but {path.name} wins"
            notes.append(f"{where} sets {name} too, {'and ' if value is None else ''}{told}.")
    return notes


def remove_keys() -> Saved:
    """Remove the keys from the config file.

    Raises
    ------
    SettingError
        As `save_settings`.
    """
    return save_settings({name: None for name in setting_names() if is_secret(name)})


def kept_keys() -> list[str]:
    """Return the names of the keys that the config file holds.

    Raises
    ------
    SettingError
        When it is no valid JSON, or cannot be read.
    """
    path = config_file()
    try:
        raw = path.read_bytes() if path.exists() else b"{}"
    except OSError as exc:
        raise SettingError(f"The config file {path} cannot be read ({exc.strerror}).") from None
    section: dict[str, Any] = _parsed(path, raw).get("Ivy", {})
    return [name for name in setting_names() if is_secret(name) and section.get(name)]
