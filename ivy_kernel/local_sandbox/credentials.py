"""Who is asking: the credentials of a request, in all documented forms."""

from __future__ import annotations

import hmac
import math
from collections import deque
from collections.abc import Callable, Mapping
from email.utils import formatdate

from ivy_kernel.local_sandbox.config import Config
from ivy_kernel.local_sandbox.errors import Refusal
from ivy_kernel.local_sandbox.host import Clock


class RateLimit:
    """A sliding window of requests per owner.

    Parameters
    ----------
    config
        Gives the settings of the moment.
    clock
        The server's clock.
    """

    def __init__(self, config: Callable[[], Config], clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._asked: dict[str, deque[float]] = {}

    def count(self, owner: str) -> None:
        """Count a request.

        Raises
        ------
        Refusal
            429 when there were too many, with ``Retry-After`` as configured.
        """
        rule = self._config().rate_limit
        if rule is None:
            self._asked.clear()
            return
        now, window = self._clock.now(), float(rule.get("per_seconds", 60))
        asked = self._asked.setdefault(owner, deque())
        while asked and asked[0] <= now - window:
            asked.popleft()
        if len(asked) < rule["requests"]:
            asked.append(now)
            return
        wait = math.ceil(asked[0] + window - now) if asked else math.ceil(window)
        forms = {
            "seconds": str(wait),
            "date": formatdate(self._clock.http_date_seconds() + wait, usegmt=True),
            "none": "",
        }
        retry_after = forms[rule.get("retry_after", "seconds")]
        raise Refusal(429, "rate limit exceeded", "RATE_LIMITED", retry_after)


LOCAL_OWNER = "local"
"""The owner whose token the server was started with."""

_UNKNOWN = "authentication required: the credential is missing or not accepted"


def _refused(error: str = _UNKNOWN) -> Refusal:
    return Refusal(401, error, "UNAUTHORIZED")


class Credentials:
    """The accepted tokens.

    Parameters
    ----------
    token
        The token of the local owner.
    further
        Gives further tokens and their owners.
    """

    def __init__(self, token: str, further: Callable[[], Mapping[str, str]]) -> None:
        self._token = token
        self._further = further

    @property
    def tokens(self) -> list[str]:
        """All accepted tokens."""
        return [self._token, *self._further()]

    def _owner(self, given: str) -> str:
        """The owner of a token, found in a time that does not tell how near a guess was."""
        owner = ""
        accepted = {**self._further(), self._token: LOCAL_OWNER}
        for token, name in accepted.items():
            if hmac.compare_digest(token.encode(), given.encode(errors="replace")):
                owner = name
        if not owner:
            raise _refused()
        return owner

    def ivy_owner(self, headers: Mapping[str, str], cookie: str, *, bearer_only: bool) -> str:
        """The owner by ``Authorization``, else ``X-Ivy-Api-Key``, else the ``__session`` cookie.

        Raises
        ------
        Refusal
            401. With ``bearer_only``, as on create, the other forms are not read.
        """
        if "Authorization" in headers:
            return self._owner(_bearer(headers["Authorization"]))
        if bearer_only:
            raise _refused("authentication required: send Authorization: Bearer …")
        if "X-Ivy-Api-Key" in headers:
            return self._owner(headers["X-Ivy-Api-Key"])
        if cookie:
            return self._owner(cookie)
        raise _refused()

    def recoup_owner(self, headers: Mapping[str, str]) -> str:
        """The owner by ``x-api-key`` or ``Authorization``, whichever is there, but not both.

        Raises
        ------
        Refusal
            401.
        """
        if "X-Api-Key" in headers and "Authorization" in headers:
            raise _refused("send x-api-key or Authorization, not both")
        if "X-Api-Key" in headers:
            return self._owner(headers["X-Api-Key"])
        if "Authorization" in headers:
            return self._owner(_bearer(headers["Authorization"]))
        raise _refused()


def _bearer(value: str) -> str:
    scheme, _, token = value.strip().partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise _refused("authentication required: Authorization must be 'Bearer …'")
    return token.strip()
