"""Shows the sandbox's messages as a cell's own outputs, through IPython's own publishers."""

from __future__ import annotations

import ast
import json
import sys
from typing import Any

from ivy_kernel.errors import IvyError
from ivy_kernel.models import Fate, Json, Message
from ivy_kernel.routes.events import PLAIN, RED
from ivy_kernel.session.start_progress import is_progress


# Errors -----------------------------------------------------------------------------------------
class RemoteCellError(Exception):
    """A cell in the sandbox ended with an error.

    A subclass is raised that has the name of the error in the sandbox, because front ends and
    papermill report that name.

    Parameters
    ----------
    evalue
        The error's text.
    ename
        The name of its class in the sandbox.
    traceback
        Its lines, as they are shown.
    fate
        The fate of the cell.
    """

    def __init__(self, evalue: str, *, ename: str, traceback: tuple[str, ...], fate: Fate) -> None:
        super().__init__(evalue)
        self.ename = ename
        self.evalue = evalue
        self.traceback = traceback
        self.fate = fate

    def _render_traceback_(self) -> list[str]:
        """Called by IPython for the lines to show; our own frames would mean nothing to a user."""
        return list(self.traceback)


class RemoteInterrupt(KeyboardInterrupt):
    """The cell was interrupted; loops that catch ``Exception`` end too."""

    def __init__(self, evalue: str, traceback: tuple[str, ...]) -> None:
        super().__init__(evalue)
        self.traceback = traceback

    def _render_traceback_(self) -> list[str]:
        return list(self.traceback)


RemoteInterrupt.__name__ = "KeyboardInterrupt"  # the name that IPython puts into the reply


def exception_for(reply: Json, fate: Fate) -> BaseException:
    """Return the exception for an error reply of the sandbox."""
    ename, evalue = str(reply["ename"]), str(reply["evalue"])
    traceback = tuple(str(line) for line in reply["traceback"])
    if ename == "KeyboardInterrupt":
        return RemoteInterrupt(evalue, traceback)
    named = type(ename, (RemoteCellError,), {"__module__": RemoteCellError.__module__})
    error: BaseException = named(evalue, ename=ename, traceback=traceback, fate=fate)
    return error


def shown_briefly(error: IvyError) -> IvyError:
    """Return the same error, which IPython shows as one sentence without this package's frames."""
    lines = [f"{RED}{type(error).__name__}{PLAIN}: {error}"]
    shown: Any = error
    shown._render_traceback_ = lambda: lines
    return error


# Outputs ----------------------------------------------------------------------------------------
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
NO_WIDGETS = (
    "[Live widgets of the sandbox work in the Ivy Sandbox kernel, not below %%ivy; their text is "
    "shown instead.]\n"
)

Bundle = tuple[Json, Json]
"""Data by MIME type, and metadata."""


class RemoteValue:
    """The value of a cell's last line, as the sandbox displayed it.

    Parameters
    ----------
    data
        The display, by MIME type.
    metadata
        Its metadata.
    """

    def __init__(self, data: Json, metadata: Json) -> None:
        self.data = data
        self.metadata = metadata

    def __repr__(self) -> str:
        return str(self.data.get("text/plain", "<a value of the sandbox, without text>"))

    def _repr_mimebundle_(self, **_: Any) -> Bundle:
        return self.data, self.metadata


class NativeOutput:
    """Shows the messages of one cell, in the thread that the cell runs in.

    Parameters
    ----------
    shell
        IPython's shell.
    is_alone
        Whether this cell cannot have shown anything else, so that clearing loses nothing.
    is_remote
        Whether the messages come from the sandbox, whose live widgets are not reached from here.
    """

    def __init__(self, shell: Any, *, is_alone: bool, is_remote: bool = True) -> None:
        self._shell = shell
        self._is_remote = is_remote
        self._is_alone = is_alone
        self._has_front_end = hasattr(shell, "kernel")
        self._line = ""
        self._hinted = False
        self.error: Json | None = None
        self.value: Json | None = None
        self.printed: list[str] = []

    def show(self, message: Message) -> None:
        """Show one message; an error is only kept, to be raised when the cell has ended."""
        content = message.content
        if is_progress(message):
            self._show_progress(message)
        elif message.msg_type == "stream":
            self._write(str(content.get("name")), str(content.get("text", "")))
        elif message.msg_type in ("display_data", "update_display_data"):
            data, metadata = self._without_widgets(content)
            self._shell.display_pub.publish(
                data=data,
                metadata=metadata,
                transient=content.get("transient") or {},
                update=message.msg_type == "update_display_data",
            )
        elif message.msg_type == "execute_result":
            data, metadata = self._without_widgets(content)
            self.value = data
            sys.displayhook(RemoteValue(data, metadata))
        elif message.msg_type == "clear_output":
            self.printed.clear()
            self._shell.display_pub.clear_output(wait=bool(content.get("wait")))
        elif message.msg_type == "error":
            self.error = content

    def end(self) -> None:
        """Called when all has been shown: ends a line of progress, and flushes."""
        self._end_line()
        sys.stdout.flush()
        sys.stderr.flush()

    def kept(self) -> Any:
        """Return what ``--out`` keeps of the cell: its value, else its printed text."""
        if self.value is not None:
            if "application/json" in self.value:
                return self.value["application/json"]
            text = self.value.get("text/plain")
            return dict(self.value) if text is None else _plain_data(str(text))
        text = "".join(self.printed)
        try:
            return json.loads(text)
        except ValueError:
            return text

    def _write(self, name: str, text: str) -> None:
        self._end_line()
        if name != "stderr":
            self.printed.append(text)
        stream = sys.stderr if name == "stderr" else sys.stdout
        stream.write(text)
        stream.flush()

    def _without_widgets(self, content: Json) -> Bundle:
        self._end_line()
        data = dict(content.get("data") or {})
        metadata = dict(content.get("metadata") or {})
        if self._is_remote and len(data) > 1 and data.pop(WIDGET_VIEW, None) is not None:
            metadata.pop(WIDGET_VIEW, None)
            if not self._hinted:
                self._hinted = True
                sys.stderr.write(NO_WIDGETS)
                sys.stderr.flush()
        return data, metadata

    # Progress of a sandbox's start: shown while it lasts, and nothing of it stays ---------------
    def _show_progress(self, message: Message) -> None:
        content = message.content
        if not self._has_front_end:
            self._show_line(str(content.get("data", {}).get("text/plain", "")).partition("\n")[0])
            return
        publisher = self._shell.display_pub
        if message.msg_type == "clear_output":
            if self._is_alone:
                publisher.clear_output(wait=False)
            else:  # other outputs of this cell must stay
                blank = {"text/plain": "", "text/html": ""}
                publisher.publish(data=blank, metadata={}, transient=message.metadata, update=True)
            return
        publisher.publish(
            data=content["data"],
            metadata={},
            transient=content["transient"],
            update=message.msg_type == "update_display_data",
        )

    def _show_line(self, words: str) -> None:
        """Show progress as text: one line, overwritten, in a terminal; else a line a phase."""
        if sys.stderr.isatty():
            sys.stderr.write(f"\r\x1b[K{words}")
        elif words and words.partition(",")[0] != self._line.partition(",")[0]:
            sys.stderr.write(f"{words}\n")
        sys.stderr.flush()
        self._line = words

    def _end_line(self) -> None:
        if self._line and sys.stderr.isatty():
            sys.stderr.write("\r\x1b[K")
        self._line = ""


def _plain_data(text: str) -> Any:
    """Return the Python value of a literal of plain data; any other text as it is."""
    try:
        tree = ast.parse(text.strip(), mode="eval")
        if any(isinstance(node, ast.Constant) and node.value is ... for node in ast.walk(tree)):
            return text  # "…" stands for what a long repr leaves out
        return ast.literal_eval(tree)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text
