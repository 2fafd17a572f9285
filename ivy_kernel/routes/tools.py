"""The tools of a sandbox that run code: one table of them, and how code is run through them.

The platform does not document the field that carries a tool's code. A harmless probe finds it, and
what it found is remembered.
"""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ivy_kernel.errors import BadRequestError, IvyError, RouteError
from ivy_kernel.routes.agent.programs import BEGIN, END, new_call_id
from ivy_kernel.routes.events import EndingCall

if TYPE_CHECKING:
    # For annotations only: the command line of a cell reads the table, and must not load httpx.
    from ivy_kernel.api.clients import IvyClient

DEPTH_LIMIT = 40


def strings_in(value: object, depth: int = 0) -> Iterator[str]:
    """Yield every string in a JSON value, however nested (to a depth of 40)."""
    if isinstance(value, str):
        yield value
    elif depth < DEPTH_LIMIT:
        if isinstance(value, dict):
            value = list(value.values())
        if isinstance(value, list):
            for item in value:
                yield from strings_in(item, depth + 1)


@dataclass(frozen=True, slots=True)
class Language:
    """A language that tools run, and a probe that tells whether a tool ran it.

    Parameters
    ----------
    fields
        Names under which such tools may take their code, the likeliest first.
    snippet_format
        Code of the probe. It leaves no trace, and prints what ``answer_format`` matches.
    answer_format
        What the probe prints, as a regular expression.
    """

    fields: tuple[str, ...]
    snippet_format: str
    answer_format: str

    def snippet(self, nonce: str) -> str:
        """Return the code to send; ``nonce`` is a random word of this call."""
        return self.snippet_format.format(nonce=nonce)

    def find_answer(self, result: object, nonce: str) -> re.Match[str] | None:
        """Return what the snippet printed, if it ran; ``result`` is the tool's JSON."""
        pattern = re.compile(self.answer_format.format(nonce=nonce))
        for text in strings_in(result):
            if match := pattern.search(text):
                return match
        return None


# A tool may answer with the code itself, for example in an error message. So no snippet contains
# what its answer looks like: each puts the printed word together only when it runs.

PYTHON = Language(
    fields=("code", "source", "script", "input", "cells"),
    snippet_format="""\
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
""",
    answer_format=(
        r"IVY-PROBE-{nonce}:(?P<identity>\w+):(?P<process_id>\d+):(?P<process_start>\d*)"
        r":(?P<python_version>[\w.+]+):"
    ),
)
"""Its probe also tells which Python answers. It plants an identity in ``sys``, which survives a
reset of the namespace and ends with the process."""

_SCRIPT_FIELDS = ("code", "command", "source", "script", "cmd", "input")

R = Language(_SCRIPT_FIELDS, "cat(paste0('IVY-', 'PROBE-{nonce}\\n'))", "IVY-PROBE-{nonce}")

SHELL = Language(_SCRIPT_FIELDS, "echo IVY-''PROBE-{nonce}", "IVY-PROBE-{nonce}")

CAP_SECONDS = 300.0
"""Longest time budget that the platform grants any tool."""
SCRIPT_CAP_SECONDS = 120.0
"""Longest time budget that it grants a tool that runs each call in a fresh process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A tool of the platform that runs code: one row of the table.

    Parameters
    ----------
    name
        The platform's name for it.
    language
        What it runs.
    field_setting
        The setting that names the field for its code.
    cap_seconds
        Longest time budget that the platform grants it.
    lang
        The word for ``%%ivy --lang`` that chooses it; empty when none does.
    """

    name: str
    language: Language
    field_setting: str
    cap_seconds: float
    lang: str = ""


PYTHON_TOOL = "sandbox_python"
NOTEBOOK_TOOL = "sandbox_notebook"

_ROWS = (
    Tool(
        name=PYTHON_TOOL,
        language=PYTHON,
        field_setting="python_code_field",
        cap_seconds=SCRIPT_CAP_SECONDS,
    ),
    Tool(
        name=NOTEBOOK_TOOL,
        language=PYTHON,
        field_setting="notebook_code_field",
        cap_seconds=CAP_SECONDS,
    ),
    Tool(
        name="sandbox_rscript",
        language=R,
        field_setting="rscript_code_field",
        cap_seconds=SCRIPT_CAP_SECONDS,
        lang="r",
    ),
    Tool(
        name="sandbox_exec",
        language=SHELL,
        field_setting="exec_command_field",
        cap_seconds=SCRIPT_CAP_SECONDS,
        lang="sh",
    ),
)
TOOLS: dict[str, Tool] = {tool.name: tool for tool in _ROWS}
"""Name → row, of every tool that runs code.

All that is known of a tool is read from here: ``--lang`` of ``%%ivy``, the probes, the time
budgets, and which setting names the field. No other tool is probed, since nothing is known of what
it would do with code.
"""


def budget_seconds(tool: str, wanted_seconds: float) -> float:
    """Return the part of a wanted time budget that the platform grants a tool, known or not."""
    row = TOOLS.get(tool)
    return min(wanted_seconds, row.cap_seconds if row else CAP_SECONDS)


PROBE_TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Probe:
    """The Python that ran a probe.

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

    def ending_call(self) -> EndingCall | None:
        """Return the call that ends the cell that this Python runs; ``None`` without ``/proc``."""
        if not self.process_start:
            return None
        call_id = new_call_id()
        code = END_CELL.format(
            pid=self.process_id, start=self.process_start, begin=BEGIN, end=END, call_id=call_id
        )
        return EndingCall(PYTHON_TOOL, code, call_id)


# ipykernel ignores SIGINT (the second bit) between cells, and while one waits in system(), which
# ignores SIGQUIT (the third), too. Another kernel of the platform's is only interrupted.
END_CELL = """\
import os, signal, time
def read(name):
    with open('/proc/{pid}/' + name) as f:
        return f.read()
def runs():
    ignored = [l for l in read('status').splitlines() if l.startswith('SigIgn:')]
    return int(ignored[0].split()[1], 16) & 6 != 2
try:
    if read('stat').rsplit(')', 1)[1].split()[19] == '{start}':
        until = time.monotonic() + 2
        os.kill({pid}, signal.SIGINT)
        while runs() and time.monotonic() < until:
            time.sleep(0.05)
        if runs() and 'ipykernel' in read('cmdline'):
            os.kill({pid}, signal.SIGKILL)
except OSError:
    pass
print('\\n{begin}{call_id}\\n!2 ended\\n{end}{call_id}')
"""


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
        """Call a tool with its own parameters; return its own JSON result.

        Parameters
        ----------
        tool, parameters
            Any tool of the platform, and its own parameters.
        timeout_seconds
            Time budget; cut to the platform's cap (300 s, scripts 120 s).
        retry
            Whether to repeat where that is safe; a caller with its own rhythm says no.

        Raises
        ------
        IvyError
            As `IvyClient.run_tool`.
        """
        result: object = await (await self.client()).run_tool(
            self.chat_id,
            tool,
            parameters,
            timeout_seconds=budget_seconds(tool, timeout_seconds),
            retry=retry,
        )
        return result

    async def run(
        self, tool: str, code: str, timeout_seconds: float, *, retry: bool = True
    ) -> object:
        """Run code through a tool; return the tool's own JSON result.

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
            row = TOOLS.get(tool)
            if row is None or name == self.found_fields.get(tool):
                raise
            try:
                await self._find_field(tool, row.language, refusal)
            except RouteError:
                raise
            except IvyError as error:  # how the probe ended says nothing about the code
                raise refusal from error
        name = self._code_field(tool)
        return await self.call(tool, {name: code}, timeout_seconds, retry=retry)

    async def probe(self, tool: str) -> Probe:
        """Run a harmless snippet to find the field that works and the Python that answers.

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
        """Find the field that the tool takes code in; return what the snippet printed."""
        refused: list[str] = []
        # The setting's field first, so that a tool that works as configured gets one call.
        for name in dict.fromkeys((self._code_field(tool), *language.fields)):
            nonce = os.urandom(8).hex()
            parameters = {name: language.snippet(nonce)}
            try:
                result = await self.call(tool, parameters, PROBE_TIMEOUT_SECONDS)
            except BadRequestError as exc:
                refused.append(f"{name}: {exc.detail or 'HTTP 400'}")
                continue
            # A tool may ignore a field that it does not know and answer 200 all the same.
            answer = language.find_answer(result, nonce)
            if answer is not None:
                self.found_fields[tool] = self.code_fields[tool] = name
                return answer
            refused.append(f"{name}: its output did not come back")
        raise RouteError(
            f"{tool} did not run a probe with any known field ({'; '.join(refused)}); set the "
            f"field in the settings (…_code_field)."
        ) from refusal
