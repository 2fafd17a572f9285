"""The environment of the sandboxes: the server's state that they share, and their variables."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from ivy_kernel.local_sandbox.config import Config
from ivy_kernel.local_sandbox.process_reaper import SANDBOX_ID_VARIABLE
from ivy_kernel.local_sandbox.workspace import ChatPaths


class Observer:
    """Gets told about requests, tool calls and process starts; this one ignores them all.

    ``simulation.control.Counters`` is the one that counts.
    """

    def on_request(self, route: str, status_code: int, bytes_in: int, bytes_out: int) -> None:
        """A request was answered."""

    def on_call(self, tool: str, milliseconds: float) -> None:
        """A tool call ended; it took so long in all."""

    def on_spawn(self, milliseconds: float) -> None:
        """A process was started; it took so long until it ran."""


@dataclass
class ServerContext:
    """State that the handlers and all sandboxes of one server share.

    Parameters
    ----------
    root
        The directory below which each chat has its own.
    token
        The token of the local owner.
    config
        The current settings; replaced as a whole when they change at run time.
    sweep_orphans
        Makes the supervisor kill the processes that a killed process reaper left to it.
    observer
        Is told what the server does.
    """

    root: Path
    token: str = field(repr=False)
    config: Config = field(repr=False)  # it may hold further tokens
    sweep_orphans: Callable[[], None]
    observer: Observer

    def __post_init__(self) -> None:
        self.clock = Clock(self)

    @property
    def secrets(self) -> list[str]:
        """Every accepted token: values that no process of a sandbox may see."""
        return [self.token, *self.config.tokens]


class Clock:
    """Tells the time as the server's clients see it: off by the setting ``skew_ms``."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context

    @staticmethod
    def now() -> float:
        """A monotonic time in seconds, for durations and deadlines."""
        return time.monotonic()

    def epoch_ms(self, moment: float | None = None) -> int:
        """Epoch milliseconds of a monotonic moment; of now when ``None``."""
        moment = self.now() if moment is None else moment
        return round((time.time() + moment - self.now()) * 1000) + self._context.config.skew_ms

    def iso(self, moment: float | None = None) -> str:
        """The same as an RFC 3339 date-time in UTC."""
        when = datetime.fromtimestamp(self.epoch_ms(moment) / 1000, timezone.utc)
        return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def http_date_seconds(self) -> float:
        """Epoch seconds for the ``Date`` header."""
        return time.time() + self._context.config.skew_ms / 1000


# The variables of the processes in a sandbox: the user's, without secrets.

_OURS = re.compile(r"IVY_|RECOUP_|JPY_|JUPYTER_TOKEN$", re.IGNORECASE)
_SECRET = re.compile(
    r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|AUTH|COOKIE", re.IGNORECASE
)
_MIN_SECRET_CHARS = 8
_URL_WITH_USER = re.compile(r"://[^/\s]*@")


def without_secrets(variables: Mapping[str, str], secrets: Iterable[str] = ()) -> dict[str, str]:
    """The variables that may be passed on.

    Left out are variables of this product and of the Jupyter server around it, those whose name
    speaks of a secret, those that hold one of ``secrets``, and addresses with a user in them.
    """
    # A short secret occurs by chance in values that have nothing to do with it.
    hidden = [secret for secret in secrets if len(secret) >= _MIN_SECRET_CHARS]
    return {
        name: value
        for name, value in variables.items()
        if not _OURS.match(name)
        and not _SECRET.search(name)
        and not _URL_WITH_USER.search(value)
        and not any(secret in value for secret in hidden)
    }


def sandbox_environment(
    sandbox_id: str,
    paths: ChatPaths,
    python: str,
    secrets: Iterable[str],
    further: Mapping[str, str],
) -> dict[str, str]:
    """The environment variables of the processes of one sandbox.

    Parameters
    ----------
    sandbox_id
        Marks the processes, so that none is forgotten when the sandbox ends.
    paths
        The chat's directories. Its home directory is used, so that what code leaves there is not
        in the user's.
    python
        The interpreter, whose directory comes first on the path.
    secrets
        Values that must not appear.
    further
        Variables that the configuration adds.
    """
    variables = without_secrets(os.environ, secrets)
    real_home = Path.home()
    # Packages that the user installed in the real home stay importable.
    variables.setdefault("PYTHONUSERBASE", _user_base(real_home))
    # Building matplotlib's font list takes seconds; one for all sandboxes is enough.
    variables.setdefault("MPLCONFIGDIR", str(paths.shared_cache / "matplotlib"))
    variables["HOME"] = str(paths.home)
    variables["XDG_RUNTIME_DIR"] = str(paths.runtime)
    directory = str(Path(python).parent)
    variables["PATH"] = os.pathsep.join([directory, variables.get("PATH", os.defpath)])
    # The parts of the user's setting that would make a script behave unlike it does elsewhere.
    for name in ("PYTHONSTARTUP", "PYTHONINSPECT", "PYTHONHOME", "PYTHONPATH", "OLDPWD", "PWD"):
        variables.pop(name, None)
    # The server decodes all output as UTF-8, whatever the user's locale is.
    variables["PYTHONIOENCODING"] = "utf-8"
    variables.update(further)
    # Last, so that no setting can hide a process from the search for the marker.
    variables[SANDBOX_ID_VARIABLE] = sandbox_id
    return variables


def _user_base(real_home: Path) -> str:
    import site  # only here: it is needed once per sandbox

    # With -s or -I the interpreter knows no user base; this is where it would be.
    if sys.flags.no_user_site:
        return str(real_home / ".local")
    return site.getuserbase()
