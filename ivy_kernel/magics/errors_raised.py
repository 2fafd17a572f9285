"""How a cell's bad end reaches IPython: one exception, with the sandbox's own traceback."""

from __future__ import annotations

from typing import Any

from ivy_kernel.errors import IvyError
from ivy_kernel.models import Fate, Json
from ivy_kernel.routes.endings import PLAIN, RED


class RemoteCellError(Exception):
    """A cell in the sandbox did not end well.

    What is raised is a subclass that has the name of the error in the sandbox, because that name is
    what front ends and papermill report.

    Parameters
    ----------
    evalue
        The error's text.
    ename
        The name of its class there.
    traceback
        Its lines, as they are shown.
    fate
        How the cell ended.
    """

    def __init__(self, evalue: str, *, ename: str, traceback: tuple[str, ...], fate: Fate) -> None:
        super().__init__(evalue)
        self.ename = ename
        self.evalue = evalue
        self.traceback = traceback
        self.fate = fate

    def _render_traceback_(self) -> list[str]:
        """Called by IPython, which would show our own frames otherwise."""
        return list(self.traceback)


class RemoteInterrupt(KeyboardInterrupt):
    """The cell was interrupted; loops that catch ``Exception`` end too."""

    def __init__(self, evalue: str, traceback: tuple[str, ...]) -> None:
        super().__init__(evalue)
        self.traceback = traceback

    def _render_traceback_(self) -> list[str]:
        return list(self.traceback)


RemoteInterrupt.__name__ = "KeyboardInterrupt"


def exception_for(reply: Json, fate: Fate) -> BaseException:
    """The exception for an error reply of the sandbox."""
    ename, evalue = str(reply["ename"]), str(reply["evalue"])
    traceback = tuple(str(line) for line in reply["traceback"])
    if ename == "KeyboardInterrupt":
        return RemoteInterrupt(evalue, traceback)
    named = type(ename, (RemoteCellError,), {"__module__": RemoteCellError.__module__})
    error: BaseException = named(evalue, ename=ename, traceback=traceback, fate=fate)
    return error


def shown_briefly(error: IvyError) -> IvyError:
    """The same error, shown as its one sentence instead of with frames of this package."""
    lines = [f"{RED}{type(error).__name__}{PLAIN}: {error}"]
    shown: Any = error
    shown._render_traceback_ = lambda: lines
    return error
