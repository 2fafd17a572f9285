"""Jupyter's config files for Ivy Kernel: ``jupyter_ivy_config.py`` and ``.json``."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from traceback import walk_tb

from jupyter_core.paths import jupyter_config_path
from traitlets.config import Config
from traitlets.config.loader import JSONFileConfigLoader, PyFileConfigLoader

from ivy_kernel.errors import SettingError

BASENAME = "jupyter_ivy_config"


def config_file_names(config_path: list[str] | None = None) -> list[Path]:
    """Return the files that are read if they exist, best first (``.json`` beats ``.py``)."""
    if config_path is None:
        return _standard_names(tuple(os.environ.get(name) for name in _WHERE))
    return _names(config_path)


_WHERE = (
    *("JUPYTER_CONFIG_DIR", "JUPYTER_CONFIG_PATH", "JUPYTER_NO_CONFIG", "JUPYTER_PREFER_ENV_PATH"),
    *("JUPYTER_PLATFORM_DIRS", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "VIRTUAL_ENV"),
    *("HOME", "USERPROFILE", "APPDATA", "PROGRAMDATA", "XDG_CONFIG_HOME"),
)
"""Variables that move Jupyter's configuration. While they stay the same, its directories are not
searched again, which takes longer than all the rest of a look at the settings."""


@functools.lru_cache(maxsize=4)
def _standard_names(_: tuple[str | None, ...]) -> list[Path]:
    return _names(jupyter_config_path())


def _names(directories: list[str]) -> list[Path]:
    return [
        Path(directory) / f"{BASENAME}.{ending}"
        for directory in directories
        for ending in ("json", "py")
    ]


def read_config_files(config_path: list[str] | None = None) -> list[tuple[Path, Config]]:
    """Return the config files that exist, best first.

    Raises
    ------
    SettingError
        When a file cannot be read; names the file and the fault.
    """
    found: list[tuple[Path, Config]] = []
    for path in config_file_names(config_path):
        if not path.is_file():
            continue
        loader_class = JSONFileConfigLoader if path.suffix == ".json" else PyFileConfigLoader
        try:
            config = loader_class(path.name, path=str(path.parent)).load_config()
        except (Exception, SystemExit) as exc:
            # A Python config file may raise anything at all. Its text may hold a key, so only
            # the kind of fault and the place are told, never the line itself.
            line = getattr(exc, "lineno", None) or _line_in(path, exc)
            place = f", line {line}" if line else ""
            raise SettingError(
                f"The config file {path} cannot be read ({type(exc).__name__}{place}); "
                f"correct it or move it away."
            ) from None
        found.append((path, config))
    return found


def _line_in(path: Path, exc: BaseException) -> int:
    """Return the line of a Python config file at which it failed; 0 when it is not known."""
    lines = [
        line for frame, line in walk_tb(exc.__traceback__) if frame.f_code.co_filename == str(path)
    ]
    return lines[-1] if lines else 0
