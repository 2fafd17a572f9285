"""The notebook route: one ``sandbox_notebook`` call a cell; the platform keeps the variables.

Source: ``POST /v1/sandbox/{chatId}/tool/sandbox_notebook``, whose result shape is undocumented.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Mapping

from ivy_kernel.errors import IvyError, SandboxLostError
from ivy_kernel.models import Cell, Json, Message, Outcome, Sink
from ivy_kernel.routes.base import RouteName
from ivy_kernel.routes.one_call import PlainRoute, unanswered
from ivy_kernel.routes.tools import NOTEBOOK_TOOL, PYTHON_TOOL, SandboxTools, strings_in

MIME_TYPE = "application/vnd.ivy-kernel.page+json"

_SHOW = f"""
for _ivy_page in get_ipython().payload_manager.read_payload():
    if _ivy_page.get('source') == 'page':
        __import__('IPython').display.display(
            {{'text/plain': _ivy_page['data'].get('text/plain', ''), '{MIME_TYPE}': _ivy_page}},
            raw=True)
get_ipython().payload_manager.clear_payload()
_ivy_page = None; del _ivy_page
"""

_NAME = r"%{0,2}[^\W\d][\w.*\[\]]*"
# The questions of IPython: ?name, name?, name??, %pinfo name and its like.
_HELP_LINE = re.compile(
    rf"\?{{1,2}}\s*{_NAME}|{_NAME}\?{{1,2}}|%(pinfo2?|psearch|pdoc|pdef|psource|pfile)\s.*"
)


def with_pages_shown(code: str) -> str:
    """Returns the code, made to display its help text if its last line asks for help.

    A help text travels as a payload of the reply, which the tool does not return; as a display it
    comes back with the outputs, and `Pages` makes a payload of it again.
    """
    last = code.rstrip().rpartition("\n")[2].strip().rstrip(";")
    return code + _SHOW if _HELP_LINE.fullmatch(last) else code


class Pages:
    """A sink that takes displayed payloads out of a cell's messages.

    Parameters
    ----------
    sink
        Takes all other messages.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.payload: list[Json] = []

    def __call__(self, message: Message) -> None:
        """Takes one message."""
        data = message.content.get("data")
        page = data.get(MIME_TYPE) if isinstance(data, dict) else None
        if message.msg_type == "display_data" and isinstance(page, dict):
            self.payload.append(page)
        else:
            self._sink(message)


QUESTION_SECONDS = 30.0
"""Time budget of calls beside cells, since no interrupt stops them."""
INTERRUPT_SEND_SECONDS = 0.4
"""Wait for the signal to be sent, before the user gets the prompt back anyway."""
SIGNAL_SECONDS = 10.0
"""Time budget of the script that sends the signal."""

# The process id alone could mean another process by now; with its start it means the same one.
_INTERRUPT = """\
import os, signal
try:
    with open('/proc/{pid}/stat') as f:
        same = f.read().rsplit(')', 1)[1].split()[19] == '{start}'
except OSError:
    same = False
if same:
    os.kill({pid}, signal.SIGINT)
print('IVY-INTERRUPT', same)
"""

# Without IPython, every name but the module's own is removed.
_RESET = """\
try:
    get_ipython().run_line_magic('reset', '-sf')
except NameError:
    for _ivy_name in [n for n in globals() if not n.startswith('__')]:
        globals().pop(_ivy_name, None)
"""

_EVALUATE = """\
print('IVY-VALUE-{nonce}:' + __import__('json').dumps({expression}, default=str)
      + ':IVY-VALUE-END')
"""

_QUESTIONS = {
    "complete_request": "do_complete({code!r}, {cursor_pos})",
    "inspect_request": "do_inspect({code!r}, {cursor_pos}, {detail_level})",
}


class NotebookRoute(PlainRoute):
    """Runs each cell through ``sandbox_notebook``; the platform caps a cell at 300 s."""

    name: RouteName = "notebook"
    tool = NOTEBOOK_TOOL
    variables_persist = True
    notice = (
        "Cells run through the platform's notebook tool: output arrives when a cell has ended, a "
        "cell may take 300 s at most, and input() and live widgets do not work. All notebooks on "
        "one chat share its variables, and a restart empties them (imported modules stay)."
    )

    def __init__(self, tools: SandboxTools, *, cell_timeout_seconds: float) -> None:
        super().__init__(tools, cell_timeout_seconds=cell_timeout_seconds)
        self._signals: set[asyncio.Future[object]] = set()

    async def check(self) -> None:
        """Sees whether the same Python process still answers."""
        before = self._probe
        self._probe = await self._tools.probe(self.tool)
        if before is not None and self._probe.identity != before.identity:
            raise SandboxLostError(
                "The variables are gone: another Python process answers in the sandbox than "
                "before, so it was restarted or replaced. Nothing of this cell was run; run the "
                "cells that make your variables again."
            )

    async def execute(self, cell: Cell, sink: Sink) -> Outcome:
        """Runs one cell."""
        if self._signals:  # one that comes late would stop this cell instead of the one before
            await asyncio.wait(set(self._signals), timeout=SIGNAL_SECONDS)
        pages = Pages(sink)
        outcome = await self._run(with_pages_shown(cell.code), cell, pages)
        if outcome.fate == "succeeded":
            outcome.reply["payload"] = pages.payload
        # After a failed cell they are not evaluated, as in ipykernel.
        if outcome.fate == "succeeded" and cell.user_expressions:
            outcome.reply["user_expressions"] = await self._values(cell.user_expressions)
        return outcome

    async def _values(self, expressions: Mapping[str, str]) -> Json:
        """Returns ``user_expressions`` (message spec, "Execute"), by a second call."""
        reason = "the sandbox did not answer"
        try:
            values = await self._evaluate(f"get_ipython().user_expressions({dict(expressions)!r})")
            if values is not None:
                return values
        except IvyError as exc:
            reason = str(exc)
        return unanswered(expressions, reason)

    async def ask(self, msg_type: str, content: Json) -> Json | None:
        """Asks the notebook's own Python, by a call of its own."""
        question = _QUESTIONS.get(msg_type)
        if question is None:
            return None
        return await self._evaluate(f"get_ipython().kernel.{question.format_map(content)}")

    async def _evaluate(self, expression: str) -> Json | None:
        """Returns the JSON object that an expression evaluates to there; ``None`` without one."""
        nonce = os.urandom(8).hex()
        code = _EVALUATE.format(nonce=nonce, expression=expression)
        result = await self._tools.run(self.tool, code, QUESTION_SECONDS)
        for text in strings_in(result):
            _, found, rest = text.partition(f"IVY-VALUE-{nonce}:")
            if found:
                try:
                    value = json.loads(rest.partition(":IVY-VALUE-END")[0])
                except ValueError:
                    return None
                return value if isinstance(value, dict) else None
        return None

    async def interrupt(self) -> None:
        """Sends SIGINT to the notebook's Python, by the script tool, and stops waiting."""
        if not self._call.running:
            return
        probe = self._probe
        # Without /proc the process cannot be told from a later one with its id: no signal then.
        if probe is not None and probe.process_start:
            code = _INTERRUPT.format(pid=probe.process_id, start=probe.process_start)
            signal = asyncio.ensure_future(
                self._tools.run(PYTHON_TOOL, code, SIGNAL_SECONDS, retry=False)
            )
            # A refused signal needs no report of its own: the cell then ends "not confirmed".
            signal.add_done_callback(lambda task: task.cancelled() or task.exception())
            self._signals.add(signal)
            signal.add_done_callback(self._signals.discard)
            await asyncio.wait({signal}, timeout=INTERRUPT_SEND_SECONDS)
        self._call.stop()

    async def close(self, *, keep: bool) -> None:
        """Stops waiting for a call, and for signals on their way."""
        await super().close(keep=keep)
        for signal in self._signals:
            signal.cancel()

    async def restart(self) -> None:
        """Empties the namespace; modules stay imported, since the platform cannot restart it."""
        await self._tools.run(self.tool, _RESET, 30.0)
