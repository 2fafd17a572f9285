"""Countdowns and parsers under any clock and any JSON, by generated examples."""

from __future__ import annotations

import ast
import json
import math
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ivy_kernel.status
from ivy_kernel.status.clock import RequestTiming
from ivy_kernel.status.dialects import parse_ivy_create, parse_ivy_status, parse_recoup_status
from ivy_kernel.status.model import SandboxStatus, State

# The first example may take seconds where Hypothesis builds its tables on a busy machine.
PATIENTLY = settings(deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])

NOW_MS = 1_796_000_000_000
DURATIONS = [
    "eta_ms",
    "uptime_ms",
    "idle_ms",
    "hibernates_in_ms",
    "expires_in_ms",
    "age_ms",
]

# Surrogates included: JSON escapes can hold them.
any_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=NOW_MS - 10**7, max_value=NOW_MS + 10**7)
    | st.floats()
    | st.text(alphabet=st.characters())
    | st.datetimes().map(datetime.isoformat)
    | st.sampled_from([*get_args(State), "no_sandbox", "creating", "ready", "compute", ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
ivy_bodies = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(
        (
            "status",
            "phase",
            "etaSeconds",
            "errorMessage",
            "createdAt",
            "success",
            "deduped",
            "sandboxId",
            "tunnelUrl",
        ),
        any_json,
    ),
)
recoup_bodies = st.fixed_dictionaries(
    {},
    optional={
        "status": any_json,
        "hasSnapshot": any_json,
        "lifecycleVersion": any_json,
        "error": any_json,
        "lifecycle": any_json
        | st.fixed_dictionaries(
            {},
            optional=dict.fromkeys(
                ("serverTime", "state", "lastActivityAt", "hibernateAfter", "sandboxExpiresAt"),
                any_json,
            ),
        ),
    },
)
timings = st.builds(
    lambda sent, took, date: RequestTiming(sent, sent + took, date),
    st.floats(0, 1e9),
    st.floats(0, 1e5),
    st.none() | st.datetimes() | st.datetimes(timezones=st.just(timezone.utc)),
)


def assert_is_canonical(status: SandboxStatus, now: float) -> None:
    """The JSON has every key, the right types, and no negative duration."""
    shown = status.to_json(now)
    assert set(shown) == set(CANONICAL)
    for name, types in CANONICAL.items():
        assert isinstance(shown[name], types), name
    assert shown["state"] in get_args(State)
    assert all(shown[name] is None or shown[name] >= 0 for name in DURATIONS)
    json.dumps(shown, allow_nan=False, ensure_ascii=False).encode()


NONE = type(None)
CANONICAL: dict[str, tuple[type, ...]] = {
    "state": (str,),
    "raw_state": (str, NONE),
    "phase": (str, NONE),
    "eta_ms": (int, NONE),
    "uptime_ms": (int, NONE),
    "created_ms": (int, NONE),
    "last_activity_ms": (int, NONE),
    "idle_ms": (int, NONE),
    "hibernates_in_ms": (int, NONE),
    "expires_in_ms": (int, NONE),
    "resumable": (bool, NONE),
    "resumes": (bool,),
    "keeps_awake": (bool,),
    "unknown": (list,),
    "label": (str,),
    "hint": (str,),
    "error": (str, NONE),
    "dialect": (str,),
    "age_ms": (int,),
    "stale": (bool,),
    "stale_reason": (str, NONE),
}


@PATIENTLY
@given(found=ivy_bodies, timing=timings, later=st.floats(0, 1e6), code=st.sampled_from([200, 202]))
def test_any_ivy_object_becomes_a_canonical_status(
    found: dict[str, object], timing: RequestTiming, later: float, code: int
) -> None:
    """No value of any field raises, in the parser or in the JSON made of it."""
    now = timing.received_monotonic + later
    assert_is_canonical(parse_ivy_status(found, timing), now)
    assert_is_canonical(parse_ivy_create(found, code, timing), now)


@PATIENTLY
@given(found=recoup_bodies, timing=timings, later=st.floats(0, 1e6))
def test_any_recoup_object_becomes_a_canonical_status(
    found: dict[str, object], timing: RequestTiming, later: float
) -> None:
    """No value of any field raises, in the parser or in the JSON made of it."""
    now = timing.received_monotonic + later
    assert_is_canonical(parse_recoup_status(found, timing), now)


class World:
    """A server and this machine: one true time, and clocks that started at different moments."""

    def __init__(self, boot: float, server_skew: float) -> None:
        self.boot = boot
        self.server_skew = server_skew

    def monotonic(self, true_seconds: float) -> float:
        """What our monotonic clock says."""
        return true_seconds + self.boot

    def server_ms(self, true_seconds: float) -> int:
        """What the server's clock says."""
        return NOW_MS + round((true_seconds + self.server_skew) * 1000)


worlds = st.builds(World, st.floats(0, 1e7), st.floats(-3600, 3600))


@PATIENTLY
@given(
    world=worlds,
    out=st.floats(0, 20),
    back=st.floats(0, 20),
    expires_in=st.floats(-3600, 7200),
    later=st.floats(0, 7200),
)
def test_a_countdown_agrees_with_the_server_to_half_the_request(
    world: World, out: float, back: float, expires_in: float, later: float
) -> None:
    """However the clocks differ, the error is at most half the time that the request took."""
    found = {
        "status": "active",
        "lifecycle": {
            "serverTime": world.server_ms(out),
            "state": "active",
            "sandboxExpiresAt": world.server_ms(out + expires_in),
        },
    }
    timing = RequestTiming(world.monotonic(0), world.monotonic(out + back))
    status = parse_recoup_status(found, timing)
    true_now = out + back + later
    shown = status.remaining_seconds("expiry", world.monotonic(true_now))
    truth = max(0.0, out + expires_in - true_now)
    assert shown is not None
    assert abs(shown - truth) <= (out + back) / 2 + 0.003  # each of the two is cut to 1 ms
    assert math.isclose(status.uncertainty_seconds, (out + back) / 2, abs_tol=1e-6)


@PATIENTLY
@given(
    world=worlds,
    fraction=st.floats(0, 0.999),
    age=st.floats(0, 86400),
    later=st.floats(0, 3600),
)
def test_uptime_by_the_date_header_is_right_to_half_a_second(
    world: World, fraction: float, age: float, later: float
) -> None:
    """The header is cut to whole seconds; the countdowns made from it are within a second."""
    server_ms = world.server_ms(fraction)
    epoch = datetime(1970, 1, 1, tzinfo=timezone.utc)
    date = epoch + timedelta(seconds=server_ms // 1000)
    found = {"status": "active", "createdAt": server_ms - round(age * 1000)}
    moment = world.monotonic(fraction)
    status = parse_ivy_status(found, RequestTiming(moment, moment, date))
    shown = status.uptime_seconds(moment + later)
    assert shown is not None
    assert abs(shown - (age + later)) <= 0.502 + 1e-6


@PATIENTLY
@given(
    remaining=st.floats(0, 7200),
    ticks=st.lists(st.floats(0, 600), max_size=20),
    dialect=st.sampled_from(["hibernation", "expiry"]),
)
def test_a_countdown_never_rises_and_never_turns_negative(
    remaining: float, ticks: list[float], dialect: str
) -> None:
    """Between two answers it only falls, by what the clock says, down to zero and no further."""
    epoch = datetime(2026, 1, 1, tzinfo=timezone.utc)
    deadline = epoch + timedelta(seconds=remaining)
    status = SandboxStatus(
        state="active",
        dialect="recoup",
        received_monotonic=0.0,
        described_monotonic=0.0,
        server_time=epoch,
        hibernate_at=deadline,
        expires_at=deadline,
    )
    now, last = 0.0, math.inf
    for tick in [0.0, *ticks]:
        now += tick
        shown = status.remaining_seconds(
            "hibernation" if dialect == "hibernation" else "expiry", now
        )
        assert shown is not None
        assert 0 <= shown <= last
        assert abs(shown - max(0.0, remaining - now)) < 1e-3
        last = shown


def test_a_moment_before_the_answer_adds_no_time() -> None:
    """A caller who asks for the past gets what the answer said, not more."""
    found = {
        "status": "active",
        "lifecycle": {"serverTime": NOW_MS, "state": "active", "sandboxExpiresAt": NOW_MS + 5000},
    }
    status = parse_recoup_status(found, RequestTiming(100.0, 100.0))
    assert status.remaining_seconds("expiry", 50.0) == 5
    assert status.to_json(50.0)["age_ms"] == 0


def test_a_sleep_of_the_machine_counts() -> None:
    """A clock that went on while the laptop slept makes the countdown right on waking up."""
    found = {
        "status": "active",
        "lifecycle": {"serverTime": NOW_MS, "state": "active", "sandboxExpiresAt": NOW_MS + 10**6},
    }
    status = parse_recoup_status(found, RequestTiming(100.0, 100.0))
    assert status.to_json(100.0 + 8 * 3600)["state"] == "expired"


WALL_CLOCK_CALLS = {
    ("time", "time"),
    ("time", "time_ns"),
    ("time", "localtime"),
    ("time", "gmtime"),
    ("datetime", "now"),
    ("datetime", "utcnow"),
    ("datetime", "today"),
    ("date", "today"),
}


def _sources() -> list[Path]:
    packages = (ivy_kernel.status, ivy_kernel.status)
    return [
        path for package in packages for path in Path(str(package.__file__)).parent.glob("*.py")
    ]


@pytest.mark.parametrize("path", _sources(), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_no_module_reads_the_wall_clock(path: Path) -> None:
    """The status and its monitor know no wall clock, so setting it cannot change anything."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            assert (node.value.id, node.attr) not in WALL_CLOCK_CALLS, node.lineno
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            assert "time" not in {alias.name for alias in node.names}, node.lineno
