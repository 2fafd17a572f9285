"""``jupyter ivy doctor``: what is set, what works, and what to do about what does not."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from traitlets import Bool

from ivy_kernel.cli.app import EXIT_FAILED, JSON_FLAG, IvyCommandApp, print_line
from ivy_kernel.cli.setup import kernelspec_fault
from ivy_kernel.errors import (
    CredentialsError,
    ForbiddenError,
    IvyError,
    MissingSettingError,
    SettingError,
)
from ivy_kernel.session.describe import deadline_words, route_lines, state_words
from ivy_kernel.session.lifecycle import PATIENT_DEADLINES_SECONDS
from ivy_kernel.session.open import open_session
from ivy_kernel.session.session import Session
from ivy_kernel.settings.live import LiveSettings
from ivy_kernel.settings.settings import Ivy, is_secret, setting_names
from ivy_kernel.status.clock import monotonic_seconds
from ivy_kernel.status.model import SandboxStatus

CLOCK_TOLERANCE_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Parameters
    ----------
    check
        What was looked at.
    ok
        Whether it is well; ``None`` when it could not be told.
    detail
        What was seen.
    fix
        What to do when it is not well.
    """

    check: str
    ok: bool | None
    detail: str
    fix: str = ""

    def line(self) -> str:
        """Return one line for a person."""
        mark = {True: "ok", False: "FAILED", None: "unknown"}[self.ok]
        fix = f" Fix: {self.fix}" if self.fix and not self.ok else ""
        return f"{mark:<8}{self.check}: {self.detail}{fix}"


class DoctorApp(IvyCommandApp):
    """Check settings, network, key, chat, clock, tools and kernel; one line each.

    It starts no sandbox. In a sandbox that is running it runs a harmless snippet, to find out which
    tools and fields work there and whether variables persist; --no-probe leaves that out. Exit code
    0 when nothing failed.
    """

    name = "jupyter-ivy-doctor"
    description = __doc__
    flags = {  # noqa: RUF012 - the way that traitlets applications are declared
        **JSON_FLAG,
        "no-probe": (
            {"DoctorApp": {"probe": False}},
            "Run nothing in the sandbox, not even a harmless snippet.",
        ),
    }
    probe = Bool(True, help="Run a harmless snippet in a running sandbox.").tag(config=True)

    async def run(self) -> int:
        """Run all checks; later ones need what earlier ones found."""
        live = self.live_settings()
        findings = [check_kernelspec()]
        settings: Ivy | None = None
        try:
            settings = live.current()
        except SettingError as error:
            findings.append(Finding("settings", False, str(error)))
        else:
            findings += [Finding("settings", True, where(settings)), *await self._remote(live)]
        failed = any(finding.ok is False for finding in findings)
        if self.as_json:
            self.print_json(
                {
                    "ok": not failed,
                    "settings": {} if settings is None else settings_json(settings),
                    "checks": [
                        {"check": f.check, "ok": f.ok, "detail": f.detail, "fix": f.fix}
                        for f in findings
                    ],
                }
            )
        else:
            for line in [] if settings is None else settings_lines(settings):
                print_line(line)
            for finding in findings:
                print_line(finding.line())
        return EXIT_FAILED if failed else 0

    async def _remote(self, live: LiveSettings) -> list[Finding]:
        try:
            session = open_session(live)
        except SettingError as error:
            fix = "jupyter ivy login" if isinstance(error, MissingSettingError) else ""
            return [Finding("chat", False, str(error), fix)]
        try:
            findings, status = await check_platform(session)
            if status is not None and status.state == "active" and self.probe:
                findings.append(await check_tools(session))
            elif status is not None:
                findings.append(
                    Finding(
                        "tools",
                        None,
                        f"not looked at, the sandbox is {state_words(status, monotonic_seconds())}",
                    )
                )
            return findings
        finally:
            await session.aclose()


def check_kernelspec() -> Finding:
    """Check that Jupyter finds the kernel, and can start it."""
    found, fault = kernelspec_fault()
    if fault:
        return Finding("kernelspec", False, fault, "jupyter ivy install")
    return Finding("kernelspec", True, f"Jupyter finds the kernel in {found}")


async def check_platform(session: Session) -> tuple[list[Finding], SandboxStatus | None]:
    """Check reachability, key, chat, state and clock, by one status request."""
    lifecycle = session.lifecycle
    try:
        # The state of this moment is wanted, not the one after a recovery.
        status = await lifecycle.status(retry=False, deadlines_seconds=PATIENT_DEADLINES_SECONDS)
    except IvyError as error:
        fix = "jupyter ivy login" if isinstance(error, CredentialsError | ForbiddenError) else ""
        return [Finding("platform", False, str(error), fix)], None
    findings = [
        Finding("platform", True, f"{lifecycle.name} answered, the key is accepted"),
        Finding(
            "status",
            status.state not in ("failed", "unknown"),
            status.error or f"the sandbox is {_status_words(status)}",
            "%ivy terminate, then %ivy create",
        ),
        *(Finding("status", None, sentence) for sentence in status.unknown),
        check_clock(status),
    ]
    if not lifecycle.campaign_id:
        findings.append(
            Finding(
                "campaign",
                None,
                "campaign_id is not set, so no sandbox can be created",
                "jupyter ivy login",
            )
        )
    return findings, status


def _status_words(status: SandboxStatus) -> str:
    now = monotonic_seconds()
    return ", ".join([state_words(status, now), *deadline_words(status, now)])


def check_clock(status: SandboxStatus) -> Finding:
    """Compare this machine's clock with the server's; countdowns do not depend on it."""
    if status.server_time is None:
        return Finding("clock", None, "the platform's answer carries no time")
    skew = (datetime.now(timezone.utc) - status.server_time).total_seconds()
    return Finding(
        "clock",
        abs(skew) < CLOCK_TOLERANCE_SECONDS,
        f"{skew:+.0f} s from the platform's",
        "set this machine's clock; countdowns are right all the same",
    )


async def check_tools(session: Session) -> Finding:
    """Find out the route, tools and fields that work, and whether variables persist."""
    try:
        await session.open_route()
    except IvyError as error:
        return Finding("tools", False, str(error))
    facts = session.describe()
    persist = "variables persist between cells"
    if facts.get("variables_persist") is False:
        persist = "variables are lost after each cell"
    field = facts.get("code_field") or "code"
    takes = [] if field == "code" else [f"the tool takes code in its field {field!r}"]
    return Finding("tools", True, "; ".join([*route_lines(facts), *takes, persist]))


def where(settings: Ivy) -> str:
    """Return the place where cells run, in words."""
    if not settings.is_local:
        return f"cells run at {settings.api_url}"
    reason = ", because neither key nor URL is set (`jupyter ivy login` saves a key)"
    reason = "" if settings.api_url == "local" else reason
    ignored = (
        "; chat_id is set, but without a key it only names a local sandbox"
        if settings.chat_id and reason
        else ""
    )
    return f"cells run in the local sandbox{reason}{ignored}"


def settings_json(settings: Ivy) -> dict[str, Any]:
    """Every setting with value and source; keys as set or not."""
    return {
        name: {
            "value": bool(getattr(settings, name)) if is_secret(name) else getattr(settings, name),
            "source": str(settings.sources[name]),
        }
        for name in setting_names()
    }


def settings_lines(settings: Ivy) -> list[str]:
    """Every setting with value and source; keys as set or not."""
    lines = []
    for name, fact in settings_json(settings).items():
        value = fact["value"]
        if is_secret(name):
            value = "set" if value else ""
        lines.append(f"setting {name} = {value if value != '' else 'not set'} ({fact['source']})")
    return lines
