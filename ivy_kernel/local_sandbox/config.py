"""Every setting of the local sandbox: its type, bounds, default and help text."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

from msgspec import UNSET, Meta, Struct, UnsetType, ValidationError, convert, field, to_builtins
from msgspec.structs import replace

Json = dict[str, Any]


class ConfigError(ValueError):
    """A setting is unknown or has a value that cannot be used."""


# The names of shapes and runners stand here and not beside their code: most of that is in
# `simulation`, which a server loads only when a setting asks for it.
ResultShape = Literal[
    "process",
    "process_returncode",
    "text",
    "text_result",
    "text_text",
    "nbformat",
    "nbformat_lines",
    "nbformat_cells",
    "nbformat_notebook",
    "typed",
    "content",
    "artifacts",
    "images",
    "error_string",
    "error_object",
    "error_traceback",
    "mcp",
    "mcp_words",
    "e2b",
    "azure",
    "piston",
    "gemini",
    "events",
    "messages",
]
ResultCase = Literal["snake", "camel"]
ResultNesting = Literal["", "result", "data", "output", "result_json", "data_json", "output_json"]
RunnerName = Literal[
    "normal", "kill_descendants", "fresh_tmp", "pid_namespace", "serial", "python_dash_c"
]
RunGroup = Literal["script", "notebook"]
ToolGroup = Literal["script", "notebook", "files"]
Phase = Literal["compute", "mount"]

# The upper bound refuses infinity, which a JSON number like 1e999 becomes.
_Seconds = Annotated[float, Meta(ge=0, le=sys.float_info.max)]
_Deadline = Annotated[float, Meta(ge=0.05, le=sys.float_info.max)]
_Count = Annotated[int, Meta(ge=0)]
_Name = Annotated[str, Meta(min_length=1)]
# A title replaces the words that `_allowed` would find for the type.
_Owners: TypeAlias = Annotated[
    dict[_Name, _Name], Meta(title="an object that maps each token to the name of its owner")
]
_Chat: TypeAlias = Annotated[
    dict[Literal["owner", "campaign"], str],
    Meta(title='an object like {"owner": "…", "campaign": "…"}'),
]
# As many entries as there are keys: a null, which removes a key, is refused here.
_Phases: TypeAlias = Annotated[dict[Phase, _Seconds], Meta(min_length=len(get_args(Phase)))]
_Caps: TypeAlias = Annotated[dict[ToolGroup, _Deadline], Meta(min_length=len(get_args(ToolGroup)))]
_Shapes: TypeAlias = Annotated[
    dict[RunGroup, ResultShape], Meta(min_length=len(get_args(RunGroup)))
]


def _listed(choices: Any) -> str:
    return ", ".join(word for word in get_args(choices) if word)


class RateLimitRule(Struct, frozen=True, forbid_unknown_fields=True):
    """A rate limit: ``requests`` in ``per_seconds`` (60), and the form of ``Retry-After``."""

    requests: int | float
    per_seconds: int | float | UnsetType = UNSET
    retry_after: Literal["seconds", "date", "none"] | UnsetType = UNSET


class Config(Struct, frozen=True, kw_only=True):
    """The settings; ``merged`` makes a changed copy.

    The last item of each annotation is the line for ``--help``.
    """

    profile: Annotated[
        Literal["local", "cloud"], "local: a sandbox lives until terminated; cloud: 300 s / 1800 s"
    ] = "local"
    hibernate_seconds: Annotated[
        _Deadline | None, "idle time to hibernation; null: as the profile says"
    ] = None
    runtime_seconds: Annotated[_Deadline | None, "life of a runtime; null: as the profile says"] = (
        None
    )
    expiry_margin_seconds: Annotated[
        _Seconds | None,
        "Recoup says active only while expiry is further away; null: 10 or a tenth of the runtime",
    ] = None
    expiry_keeps_snapshot: Annotated[
        bool, "an expired sandbox ends as hibernated (resumable), else as archived"
    ] = True
    hibernating_seconds: Annotated[_Seconds, "how long hibernating takes at least"] = 0.2
    hibernation_fails: Annotated[
        bool, "hibernation fails: lifecycle failed with a live runtime, healed by a read"
    ] = False
    provision_seconds: Annotated[_Phases, "how long each phase of a cold start takes at least"] = (
        field(default_factory=lambda: {"compute": 0.6, "mount": 0.4})
    )
    restore_seconds: Annotated[_Phases, "how long each phase of a resume takes at least"] = field(
        default_factory=lambda: {"compute": 0.3, "mount": 0.2}
    )
    provision_fails_in: Annotated[
        Literal["", "compute", "mount"], "the phase in which provisioning fails"
    ] = ""
    provision_error: Annotated[str, "the errorMessage of a failed provisioning"] = (
        "no capacity in this region"
    )
    create_error: Annotated[Literal[0, 500, 503], "create answers with this status"] = 0
    recoup_server: Annotated[
        Literal["current", "older"],
        "Recoup's status beside hibernated, archived, restoring: active (current), no_sandbox",
    ] = "current"
    recoup_error: Annotated[
        Literal[0, 401, 404], "Recoup answers with this status, as in an outage of its database"
    ] = 0

    chats: Annotated[
        dict[str, _Chat], "chat id to owner and campaign; other chats belong to who creates first"
    ] = {}
    sessions: Annotated[
        dict[str, str], "session id to owner, for sessions that never had a sandbox"
    ] = {}
    tokens: Annotated[_Owners, "further accepted tokens, each to its owner"] = {}
    rate_limit: Annotated[RateLimitRule | None, "requests per owner; null for no limit"] = None

    cap_seconds: Annotated[_Caps, "the most that timeout may ask for, per group of tools"] = field(
        default_factory=lambda: {"script": 120, "notebook": 300, "files": 300}
    )
    interrupt_grace_seconds: Annotated[
        _Seconds, "how long a notebook cell may take to stop before its kernel is killed"
    ] = 5.0
    max_request_bytes: Annotated[int, Meta(ge=1), "a larger body is refused with 400"] = 200 << 20
    max_code_chars: Annotated[_Count, "longer code is refused with 400; 0: no limit"] = 0
    output_limit_bytes: Annotated[
        _Count, "what is kept of each stream of a call; the rest is dropped and counted"
    ] = 100 << 20
    stdout_limit_chars: Annotated[
        _Count, "each text is cut to this length, with a note; 0: no limit"
    ] = 0
    memory_limit_bytes: Annotated[
        _Count, "address space of each process (RLIMIT_AS); 0: no limit"
    ] = 0
    result_family: Annotated[
        _Shapes, f"the shape of results, per group of tools: {_listed(ResultShape)}"
    ] = field(default_factory=lambda: {"script": "process", "notebook": "nbformat"})
    result_case: Annotated[ResultCase, "spelling of the keys of results"] = "snake"
    result_nesting: Annotated[
        ResultNesting, f"where a result is put in the answer: {_listed(ResultNesting)}"
    ] = ""
    code_field: Annotated[
        dict[str, str], "tool to the name of its code (or command) field; others get 400"
    ] = {}
    runner: Annotated[RunnerName, f"how calls are run: {_listed(RunnerName)}"] = "normal"
    python: Annotated[str, "the Python of the sandbox; empty: the server's own"] = ""
    rscript: Annotated[str, "the Rscript of the sandbox"] = "Rscript"
    environment: Annotated[dict[str, str], "further variables for processes"] = {}
    cancel_on_disconnect: Annotated[
        bool, "a call whose client went away is stopped; false: it goes on to its end"
    ] = False
    skew_ms: Annotated[int, "the server's clock is off by so much"] = 0

    @property
    def hibernate_after_seconds(self) -> float | None:
        """Idle time to hibernation, ``None`` for never."""
        if self.hibernate_seconds is None and self.profile == "cloud":
            return 300.0
        return self.hibernate_seconds

    @property
    def runtime_limit_seconds(self) -> float | None:
        """Life of a runtime, ``None`` for no end."""
        if self.runtime_seconds is None and self.profile == "cloud":
            return 1800.0
        return self.runtime_seconds

    @property
    def expiry_margin(self) -> float:
        """Seconds that the expiry must be away for Recoup's ``active``."""
        if self.expiry_margin_seconds is not None:
            return self.expiry_margin_seconds
        runtime = self.runtime_limit_seconds
        return 0.0 if runtime is None else min(10.0, runtime / 10)

    def merged(self, changes: Mapping[str, Any]) -> Config:
        """A copy with ``changes``; objects are merged key by key, and a null removes a key.

        Raises
        ------
        ConfigError
            A setting is unknown or its value is not allowed.
        """
        new: Json = {}
        for name, value in changes.items():
            if name not in _TYPES:
                raise ConfigError(f"there is no setting {name!r}; there are: {', '.join(_TYPES)}")
            current = to_builtins(getattr(self, name))
            if isinstance(current, dict) and isinstance(value, dict):
                both = {**current, **value}
                value = {key: item for key, item in both.items() if item is not None}
            elif name == "result_family" and isinstance(value, str):
                value = dict.fromkeys(get_args(RunGroup), value)
            try:
                converted = convert(value, _TYPES[name])
            except ValidationError:
                # A token must not get into an error text, so that no value of it is shown.
                shown = "the value given" if name == "tokens" else json.dumps(value)
                allowed = _allowed(_TYPES[name])
                raise ConfigError(f"{name} cannot be {shown}; allowed: {allowed}") from None
            # Numbers stay as they were given: 2 shall not come back as 2.0.
            new[name] = converted if isinstance(converted, Struct) else value
        return replace(self, **new)

    def shown(self) -> Json:
        """The settings as JSON, tokens masked."""
        return {**to_builtins(self), "tokens": sorted(self.tokens.values())}


_TYPES = get_type_hints(Config, include_extras=True)
_WORDS = {
    bool: "true or false",
    str: "a string",
    NoneType: "null",
    int: "a whole number",
    float: "a number",
    RateLimitRule: '{"requests": 60, "per_seconds": 60, "retry_after": "seconds"}',
}


def _allowed(kind: Any) -> str:
    """Say in words which values a type allows; msgspec's own text does not list the choices."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        metas = [meta for meta in kind.__metadata__ if isinstance(meta, Meta)]
        title = next((meta.title for meta in metas if meta.title), "")
        low = next((f" of at least {meta.ge:g}" for meta in metas if meta.ge is not None), "")
        return title or _allowed(inner[0]) + low
    if origin is Literal:
        return ", ".join(json.dumps(word) for word in inner)
    if origin in (Union, UnionType):
        return " or ".join(_allowed(choice) for choice in inner)
    if origin is dict:
        keys = f"keys: {_allowed(inner[0])}; " if get_origin(inner[0]) is Literal else ""
        return f"an object ({keys}values: {_allowed(inner[1])})"
    return _WORDS[kind]


def described() -> str:
    """One line per setting, for ``--help``."""
    blank = Config()
    lines = []
    for name, kind in _TYPES.items():
        default = json.dumps(getattr(blank, name))
        lines.append(f"  {name} (default {default}): {kind.__metadata__[-1]}")
    return "\n".join(lines)
