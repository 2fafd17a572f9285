"""How often an owner may ask."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from email.utils import formatdate

from ivy_kernel.local_sandbox.clock import Clock
from ivy_kernel.local_sandbox.config import Config
from ivy_kernel.local_sandbox.refusal import Refusal


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
