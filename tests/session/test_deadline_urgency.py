"""When a deadline is near, by the rule that the page in the browser has too."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from ivy_kernel.session.describe import urgency, warnings
from ivy_kernel.status.model import SandboxStatus

REPOSITORY = Path(__file__).parents[2]
TABLE = json.loads((REPOSITORY / "labextension/test/urgency.json").read_text("utf-8"))
SERVER_TIME = datetime(2026, 11, 30, 12, tzinfo=timezone.utc)


def status(kind: str, passed: float | None, left: float) -> SandboxStatus:
    """An active sandbox with one deadline, and the moment by which it was set."""
    deadline = SERVER_TIME + timedelta(seconds=left)
    set_at = None if passed is None else SERVER_TIME - timedelta(seconds=passed)
    is_hibernation = kind == "hibernation"
    return SandboxStatus(
        state="active",
        dialect="recoup",
        received_monotonic=0.0,
        described_monotonic=0.0,
        server_time=SERVER_TIME,
        created_at=None if is_hibernation else set_at,
        last_activity_at=set_at if is_hibernation else None,
        hibernate_at=deadline if is_hibernation else None,
        expires_at=None if is_hibernation else deadline,
    )


@pytest.mark.parametrize(
    "row", TABLE, ids=lambda row: f"{row['kind']}-{row['passedSeconds']}-{row['leftSeconds']}"
)
def test_the_table_that_the_page_is_held_to_holds_here_too(row: dict[str, Any]) -> None:
    """Python and TypeScript have one rule, relative to the whole time until the deadline."""
    given = status(row["kind"], row["passedSeconds"], row["leftSeconds"])
    if row["urgency"] == "over" and row["kind"] == "expiry":
        assert given.effective_state(0.0) == "expired"
        return
    assert urgency(given, row["kind"], 0.0) == row["urgency"]


def test_a_short_life_is_not_one_long_warning() -> None:
    """With five minutes of idle life, three seconds after a cell there is no warning."""
    assert warnings(status("hibernation", 3, 297), 0.0) == []
    assert "hibernates in 1 min 30 s" in warnings(status("hibernation", 210, 90), 0.0)[0]
