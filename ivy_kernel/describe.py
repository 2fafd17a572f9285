"""Sandbox and settings in words, for magics and command line alike."""

from __future__ import annotations

from ivy_kernel.lifecycle import Lifecycle
from ivy_kernel.settings import Ivy, is_secret, setting_names
from ivy_kernel.status import SandboxStatus


def duration_words(seconds: float | None) -> str:
    """A duration as people say it, for example ``4 min 05 s``."""
    if seconds is None:
        return "unknown"
    whole = round(seconds)
    hours, rest = divmod(whole, 3600)
    minutes, secs = divmod(rest, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    if minutes:
        return f"{minutes} min {secs:02d} s"
    return f"{secs} s"


def status_lines(lifecycle: Lifecycle, status: SandboxStatus, now: float) -> list[str]:
    """What is known of a sandbox, a line each."""
    state = status.effective_state(now)
    word = f" ({status.raw_state})" if state == "unknown" and status.raw_state else ""
    lines = [f"sandbox: {lifecycle.name}", f"state: {state}{word}"]
    if status.phase and state in ("provisioning", "restoring"):
        lines.append(f"phase: {status.phase}")
    eta = status.eta_remaining_seconds(now)
    if eta is not None:
        lines.append(f"ready in: about {duration_words(eta)}")
    uptime = status.uptime_seconds(now)
    if uptime is not None:
        lines.append(f"up for: {duration_words(uptime)}")
    for deadline, words in (("hibernation", "hibernates in"), ("expiry", "expires in")):
        left = status.remaining_seconds(deadline, now)  # type: ignore[arg-type] # the two literals
        if left is not None and state == "active":
            lines.append(f"{words}: {duration_words(left)}")
    if status.error:
        lines.append(f"error: {status.error}")
    return lines


def settings_table(settings: Ivy) -> str:
    """Every setting: name, value and source. Keys are shown as set or not set only."""
    rows = []
    for name in setting_names():
        value = getattr(settings, name)
        shown = ("set" if value else "not set") if is_secret(name) else str(value) or "not set"
        rows.append((name, shown, str(settings.sources[name])))
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    where = "local sandbox" if settings.is_local else settings.api_url
    lines = [f"{name:<{widths[0]}}  {value:<{widths[1]}}  {source}" for name, value, source in rows]
    return "\n".join([f"cells run in: {where}", *lines]) + "\n"
