"""Routes where each cell is one tool call: by the notebook tool, by a script tool; other tools."""

from __future__ import annotations

import ast
import asyncio
import json
import os
import re
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

from ivy_kernel.errors import IvyError, RouteError, SandboxLostError
from ivy_kernel.models import Cell, Json, Message, Namespace, Outcome, Sink
from ivy_kernel.routes.base import RouteName
from ivy_kernel.routes.decode.result import decode_result
from ivy_kernel.routes.events import EndingCall, failed, show_error, succeeded
from ivy_kernel.routes.tools import NOTEBOOK_TOOL, PYTHON_TOOL, Probe, SandboxTools, strings_in

INTERRUPT_WAIT_SECONDS = 0.7
"""Time after an interrupt in which the tool may still bring the cell's real end; IPython may take
half of it for its first traceback."""

STOPPED = "Interrupted in the sandbox, which has confirmed it."

NOT_CONFIRMED = (
    "Stopped waiting for the cell. The sandbox did not confirm that it stopped there, so it may be "
    "still running, and the next cell may have to wait for it; %ivy terminate ends it for sure."
)


def show_result(
    result: object, cell: Cell, sink: Sink, *, was_interrupted: bool = False
) -> Outcome:
    """Show a tool's result as the cell's outputs."""
    decoded = decode_result(result, execution_count=cell.execution_count)
    for output in decoded.outputs:
        content = dict(output)
        msg_type = content.pop("output_type")
        if msg_type == "execute_result":
            # The tool counts the cells of all notebooks of the chat; a notebook shows its own.
            content["execution_count"] = cell.execution_count
        sink(Message(msg_type, content))
    if decoded.error is None and was_interrupted and _says_interrupted(decoded.outputs):
        return show_error(sink, "KeyboardInterrupt", STOPPED, "interrupted")
    if decoded.error is None:
        return succeeded()
    interrupted = decoded.error["ename"] == "KeyboardInterrupt"
    return failed(decoded.error, "interrupted" if interrupted else "failed")


def _says_interrupted(outputs: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the outputs end in the line that IPython prints when a display is hit.

    IPython reports that interrupt on stderr alone: the cell itself counts as succeeded there.
    """
    last: Mapping[str, Any] = outputs[-1] if outputs else {}
    is_stderr = last.get("output_type") == "stream" and last.get("name") == "stderr"
    return is_stderr and str(last.get("text", "")).rstrip().endswith("KeyboardInterrupt")


class InterruptibleCall:
    """One tool call that the user may stop waiting for."""

    def __init__(self) -> None:
        self._task: asyncio.Future[object] | None = None
        self._stop: asyncio.Event | None = None

    @property
    def running(self) -> bool:
        """Whether a call is under way."""
        return self._task is not None

    def stop(self) -> None:
        """Stop the waiting soon; harmless when no call is under way."""
        if self._stop is not None:
            self._stop.set()

    async def show(self, call: Awaitable[object], cell: Cell, sink: Sink) -> Outcome:
        """Run a call to its end, or until shortly after `stop`, and show its result."""
        self._stop = asyncio.Event()
        task = self._task = asyncio.ensure_future(call)
        stopped = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
            # Stopped: an interrupted cell ends with its own KeyboardInterrupt if it is given time.
            if not task.done():
                await asyncio.wait({task}, timeout=INTERRUPT_WAIT_SECONDS)
            if not task.done():
                return show_error(sink, "KeyboardInterrupt", NOT_CONFIRMED, "interrupted")
            return show_result(task.result(), cell, sink, was_interrupted=stopped.done())
        finally:
            self._task = self._stop = None
            # Awaited too, so that no exception is left that nothing has retrieved.
            for future in (task, stopped):
                future.cancel()
            await asyncio.gather(task, stopped, return_exceptions=True)


class NamedTool:
    """A call of one tool, which may be stopped.

    Parameters
    ----------
    tool
        The tool's name, such as ``sandbox_rscript``.
    parameters
        The tool's own parameters; ``None``: the cell's code is the one parameter.
    timeout_seconds
        Time budget; the platform has caps of its own (300 s, scripts 120 s).
    """

    def __init__(
        self, tool: str, *, parameters: Mapping[str, Any] | None = None, timeout_seconds: float
    ) -> None:
        self._tool = tool
        self._parameters = parameters
        self._timeout_seconds = timeout_seconds
        self._call = InterruptibleCall()

    async def execute(self, tools: SandboxTools, cell: Cell, sink: Sink) -> Outcome:
        """Run it, and show its decoded result as the cell's outputs.

        Called by the session, one at a time.

        Raises
        ------
        IvyError
            As `IvyClient.run_tool`.
        """
        return await self._call.show(self._result(tools, cell.code), cell, sink)

    async def interrupt(self) -> None:
        """Stop waiting: the platform offers nothing that would stop a tool."""
        self._call.stop()

    async def _result(self, tools: SandboxTools, code: str) -> object:
        if self._parameters is not None:
            return await tools.call(self._tool, self._parameters, self._timeout_seconds)
        try:
            return await tools.run(self._tool, code, self._timeout_seconds)
        except RouteError as error:
            # The tool's own words tell more, for example that the sandbox has no such tool.
            raise (error.__cause__ or error) from None


class OneCallRoute:
    """Runs each cell through one tool. A subclass names the tool, and what is special about it.

    Parameters
    ----------
    tools
        The sandbox's tools.
    cell_timeout_seconds
        Time budget of a cell; the platform has a cap of its own for each tool.
    """

    name: RouteName
    notice: str
    notices_losses = False
    live: None = None
    tool: ClassVar[str]
    """The tool that runs the cells' Python."""
    variables_persist: ClassVar[bool]
    """Whether a cell sees the variables of those before it."""

    def __init__(self, tools: SandboxTools, *, cell_timeout_seconds: float) -> None:
        self._tools = tools
        self._cell_timeout_seconds = cell_timeout_seconds
        self._probe: Probe | None = None
        self._call = InterruptibleCall()

    async def open(self) -> None:
        """Find the code field and the Python process that answers."""
        self._probe = await self._tools.probe(self.tool)

    async def close(self, *, keep: bool) -> None:
        """Stop waiting for a call. Nothing else is held: each cell was a call of its own."""
        self._call.stop()

    async def end_with_sandbox(self) -> None:
        """Nothing to let go: the platform ends the call of a cell with its sandbox."""

    def describe(self) -> Json:
        """Code field and remote Python."""
        return {
            "route": self.name,
            "code_field": self._tools.found_fields.get(self.tool, ""),
            "python": self._probe.python_version if self._probe else "",
            "variables_persist": self.variables_persist,
            "streams": False,
        }

    async def _run(self, code: str, cell: Cell, sink: Sink) -> Outcome:
        """Run a cell's code, perhaps adapted to the tool, and show its result."""
        call = self._tools.run(self.tool, code, self._cell_timeout_seconds)
        return await self._call.show(call, cell, sink)


def unanswered(expressions: Iterable[str], reason: str) -> Json:
    """Return the ``user_expressions`` of a reply (message spec, "Execute") without values."""
    missing = {"status": "error", "ename": "RouteError", "evalue": reason, "traceback": []}
    return dict.fromkeys(expressions, missing)


# The script route --------------------------------------------------------------------------------
class ScriptRoute(OneCallRoute):
    """Runs each cell through ``sandbox_python``; the platform caps scripts at 120 s."""

    name: RouteName = "script"
    ending = None
    holder = "script"  # it has no variables, but a sandbox that may end
    tool = PYTHON_TOOL
    variables_persist = False
    notice = (
        "This sandbox offers only scripts: each cell runs in a Python process of its own, so "
        "variables and imports do not persist from cell to cell (files do), magics do not work, "
        "and a cell may take 120 s at most."
    )

    async def check(self) -> None:
        """Do nothing: without variables, none can be lost."""

    async def execute(self, cell: Cell, sink: Sink) -> Outcome:
        """Run one cell."""
        outcome = await self._run(show_last_value(cell.code), cell, sink)
        if outcome.fate == "succeeded" and cell.user_expressions:
            outcome.reply["user_expressions"] = unanswered(
                cell.user_expressions, "variables do not persist on the script route"
            )
        return outcome

    async def ask(self, msg_type: str, content: Json) -> Json | None:
        """Return ``None``: between two scripts no Python is there to ask."""
        return None

    async def interrupt(self) -> None:
        """Stop waiting: the platform offers nothing that would stop a script."""
        self._call.stop()

    async def restart(self) -> None:
        """Do nothing: each cell has a fresh namespace anyway."""


def show_last_value(code: str) -> str:
    """Return the code, made to print the value of its last line if that is an expression.

    A script shows no values; a cell does. Line numbers stay as they are, since the change is
    confined to the last expression, which is parenthesised where it stands.
    """
    try:
        body = ast.parse(code).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return code  # the sandbox's Python says what is wrong with it, in its own words
    if not body or not isinstance(body[-1], ast.Expr) or code.rstrip().endswith(";"):
        return code
    last = body[-1]
    lines = code.encode().split(b"\n")  # ast counts columns in bytes of UTF-8
    first, end = last.lineno - 1, (last.end_lineno or last.lineno) - 1
    if lines[first][: last.col_offset].strip():
        return code  # something stands before it on its line
    comment = lines[end][last.end_col_offset :]
    lines[end] = lines[end][: last.end_col_offset] + b")" + comment
    # The displayhook, not print: like a cell, it shows nothing for None.
    lines[first] = b"__import__('sys').displayhook(" + lines[first]
    return b"\n".join(lines).decode()


# The notebook route ------------------------------------------------------------------------------
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
    """Return the code, made to display its help text if its last line asks for help.

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
        """Take one message."""
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


class NotebookRoute(OneCallRoute):
    """Runs each cell through ``sandbox_notebook``; the platform caps a cell at 300 s."""

    name: RouteName = "notebook"
    tool = NOTEBOOK_TOOL
    variables_persist = True
    notice = (
        "Cells run through the platform's notebook tool: output arrives when a cell has ended, a "
        "cell may take 300 s at most, and input() and live widgets do not work. All notebooks on "
        "one chat share its variables, and a restart empties them (imported modules stay)."
    )

    def __init__(
        self,
        tools: SandboxTools,
        *,
        cell_timeout_seconds: float,
        namespace: Namespace | None = None,
    ) -> None:
        super().__init__(tools, cell_timeout_seconds=cell_timeout_seconds)
        self._namespace = namespace or Namespace()
        self._signals: set[asyncio.Future[object]] = set()

    @property
    def holder(self) -> str:
        """The Python that has answered last."""
        return f"notebook:{self._probe.identity if self._probe else ''}"

    async def check(self) -> None:
        """See whether the Python that has the variables still answers."""
        known = self._namespace.holder
        self._probe = await self._tools.probe(self.tool)
        if known.startswith("notebook:") and known != self.holder:
            raise SandboxLostError(
                "The variables are gone: another Python process answers in the sandbox than "
                "before, so it was restarted or replaced.",
                advice="Run the cells that make your variables again.",
            )

    async def execute(self, cell: Cell, sink: Sink) -> Outcome:
        """Run one cell."""
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
        """Return ``user_expressions`` (message spec, "Execute"), by a second call."""
        reason = "the sandbox did not answer"
        try:
            values = await self._evaluate(f"get_ipython().user_expressions({dict(expressions)!r})")
            if values is not None:
                return values
        except IvyError as exc:
            reason = str(exc)
        return unanswered(expressions, reason)

    async def ask(self, msg_type: str, content: Json) -> Json | None:
        """Ask the notebook's own Python, by a call of its own."""
        question = _QUESTIONS.get(msg_type)
        if question is None:
            return None
        return await self._evaluate(f"get_ipython().kernel.{question.format_map(content)}")

    async def _evaluate(self, expression: str) -> Json | None:
        """Return the JSON object that an expression evaluates to there; ``None`` without one."""
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
        """Send SIGINT to the notebook's Python, by the script tool, and stop waiting."""
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

    @property
    def ending(self) -> EndingCall | None:
        """The script that ends the running cell; ``None`` while none runs, or can be told apart."""
        return self._probe.ending_call() if self._probe and self._call.running else None

    async def close(self, *, keep: bool) -> None:
        """Stop waiting for a call, and for signals on their way."""
        await super().close(keep=keep)
        for signal in self._signals:
            signal.cancel()

    async def restart(self) -> None:
        """Empty the namespace; modules stay imported, since the platform cannot restart it."""
        await self._tools.run(self.tool, _RESET, 30.0)
