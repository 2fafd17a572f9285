"""Notices that a key which the API refused has been replaced."""

from __future__ import annotations

import logging
from collections.abc import Callable

from ivy_kernel.status.pace import REFUSALS

_log = logging.getLogger(__name__)


class KeyCheck:
    """Compares the key in use with the one that was refused.

    Parameters
    ----------
    token
        Gives something that is equal as long as the same credential and settings are in use. It
        is neither shown nor logged. ``None``: a change is never noticed.
    """

    def __init__(self, token: Callable[[], object] | None) -> None:
        self._token = token
        self._sent: object = None
        self._is_refused = False

    def sending(self) -> object:
        """What stands for the key that the request sends which begins now."""
        if self._token is None:
            return None
        try:
            return self._token()
        except Exception as exc:
            # Only the type: what raised it handles credentials.
            _log.warning("The credential in use could not be read (%s).", type(exc).__name__)
            return self._sent  # counts as unchanged

    def answered(self) -> None:
        """The API has given a status: the key is well."""
        self._is_refused = False

    def failed(self, error: Exception, sent: object) -> None:
        """The request that sent this key has failed, perhaps because of it."""
        self._is_refused = isinstance(error, REFUSALS)
        self._sent = sent

    @property
    def has_changed(self) -> bool:
        """Whether the API refused a key, and another is in use by now."""
        return self._is_refused and self.sending() != self._sent
