"""The options of the agent route, in one frozen object that is handed through whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ivy_kernel.routes.agent.calls import LAUNCH_METHODS, LaunchMethod


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """The agent route's options; the defaults are what the product uses.

    Parameters
    ----------
    launch_methods
        The ways to start and reach an agent, best first.
    directories
        Where to make the agent's private directory; empty for the standard places.
    kernel
        ``auto``, ``ipykernel`` or ``shell`` (the built-in one).
    environment
        Set for the agent, its kernel and all cells.
    poll_wait_seconds
        The longest time that a long poll waits for output; below what proxies and tools allow.
    background_delay_seconds
        The longest time that output between cells is collected before it is fetched; it grows to
        that with the time since the user's last request.
    idle_lifetime_seconds
        After so long without contact the agent ends itself, and the variables with it.
    log_limit_bytes
        How much output is kept in the sandbox while no poll fetches it.
    open_limit_seconds
        How long calls may fail while the agent is looked for.
    give_up_seconds
        How long calls may fail before the outcome of what is running is called unknown.
    """

    launch_methods: tuple[LaunchMethod, ...] = LAUNCH_METHODS
    directories: tuple[str, ...] = ()
    kernel: str = "auto"
    environment: Mapping[str, str] = field(default_factory=dict)
    poll_wait_seconds: float = 25.0
    background_delay_seconds: float = 10.0
    idle_lifetime_seconds: float = 45 * 60.0
    log_limit_bytes: int = 64 << 20
    open_limit_seconds: float = 90.0
    give_up_seconds: float = 900.0
