"""The code-running tools of one chat's sandbox, and the field that carries their code.

The platform does not document that field. A harmless probe finds it, and is remembered.
"""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ivy_kernel.client import IvyClient
from ivy_kernel.errors import BadRequestError, RouteError

ALTERNATIVE_FIELDS = ("code", "source", "script", "input", "cells")
PROBE_TIMEOUT_SECONDS = 60.0

_PROBE = """\
import os as _ivy_os, sys as _ivy_sys
_ivy_start = ''
_ivy_file = None
try:
    with open('/proc/self/stat') as _ivy_file:
        _ivy_start = _ivy_file.read().rsplit(')', 1)[1].split()[19]
except Exception:
    pass
_ivy_id = _ivy_sys.__dict__.setdefault('_ivy_kernel_id', '{nonce}')
print('IVY-PROBE-{nonce}:%s:%s:%s:%s:' % (
    _ivy_id, _ivy_os.getpid(), _ivy_start, _ivy_sys.version.split()[0]))
del _ivy_os, _ivy_sys, _ivy_start, _ivy_id, _ivy_file
"""


@dataclass(frozen=True, slots=True)
class Probe:
    """What a probe saw of the Python that ran it.

    Parameters
    ----------
    identity
        Stays the same for as long as the same Python process answers.
    process_id, process_start
        The process's id, and its start in kernel ticks (empty where there is no ``/proc``).
    python_version
        For example ``3.12.1``.
    """

    identity: str
    process_id: int
    process_start: str
    python_version: str


@dataclass(slots=True)
class SandboxTools:
    """Runs code through the tools of one chat's sandbox.

    Parameters
    ----------
    client
        Gives the platform's client of the moment; the local sandbox's address may change.
    chat_id
        The chat.
    code_fields
        Tool → the field that carries its code, as the settings say.
    """

    client: Callable[[], Awaitable[IvyClient]]
    chat_id: str
    code_fields: dict[str, str]
    found_fields: dict[str, str] = field(default_factory=dict)
    _probing: set[str] = field(default_factory=set)

    async def run(
        self, tool: str, code: str, timeout_seconds: float, *, retry: bool = True
    ) -> object:
        """Run code through a tool; the tool's own JSON result.

        Raises
        ------
        IvyError
            As `IvyClient.run_tool`.
        """
        try:
            return await self._run(tool, code, timeout_seconds, retry=retry)
        except BadRequestError:
            # Refused unread, so nothing ran. Perhaps the code was in a field it does not know.
            if tool in self.found_fields or tool in self._probing:
                raise
        self._probing.add(tool)
        try:
            await self.probe(tool)
        finally:
            self._probing.discard(tool)
        return await self._run(tool, code, timeout_seconds, retry=retry)

    async def _run(self, tool: str, code: str, timeout_seconds: float, *, retry: bool) -> object:
        name = self.found_fields.get(tool) or self.code_fields.get(tool, "code")
        result: object = await (await self.client()).run_tool(
            self.chat_id, tool, {name: code}, timeout_seconds=timeout_seconds, retry=retry
        )
        return result

    async def probe(self, tool: str) -> Probe:
        """Find out, by running a harmless snippet, which field works and which Python answers.

        Raises
        ------
        RouteError
            When the tool is unknown, or no field makes it print what it was told to.
        """
        wanted = self.found_fields.get(tool) or self.code_fields.get(tool, "code")
        refused: list[str] = []
        for name in dict.fromkeys((wanted, *ALTERNATIVE_FIELDS)):
            nonce = os.urandom(8).hex()
            parameters: Mapping[str, Any] = {name: _PROBE.format(nonce=nonce)}
            try:
                result = await (await self.client()).run_tool(
                    self.chat_id, tool, parameters, timeout_seconds=PROBE_TIMEOUT_SECONDS
                )
            except BadRequestError as exc:
                refused.append(f"{name}: {exc.detail or 'HTTP 400'}")
                continue
            probe = _find_probe(result, nonce)
            if probe is not None:
                self.found_fields[tool] = name
                return probe
            refused.append(f"{name}: its output did not come back")
        raise RouteError(
            f"{tool} did not run a probe with any known field ({'; '.join(refused)}); set the "
            f"field in the settings (…_code_field)."
        )


def _find_probe(result: object, nonce: str) -> Probe | None:
    pattern = re.compile(rf"IVY-PROBE-{nonce}:(\w+):(\d+):(\d*):([\w.+]+):")
    for text in strings_in(result):
        match = pattern.search(text)
        if match:
            identity, process_id, start, version = match.groups()
            return Probe(identity, int(process_id), start, version)
    return None


def strings_in(value: object, depth: int = 0) -> Iterator[str]:
    """Every string in a JSON value, however nested (to a depth of 40)."""
    if isinstance(value, str):
        yield value
    elif depth < 40:
        if isinstance(value, dict):
            value = list(value.values())
        if isinstance(value, list):
            for item in value:
                yield from strings_in(item, depth + 1)
