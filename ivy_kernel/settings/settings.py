"""Every setting, as one `Configurable` named ``Ivy``, the source of each value, and the files.

Precedence: call argument > command-line flag > config file > environment > default. The config
files are Jupyter's own: ``jupyter_ivy_config.py`` and ``.json`` in the directories that
``jupyter --paths`` lists under "config", the first directory winning.
"""

from __future__ import annotations

import functools
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from traceback import walk_tb
from typing import Any, Literal, cast

from jupyter_core.paths import jupyter_config_path
from traitlets import Bool, Enum, Float, Int, TraitError, TraitType, Unicode
from traitlets.config import Config, Configurable
from traitlets.config.loader import DeferredConfig, JSONFileConfigLoader, PyFileConfigLoader

from ivy_kernel.errors import MissingSettingError, SettingError
from ivy_kernel.settings.urls import LOCAL, check_url, may_hold_a_key, shown_value

PLATFORM_URL = "https://ivybiosciences.com/api"
RECOUP_URL = "https://api.recoupable.dev"
LOCAL_CHAT_ID = "local"

SourceKind = Literal["argument", "flag", "config file", "environment", "default"]


@dataclass(frozen=True, slots=True)
class Source:
    """The source of a setting's value.

    Parameters
    ----------
    kind
        Which of the five sources.
    where
        The variable's or file's name; empty for arguments, flags and defaults.
    """

    kind: SourceKind
    where: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.where}".strip()


class Ivy(Configurable):
    """Settings of Ivy Kernel. Do not construct: call `load_settings`, which knows the sources."""

    api_key = Unicode("", help="Key of the Ivy platform (ivy_… or a Clerk JWT). Empty: none.").tag(
        config=True, env="IVY_API_KEY", secret=True
    )
    api_url = Unicode(
        PLATFORM_URL,
        help="Base URL of the platform's API, or 'local' for the embedded local sandbox.",
    ).tag(config=True, env="IVY_API_URL")
    chat_id = Unicode("", help="The chat whose sandbox runs the cells.").tag(
        config=True, env="IVY_CHAT_ID"
    )
    campaign_id = Unicode("", help="The chat's campaign; needed to create a sandbox.").tag(
        config=True, env="IVY_CAMPAIGN_ID"
    )
    session_id = Unicode(
        "", help="Session id for a new sandbox. Empty: one is generated and kept per chat."
    ).tag(config=True, env="IVY_SESSION_ID")
    recoup_api_key = Unicode(
        "", help="Key or session token (JWT) for Recoup's status endpoint. Empty: none."
    ).tag(config=True, env="RECOUP_API_KEY", secret=True)
    recoup_api_url = Unicode(RECOUP_URL, help="Base URL of Recoup's API.").tag(
        config=True, env="RECOUP_API_URL"
    )
    recoup_session_id = Unicode("", help="Recoup session whose deadlines are shown.").tag(
        config=True, env="RECOUP_SESSION_ID"
    )
    auto_create = Bool(
        True,
        help="Whether a cell that needs a sandbox may start one. "
        "If false, only `%ivy create` and its equals do.",
    ).tag(config=True, env="IVY_AUTO_CREATE")
    auto_create_hidden = Bool(
        False,
        help="Whether a hidden cell (sent without a place in the history) may start one too. For "
        "runners that send cells so, as nbval and Voilà do.",
    ).tag(config=True, env="IVY_AUTO_CREATE_HIDDEN")
    allow_local = Bool(
        True,
        help="Whether %%local cells may run, which run on this machine as you. "
        "`jupyter ivy run` takes false unless it is told --allow-local.",
    ).tag(config=True, env="IVY_ALLOW_LOCAL")
    route = Enum(
        ["auto", "agent", "notebook", "script"],
        default_value="auto",
        help="How cells reach the sandbox; 'auto' takes the best that works.",
    ).tag(config=True, env="IVY_ROUTE")
    cell_timeout_seconds = Float(
        300.0,
        min=1.0,
        max=300.0,
        help="Time budget of one tool call, in seconds; the platform caps scripts at 120.",
    ).tag(config=True, env="IVY_CELL_TIMEOUT_SECONDS")
    start_timeout_seconds = Float(
        900.0, min=1.0, help="How long a cell waits for the sandbox to start, in seconds."
    ).tag(config=True, env="IVY_START_TIMEOUT_SECONDS")
    connect_timeout_seconds = Float(
        10.0, min=0.1, help="Time limit for connecting to the platform, in seconds."
    ).tag(config=True, env="IVY_CONNECT_TIMEOUT_SECONDS")
    ca_bundle = Unicode(
        "", help="File of CA certificates to trust instead of the usual ones. Empty: the usual."
    ).tag(config=True, env="IVY_CA_BUNDLE")
    output_limit_bytes = Int(
        2_000_000,
        min=0,
        help="Streamed text shown per cell, in bytes; beyond it head and tail are shown and the "
        "whole text is kept in a file. 0: no limit.",
    ).tag(config=True, env="IVY_OUTPUT_LIMIT_BYTES")
    checkpoints = Bool(
        True,
        help="Whether the sandbox's kernel keeps variables on its disk after each cell, so that "
        "they outlive it.",
    ).tag(config=True, env="IVY_CHECKPOINTS")
    restore = Enum(
        ["auto", "ask", "off"],
        default_value="auto",
        help="Whether the next cell after a loss restores variables by itself; 'ask' only tells.",
    ).tag(config=True, env="IVY_RESTORE")
    checkpoint_copy_bytes = Int(
        1_073_741_824,
        min=0,
        help="Largest copy of a notebook's newest checkpoint on this machine, in bytes. 0: none.",
    ).tag(config=True, env="IVY_CHECKPOINT_COPY_BYTES")
    response_limit_bytes = Int(
        268_435_456, min=1_000_000, help="Largest answer accepted from the platform, in bytes."
    ).tag(config=True, env="IVY_RESPONSE_LIMIT_BYTES")
    python_code_field = Unicode("code", help="Field of sandbox_python that carries the code.").tag(
        config=True, env="IVY_PYTHON_CODE_FIELD"
    )
    notebook_code_field = Unicode(
        "code", help="Field of sandbox_notebook that carries the code."
    ).tag(config=True, env="IVY_NOTEBOOK_CODE_FIELD")
    rscript_code_field = Unicode(
        "code", help="Field of sandbox_rscript that carries the code."
    ).tag(config=True, env="IVY_RSCRIPT_CODE_FIELD")
    exec_command_field = Unicode(
        "command", help="Field of sandbox_exec that carries the command."
    ).tag(config=True, env="IVY_EXEC_COMMAND_FIELD")
    local_idle_exit_seconds = Float(
        1800.0, min=1.0, help="The embedded local sandbox ends after so many idle seconds."
    ).tag(config=True, env="IVY_LOCAL_IDLE_EXIT_SECONDS")

    def __init__(self, values: Mapping[str, Any], sources: Mapping[str, Source]) -> None:
        super().__init__(**values)
        self.sources = dict(sources)

    @property
    def is_local(self) -> bool:
        """Whether cells go to the embedded local sandbox."""
        if self.api_url == LOCAL:
            return True
        # A newcomer who has set neither can run cells at once; a URL that was set is meant.
        return not self.api_key and self.sources["api_url"].kind == "default"

    @property
    def address(self) -> str:
        """The API's address, which with the chat identifies a sandbox; ``local`` is one too."""
        return LOCAL if self.is_local else self.api_url

    @property
    def used_chat_id(self) -> str:
        """The chat that cells use; empty when a key is there but no chat."""
        return self.chat_id or (LOCAL_CHAT_ID if self.is_local else "")

    def require(self, name: str) -> str:
        """Return the value of a text setting that an action cannot do without.

        Raises
        ------
        MissingSettingError
            When it is empty: the sentence says where it was looked for and how to set it.
        """
        value = cast("str", getattr(self, name))
        if value:
            return value
        raise MissingSettingError(missing_sentence(name), setting=name)


def missing_sentence(name: str) -> str:
    """Return the sentence for a missing setting: where it was looked for, and the fix."""
    return (
        f"The setting {name} has no value: neither the environment variable "
        f"{environment_name(name)} nor Ivy.{name} in a jupyter_ivy_config file is set. "
        f'Run `jupyter ivy login`, or put {{"Ivy": {{"{name}": "…"}}}} into a '
        f"jupyter_ivy_config.json where `jupyter --paths` lists config, and run the cell again; no "
        f"restart is needed."
    )


def setting_names() -> list[str]:
    """Return the names of all settings, in the order in which they are documented."""
    own = Ivy.class_own_traits(config=True)
    return [name for name in vars(Ivy) if name in own]


def environment_name(name: str) -> str:
    """Return the environment variable of a setting."""
    return str(Ivy.class_traits()[name].metadata["env"])


def is_secret(name: str) -> bool:
    """Return whether a setting's value must never be shown."""
    return bool(Ivy.class_traits()[name].metadata.get("secret"))


_TAKEN_KEYS: dict[str, str] = {}


def take_keys() -> None:
    """Take the keys out of this process's environment; only the settings know them then.

    For a process that runs code of a notebook's author: neither that code nor the programs that it
    starts inherit them.
    """
    for name in map(environment_name, filter(is_secret, setting_names())):
        if name in os.environ:
            _TAKEN_KEYS[name] = os.environ.pop(name)


def environment_with_keys() -> dict[str, str]:
    """Return the environment for a program of our own that needs the keys, taken out or not."""
    return {**_TAKEN_KEYS, **os.environ}


def variable(name: str) -> str:
    """Return a variable of the environment, or the key that was taken out of it; else empty."""
    return os.environ.get(name) or _TAKEN_KEYS.get(name, "")


def load_settings(
    *,
    arguments: Mapping[str, Any] | None = None,
    flags: Config | None = None,
    environ: Mapping[str, str] | None = None,
    config_path: list[str] | None = None,
) -> Ivy:
    """Read all settings from their sources.

    Parameters
    ----------
    arguments
        Values given by a caller; ``None`` values count as not given.
    flags
        Configuration from the command line (``--Ivy.chat_id=…``).
    environ
        The environment; ``None`` means the process's own.
    config_path
        Directories to search for config files, best first; ``None`` means Jupyter's.

    Raises
    ------
    SettingError
        When a value cannot be used: names the setting, the value, its source and what is allowed.
    """
    try:
        return _load(arguments or {}, flags or Config(), environ, config_path)
    except SettingError as exc:
        error = exc
    # Raised from here, where no local variable holds a key: some tools print them with tracebacks.
    del arguments, flags, environ
    error.__context__ = None
    raise error.with_traceback(None)


def _load(
    arguments: Mapping[str, Any],
    flags: Config,
    environ: Mapping[str, str] | None,
    config_path: list[str] | None,
) -> Ivy:
    files = read_config_files(config_path)
    # Best first: the first layer that has a value wins. The environment comes after them, since it
    # knows no names that are not ours.
    layers: list[tuple[Source, Mapping[str, Any]]] = [
        (Source("argument"), {k: v for k, v in arguments.items() if v is not None}),
        (Source("flag"), flags.get("Ivy", {})),
        *((Source("config file", str(path)), config.get("Ivy", {})) for path, config in files),
    ]
    names = setting_names()
    # Before any value is used: a misspelt setting would silently keep its default.
    for source, layer in layers:
        _refuse(source, layer, names)
    values: dict[str, Any] = {}
    sources: dict[str, Source] = {}
    for name in names:
        for source, layer in layers:
            if name in layer:
                values[name], sources[name] = _checked(name, layer[name], source), source
                break
        else:
            where = environment_name(name)
            raw = variable(where) if environ is None else environ.get(where, "")
            if raw:  # an empty variable counts as not set
                source = Source("environment", where)
                values[name], sources[name] = _checked(name, raw, source), source
            else:
                sources[name] = Source("default")
    _refuse_misplaced_keys(values, sources)
    return Ivy(values, sources)


_KEY_FORM = re.compile(r"ivy_[A-Za-z0-9_-]{16,}|eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.")
"""The platform's keys, and JSON Web Tokens."""

SHORTEST_KEY = 8
"""A shorter value is no key; it may stand in another value by chance."""


def holds_key(text: str, settings: Ivy | None = None) -> bool:
    """Return whether a text that is to be shown has the form of a key, or holds a known one."""
    keys = [getattr(settings, name) for name in setting_names() if settings and is_secret(name)]
    return bool(_KEY_FORM.search(text)) or any(len(k) >= SHORTEST_KEY and k in text for k in keys)


def _refuse_misplaced_keys(values: Mapping[str, Any], sources: Mapping[str, Source]) -> None:
    """Refuse a key in a setting for something else, which is shown, sent and kept in files."""
    keys = [str(values[name]) for name in values if is_secret(name)]
    for name, value in values.items():
        if is_secret(name) or not isinstance(value, str):
            continue
        if _KEY_FORM.search(value) or any(len(k) >= SHORTEST_KEY and k in value for k in keys):
            raise SettingError(
                f"The setting {name} (set by {sources[name]}) holds a key, which belongs into "
                f"api_key or recoup_api_key alone: those are never shown. Set {name} to its own "
                f"value, and have the key replaced if others may have seen it.",
                setting=name,
            )


def _refuse(source: Source, layer: Mapping[str, Any], names: list[str]) -> None:
    if not isinstance(layer, Mapping):  # a JSON file may hold anything
        raise SettingError(f"The section Ivy (set by {source}) must be an object of settings.")
    for name in layer:
        if source.kind == "flag" and name in names and is_secret(name):
            raise SettingError(
                f"The setting {name} cannot be given by a flag, where every process list shows "
                f"it; use {environment_name(name)} or jupyter_ivy_config.json.",
                setting=name,
            )
        if name not in names:
            raise SettingError(
                f"There is no setting Ivy.{name} (set by {source}); the settings are: "
                f"{', '.join(names)}.",
                setting=name,
            )


def _checked(name: str, raw: object, source: Source) -> Any:
    """Return the value as the setting's type; the error names the value and its source."""
    trait = Ivy.class_traits()[name]
    try:
        if isinstance(raw, DeferredConfig):
            value = raw.get_value(trait)
        elif isinstance(raw, str) and not isinstance(trait, Unicode):
            value = trait.from_string(raw)
        else:
            value = raw
        if isinstance(value, bool) and not isinstance(trait, Bool):
            raise ValueError  # Python would take true for the number 1
        # traitlets has no public way to validate a value without setting it.
        value = trait._validate(Ivy({}, {}), value)
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError
        if isinstance(value, str):
            value = _checked_text(name, value)
    except (TraitError, ValueError) as exc:
        shown = "(not shown)" if is_secret(name) or may_hold_a_key(raw) else shown_value(raw)
        reason = str(exc) if isinstance(exc, _RefusedError) else ""
        raise SettingError(
            f"The setting {name} cannot be {shown} (set by {source}): {reason or _allowed(trait)}.",
            setting=name,
        ) from None
    return value


class _RefusedError(ValueError):
    """A text value of the right type that is not allowed; the message says what is."""


def _checked_text(name: str, value: str) -> str:
    value = value.strip()
    if any(ord(character) < 32 or ord(character) == 127 for character in value):
        raise _RefusedError("it may not contain line breaks or control characters")
    if any(0xD800 <= ord(character) < 0xE000 for character in value):
        raise _RefusedError("it must be text in UTF-8")
    if is_secret(name) and not all(33 <= ord(character) < 127 for character in value):
        raise _RefusedError("it may contain only printable ASCII characters and no spaces")
    if name in ("api_url", "recoup_api_url"):
        try:
            value = check_url(value, allow_local=name == "api_url")
        except ValueError as exc:
            raise _RefusedError(str(exc)) from None
    if name == "chat_id" and value in (".", ".."):
        raise _RefusedError("it must be the id of a chat")
    if name == "ca_bundle" and value:
        value = os.path.expanduser(value)  # noqa: PTH111 - Path raises where there is no home
        if not Path(value).is_file():
            raise _RefusedError("it must name a file of PEM certificates that exists")
    if name.endswith("_field") and not value:
        raise _RefusedError("it must name a field")
    return value


def _allowed(trait: TraitType[Any, Any]) -> str:
    if isinstance(trait, Enum):
        return "allowed are " + ", ".join(repr(value) for value in trait.values or ())
    if isinstance(trait, Bool):
        return "it must be true or false"
    if isinstance(trait, Int | Float):
        kind = "a whole number" if isinstance(trait, Int) else "a number"
        low = getattr(trait, "min", None)
        high = getattr(trait, "max", None)
        bounds = [f"at least {low:.15g}"] if low not in (None, float("-inf")) else []
        bounds += [f"at most {high:.15g}"] if high not in (None, float("inf")) else []
        return f"it must be {kind}" + (", " + " and ".join(bounds) if bounds else "")
    return "it must be text"


# Config files -------------------------------------------------------------------------------------
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
