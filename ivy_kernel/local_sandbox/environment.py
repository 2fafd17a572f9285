"""The environment of the processes in a sandbox: the user's, without what is secret."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from ivy_kernel.local_sandbox.place import Place

MARKER = "IVY_SANDBOX_ID"
"""The variable that tells which sandbox a process belongs to."""

_OURS = re.compile(r"IVY_|RECOUP_|JPY_|JUPYTER_TOKEN$", re.IGNORECASE)
_SECRET = re.compile(
    r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|AUTH|COOKIE", re.IGNORECASE
)
_SHORTEST_SECRET = 8
_URL_WITH_USER = re.compile(r"://[^/\s]*@")


def without_secrets(variables: Mapping[str, str], secrets: Iterable[str] = ()) -> dict[str, str]:
    """The variables that may be passed on.

    Left out are variables of this product and of the Jupyter server around it, those whose name
    speaks of a secret, those that hold one of ``secrets``, and addresses with a user in them.
    """
    # A short one would be found in what has nothing to do with it.
    hidden = [secret for secret in secrets if len(secret) >= _SHORTEST_SECRET]
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
    place: Place,
    python: str,
    secrets: Iterable[str],
    further: Mapping[str, str],
) -> dict[str, str]:
    """The environment of the processes of one sandbox.

    Parameters
    ----------
    sandbox_id
        Marks the processes, so that none is forgotten when the sandbox ends.
    place
        The chat's directories, with a home of its own: what code leaves there is not in the
        user's.
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
    variables.setdefault("MPLCONFIGDIR", str(place.shared_cache / "matplotlib"))
    variables["HOME"] = str(place.home)
    variables["XDG_RUNTIME_DIR"] = str(place.runtime)
    directory = str(Path(python).parent)
    variables["PATH"] = os.pathsep.join([directory, variables.get("PATH", os.defpath)])
    # The parts of the user's setting that would make a script behave unlike it does elsewhere.
    for name in ("PYTHONSTARTUP", "PYTHONINSPECT", "PYTHONHOME", "PYTHONPATH", "OLDPWD", "PWD"):
        variables.pop(name, None)
    variables["PYTHONIOENCODING"] = "utf-8"
    variables.update(further)
    variables[MARKER] = sandbox_id
    return variables


def _user_base(real_home: Path) -> str:
    import site  # only here: it is needed once per sandbox

    if sys.flags.no_user_site:
        return str(real_home / ".local")
    return site.getuserbase()
