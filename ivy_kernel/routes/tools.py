"""The code-running tools of one chat's sandbox, and the field that carries their code.

The platform does not document that field. A harmless probe finds it, and is remembered.
"""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ivy_kernel.api import IvyClient
from ivy_kernel.errors import BadRequestError, IvyError, RouteError
from ivy_kernel.routes.probes import LANGUAGES, PYTHON, Language

PROBE_TIMEOUT_SECONDS = 60.0


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
        Tool → the field that carries its code, as the settings say; a field that a probe has found
        takes the place of theirs.
    """

    client: Callable[[], Awaitable[IvyClient]]
    chat_id: str
    code_fields: dict[str, str]
    found_fields: dict[str, str] = field(default_factory=dict)

    async def call(
        self,
        tool: str,
        parameters: Mapping[str, Any],
        timeout_seconds: float,
        *,
        retry: bool = True,
    ) -> object:
        """Call a tool with its own parameters; its own JSON result.

        Raises
        ------
        IvyError
            As `IvyClient.run_tool`.
        """
        result: object = await (await self.client()).run_tool(
            self.chat_id, tool, parameters, timeout_seconds=timeout_seconds, retry=retry
        )
        return result

    async def run(
        self, tool: str, code: str, timeout_seconds: float, *, retry: bool = True
    ) -> object:
        """Run code through a tool; the tool's own JSON result.

        Where the tool refuses the code unread, a probe in its own language looks for the field that
        it takes code in, and the code is sent again. A tool whose language is not known is not
        probed.

        Raises
        ------
        RouteError
            No field was found; the cause is the tool's refusal of the code.
        IvyError
            As `IvyClient.run_tool`.
        """
        name = self._code_field(tool)
        try:
            return await self.call(tool, {name: code}, timeout_seconds, retry=retry)
        except BadRequestError as refusal:
            # Refused unread, so nothing ran. Perhaps the code was in a field it does not know.
            language = LANGUAGES.get(tool)
            if language is None or name == self.found_fields.get(tool):
                raise
            try:
                await self._find_field(tool, language, refusal)
            except RouteError:
                raise
            except IvyError as error:  # how the probe ended says nothing about the code
                raise refusal from error
        name = self._code_field(tool)
        return await self.call(tool, {name: code}, timeout_seconds, retry=retry)

    async def probe(self, tool: str) -> Probe:
        """Find out, by running a harmless snippet, which field works and which Python answers.

        Parameters
        ----------
        tool
            One that runs Python.

        Raises
        ------
        RouteError
            When the tool is unknown, or no field makes it print what it was told to.
        """
        answer = await self._find_field(tool, PYTHON)
        return Probe(
            identity=answer["identity"],
            process_id=int(answer["process_id"]),
            process_start=answer["process_start"],
            python_version=answer["python_version"],
        )

    def _code_field(self, tool: str) -> str:
        return self.found_fields.get(tool) or self.code_fields.get(tool, "code")

    async def _find_field(
        self, tool: str, language: Language, refusal: BadRequestError | None = None
    ) -> re.Match[str]:
        """Find the field that the tool takes code in; what the snippet printed."""
        refused: list[str] = []
        for name in dict.fromkeys((self._code_field(tool), *language.fields)):
            nonce = os.urandom(8).hex()
            parameters = {name: language.snippet(nonce)}
            try:
                result = await self.call(tool, parameters, PROBE_TIMEOUT_SECONDS)
            except BadRequestError as exc:
                refused.append(f"{name}: {exc.detail or 'HTTP 400'}")
                continue
            answer = language.find_answer(result, nonce)
            if answer is not None:
                self.found_fields[tool] = self.code_fields[tool] = name
                return answer
            refused.append(f"{name}: its output did not come back")
        raise RouteError(
            f"{tool} did not run a probe with any known field ({'; '.join(refused)}); set the "
            f"field in the settings (…_code_field)."
        ) from refusal
