"""What is done beside cells, in parts: each has requests that it answers, and hooks around cells.

A part is an object that extends :class:`Part`; the module of each, in :data:`PARTS`, has a
function ``open_part(context)`` that makes it, once the kernel is configured.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    Json = dict[str, Any]
    Request = Callable[[Json], Json]

PARTS = ("packages", "receipt", "checkpoint")
"""The modules of the parts, in the order in which their hooks are called after a cell."""


class Context:
    """What every part knows.

    Attributes
    ----------
    host
        The kernel: ``host.namespace()`` are the user's variables, ``host.shell`` IPython's shell
        or ``None``, ``host.set_count(number)`` makes the next cell the one after this.
    key
        The key that signs what is kept for this notebook and chat.
    chat, notebook
        Their ids.
    directory
        The state directory, absolute and mode 0700.
    settings
        The last ``configure`` request's content without archive and key; it may change.
    """

    def __init__(self, host: Any, content: Json) -> None:
        self.host = host
        self.key = bytes.fromhex(content["key"])
        self.chat = str(content["chat"])
        self.notebook = str(content["notebook"])
        # Absolute, for cells may change the directory; links are not followed.
        directory = Path(os.path.abspath(content["directory"]))
        self.directory = str(directory)
        self.settings: Json = {}
        for path in (directory.parent, directory):
            path.mkdir(0o700, parents=True, exist_ok=True)

    def take_settings(self, content: Json) -> None:
        """Take the settings of a configure request."""
        self.settings.update((k, v) for k, v in content.items() if k not in ("archive", "key"))


class Part:
    """Something done beside cells. Every hook may be left as it is."""

    def requests(self) -> dict[str, Request]:
        """Return what answers which ``do`` of an ``ivy_work_request``; a reply has no status."""
        return {}

    def before_cell(self, info: Json) -> None:
        """Note that a cell begins: its front end's id, number, and SHA-256 of the code."""

    def after_cell(self, info: Json, reply: Json) -> Json:
        """Return what goes into ``metadata["ivy"]`` of its reply, which is sent after this.

        Parameters
        ----------
        info
            As in :meth:`before_cell`.
        reply
            The reply's content.
        """
        return {}

    def on_idle(self) -> float | None:
        """Do what is due, when reply and "idle" have been sent; called after other requests, too.

        Returns
        -------
        float | None
            In how many seconds to call again, when no request comes before; ``None`` for not.
        """
        return None

    def configured(self) -> Json:
        """Return what goes into the reply to a configure request, which may come repeatedly."""
        return {}


class Work:
    """All parts, for the kernel's extension.

    Parameters
    ----------
    host
        The kernel (``extension.Host``).
    """

    def __init__(self, host: Any) -> None:
        self._host = host
        self._context: Context | None = None
        self._parts: list[Part] = []
        self._requests: dict[str, Request] = {}

    def answer(self, content: Json) -> Json:
        """Answer a request; raise when it cannot be done."""
        name = str(content.get("do"))
        if name == "configure":
            return self._configure(content)
        request = self._requests.get(name)
        if request is None:
            raise LookupError(f"there is no work called {name!r} in this kernel")
        return request(content)

    def _configure(self, content: Json) -> Json:
        if self._context is None:
            context = Context(self._host, content)
            context.take_settings(content)
            for name in PARTS:
                if importlib.util.find_spec(f"{__package__}.{name}") is not None:
                    module = importlib.import_module(f"{__package__}.{name}")
                    self._parts.append(module.open_part(context))
            for part in self._parts:
                self._requests.update(part.requests())
            self._context = context
        elif self._context.key.hex() != content["key"]:
            raise PermissionError("this kernel works for another chat or notebook already")
        self._context.take_settings(content)
        reply: Json = {
            "python": platform.python_version(),
            "directory": self._context.directory,
            "index": None,
        }
        for part in self._parts:
            reply.update(part.configured())
        return reply

    def before_cell(self, info: Json) -> None:
        """Tell every part that a cell begins."""
        for part in self._parts:
            _protected(part.before_cell, info)

    def after_cell(self, info: Json, reply: Json) -> Json:
        """Return what all parts know about the cell that has ended."""
        found: Json = {}
        for part in self._parts:
            found.update(_protected(part.after_cell, info, reply) or {})
        return found

    def on_idle(self) -> float | None:
        """Let every part do what is due."""
        waits = [_protected(part.on_idle) for part in self._parts]
        return min((wait for wait in waits if wait is not None), default=None)


def _protected(hook: Callable[..., Any], *arguments: Any) -> Any:
    """Call a hook; its faults are told in the agent's log, and touch no other part."""
    try:
        return hook(*arguments)
    except Exception as error:  # as above
        print(f"{hook.__qualname__}: {error!r}", file=sys.__stderr__)
        return None
