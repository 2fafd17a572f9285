"""Settings that follow their files and the environment while a program runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from traitlets.config import Config

from ivy_kernel.errors import SettingError
from ivy_kernel.settings.files import config_file_names
from ivy_kernel.settings.settings import (
    LOCAL_CHAT_ID,
    Ivy,
    environment_name,
    load_settings,
    setting_names,
    variable,
)

_VARIABLES = tuple(environment_name(name) for name in setting_names())

_FileState = tuple[Path, int, int, int]
"""A file, and what changes when it is edited or replaced: time in ns, size, inode."""


class LiveSettings:
    """The settings of the moment: a changed file or variable counts from the next look.

    So a new key needs no restart. A look costs a few ``stat`` calls; files are read again only when
    one of them, or a variable, has changed.

    Parameters
    ----------
    arguments, flags
        As in `load_settings`.
    """

    def __init__(
        self, *, arguments: Mapping[str, Any] | None = None, flags: Config | None = None
    ) -> None:
        self._arguments = dict(arguments or {})
        self._own_arguments = dict(self._arguments)
        self._flags = flags
        self._settings: Ivy | None = None
        self._seen: tuple[list[_FileState], int] = ([], 0)

    def current(self) -> Ivy:
        """Return the settings of the moment.

        Raises
        ------
        SettingError
            When one cannot be used.
        """
        # Taken before the files are read: a change in between is then seen at the next look.
        seen = (_file_states(), _environment_hash())
        if self._settings is None or seen != self._seen:
            self._settings = None
            self._settings = load_settings(arguments=self._arguments, flags=self._flags)
            self._seen = seen
        return self._settings

    def reload(self) -> Ivy:
        """Read all settings again, whether or not a change can be seen from outside."""
        self._settings = None
        return self.current()

    def beside(self, **arguments: Any) -> LiveSettings:
        """Return other live settings: these, as they are without `attach`, and some values first.

        Parameters
        ----------
        arguments
            Values that come before all sources; ``None`` values count as not given.
        """
        given = {name: value for name, value in arguments.items() if value is not None}
        return LiveSettings(arguments={**self._own_arguments, **given}, flags=self._flags)

    @property
    def attached(self) -> dict[str, str]:
        """The ids that `attach` has put before the settings; empty without it."""
        own = self._own_arguments
        return {name: value for name, value in self._arguments.items() if own.get(name) != value}

    def attach(
        self, chat_id: str, *, campaign_id: str | None = None, session_id: str | None = None
    ) -> Callable[[], None]:
        """Switch to another chat, whatever the files and the environment say.

        Parameters
        ----------
        chat_id
            The chat; the one that the settings name leads back to them.
        campaign_id
            Its campaign; ``None``: as the settings say.
        session_id
            Session id for a new sandbox; ``None``: as the settings say for their own chat, a
            generated one for any other.

        Returns
        -------
        Callable[[], None]
            Takes it back.

        Raises
        ------
        SettingError
            When an id cannot be used; nothing has changed then.
        """
        before = self._arguments

        def undo() -> None:
            self._arguments, self._settings = before, None

        self._arguments, self._settings = dict(self._own_arguments), None
        try:
            if chat_id != (self.current().chat_id or LOCAL_CHAT_ID):
                # These two belong to the settings' own chat.
                self._arguments |= {"chat_id": chat_id, "session_id": "", "recoup_session_id": ""}
            given = {"campaign_id": campaign_id, "session_id": session_id}
            self._arguments |= {name: value for name, value in given.items() if value is not None}
            self.reload()
        except SettingError:
            undo()
            raise
        return undo


def _environment_hash() -> int:
    """Return a number that changes when a variable of ours does; a hash keeps no key."""
    return hash(tuple(map(variable, _VARIABLES)))


def _file_states() -> list[_FileState]:
    """Return the states of the config files that are there."""
    states = []
    for path in config_file_names():
        try:
            status = os.stat(path)  # noqa: PTH116 - each cell looks several times
        except OSError:
            continue
        states.append((path, status.st_mtime_ns, status.st_size, status.st_ino))
    return states
