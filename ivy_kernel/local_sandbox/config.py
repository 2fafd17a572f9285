"""Every setting of the local sandbox, with its default, meaning and check."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from ivy_kernel.local_sandbox import checks
from ivy_kernel.local_sandbox.checks import Check
from ivy_kernel.local_sandbox.simulation.result_shapes import CASES, FAMILIES, NESTINGS
from ivy_kernel.local_sandbox.simulation.runners import RUNNERS

Json = dict[str, Any]

PROFILES = ("local", "cloud")


class ConfigError(ValueError):
    """A setting is unknown or has a value that cannot be used."""


def _about(check: Check, meaning: str) -> dict[str, Any]:
    return {"check": check, "meaning": meaning}


def _setting(default: Any, check: Check, meaning: str) -> Any:
    return field(default=default, metadata=_about(check, meaning))


_TOOL_GROUPS = ("script", "notebook", "files")
_RUN_GROUPS = ("script", "notebook")


@dataclass(frozen=True)
class Config:
    """The settings; ``merged`` makes a changed copy. ``meaning`` in each field's metadata."""

    profile: str = _setting(
        "local",
        checks.choice(*PROFILES),
        "local: a sandbox lives until terminated; cloud: 300 s / 1800 s",
    )
    hibernate_seconds: float | None = _setting(
        None,
        checks.number(0.05, optional=True),
        "idle time to hibernation; null: as the profile says",
    )
    runtime_seconds: float | None = _setting(
        None, checks.number(0.05, optional=True), "life of a runtime; null: as the profile says"
    )
    expiry_margin_seconds: float | None = _setting(
        None,
        checks.number(0, optional=True),
        "Recoup says active only while expiry is further away; null: 10 or a tenth of the runtime",
    )
    expiry_keeps_snapshot: bool = _setting(
        True, checks.flag, "an expired sandbox ends as hibernated (resumable), else as archived"
    )
    hibernating_seconds: float = _setting(
        0.2, checks.number(), "how long hibernating takes at least"
    )
    hibernation_fails: bool = _setting(
        False,
        checks.flag,
        "hibernation fails: lifecycle failed with a live runtime, healed by a read",
    )
    provision_seconds: dict[str, float] = field(
        default_factory=lambda: {"compute": 0.6, "mount": 0.4},
        metadata=_about(
            checks.each(checks.number(), ("compute", "mount")),
            "how long each phase of a cold start takes at least",
        ),
    )
    restore_seconds: dict[str, float] = field(
        default_factory=lambda: {"compute": 0.3, "mount": 0.2},
        metadata=_about(
            checks.each(checks.number(), ("compute", "mount")),
            "how long each phase of a resume takes at least",
        ),
    )
    provision_fails_in: str = _setting(
        "", checks.choice("", "compute", "mount"), "the phase in which provisioning fails"
    )
    provision_error: str = _setting(
        "no capacity in this region", checks.text, "the errorMessage of a failed provisioning"
    )
    create_error: int = _setting(0, checks.choice(0, 500, 503), "create answers with this status")

    chats: dict[str, dict[str, str]] = field(
        default_factory=dict,
        metadata=_about(
            checks.each(checks.chat),
            "chat id to owner and campaign; other chats belong to who creates first",
        ),
    )
    sessions: dict[str, str] = field(
        default_factory=dict,
        metadata=_about(
            checks.each(checks.text), "session id to owner, for sessions that never had a sandbox"
        ),
    )
    tokens: dict[str, str] = field(
        default_factory=dict,
        metadata=_about(checks.owners, "further accepted tokens, each to its owner"),
    )
    rate_limit: dict[str, Any] | None = field(
        default=None, metadata=_about(checks.rate_limit, "requests per owner; null for no limit")
    )

    cap_seconds: dict[str, float] = field(
        default_factory=lambda: {"script": 120, "notebook": 300, "files": 300},
        metadata=_about(
            checks.each(checks.number(0.05), _TOOL_GROUPS),
            "the most that timeout may ask for, per group of tools",
        ),
    )
    interrupt_grace_seconds: float = _setting(
        5.0,
        checks.number(),
        "how long a notebook cell may take to stop before its kernel is killed",
    )
    max_request_bytes: int = _setting(
        200 << 20, checks.whole(1), "a larger body is refused with 400"
    )
    max_code_chars: int = _setting(
        0, checks.whole(), "longer code is refused with 400; 0: no limit"
    )
    output_limit_bytes: int = _setting(
        100 << 20,
        checks.whole(),
        "what is kept of each stream of a call; the rest is dropped and counted",
    )
    stdout_limit_chars: int = _setting(
        0, checks.whole(), "each text is cut to this length, with a note; 0: no limit"
    )
    memory_limit_bytes: int = _setting(
        0, checks.whole(), "address space of each process (RLIMIT_AS); 0: no limit"
    )

    result_family: dict[str, str] = field(
        default_factory=lambda: {"script": "process", "notebook": "nbformat"},
        metadata=_about(
            checks.each(checks.choice(*FAMILIES), _RUN_GROUPS),
            f"the shape of results, per group of tools: {', '.join(FAMILIES)}",
        ),
    )
    result_case: str = _setting("snake", checks.choice(*CASES), "spelling of the keys of results")
    result_nesting: str = _setting(
        "",
        checks.choice(*NESTINGS),
        f"where a result is put in the answer: {', '.join(NESTINGS[1:])}",
    )
    code_field: dict[str, str] = field(
        default_factory=dict,
        metadata=_about(
            checks.each(checks.text),
            "tool to the name of its code (or command) field; others get 400",
        ),
    )
    runner: str = _setting(
        "normal", checks.choice(*RUNNERS), f"how calls are run: {', '.join(RUNNERS)}"
    )
    python: str = _setting("", checks.text, "the Python of the sandbox; empty: the server's own")
    rscript: str = _setting("Rscript", checks.text, "the Rscript of the sandbox")
    environment: dict[str, str] = field(
        default_factory=dict,
        metadata=_about(checks.each(checks.text), "further variables for processes"),
    )
    cancel_on_disconnect: bool = _setting(
        False, checks.flag, "a call whose client went away is stopped; false: it goes on to its end"
    )
    skew_ms: int = _setting(0, checks.any_whole, "the server's clock is off by so much")

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
        """How far away the expiry must be for Recoup's ``active``, in seconds."""
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
        known = {item.name: item for item in fields(self)}
        new: Json = {}
        for name, value in changes.items():
            if name not in known:
                raise ConfigError(f"there is no setting {name!r}; there are: {', '.join(known)}")
            current = getattr(self, name)
            if isinstance(current, dict) and isinstance(value, dict):
                both = {**current, **value}
                value = {key: item for key, item in both.items() if item is not None}
            elif name == "result_family" and isinstance(value, str):
                value = dict.fromkeys(_RUN_GROUPS, value)
            if allowed := known[name].metadata["check"](value):
                # A token must not get into an error text, so that no value of it is shown.
                shown = "the value given" if name == "tokens" else json.dumps(value)
                raise ConfigError(f"{name} cannot be {shown}; allowed: {allowed}")
            new[name] = value
        return replace(self, **new)

    def shown(self) -> Json:
        """The settings as JSON, tokens masked."""
        shown = asdict(self)
        shown["tokens"] = sorted(self.tokens.values())
        return shown


def described() -> str:
    """One line per setting, for ``--help``."""
    blank = Config()
    lines = []
    for item in fields(Config):
        default = json.dumps(getattr(blank, item.name))
        lines.append(f"  {item.name} (default {default}): {item.metadata['meaning']}")
    return "\n".join(lines)
