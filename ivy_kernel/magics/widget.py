"""The status widget: a live view of one sandbox in a notebook's output, with buttons.

The browser counts down by itself. A new status comes to it whenever the monitor has one, also while
a cell runs: the kernel's iopub channel may be written to from any thread. The way back is longer:
a button's message is handled while a cell runs in the Ivy Sandbox kernel, and in ipykernel 7 if the
front end sends it to a subshell; elsewhere it waits for the cell's end, as with any widget.
"""

from __future__ import annotations

import asyncio
import html
import threading
from collections.abc import Coroutine
from importlib import resources
from typing import TYPE_CHECKING, Any

from ivy_kernel.errors import IvyError, SettingError, UsageError
from ivy_kernel.magics import SHELL_ATTRIBUTE
from ivy_kernel.models import Json
from ivy_kernel.session.describe import status_lines
from ivy_kernel.status.clock import monotonic_seconds
from ivy_kernel.status.model import StatusReading

if TYPE_CHECKING:
    from ivy_kernel.session.open import SessionOwner
    from ivy_kernel.session.session import Session
    from ivy_kernel.status.polling import Watch

try:
    import anywidget
    import traitlets
except ImportError as exc:
    raise UsageError(
        "The status widget needs the package anywidget: run `pip install anywidget` where this "
        "notebook's kernel runs, and restart the kernel. %ivy status shows the same as text."
    ) from exc

FIRST_STATUS_SECONDS = 2.0
"""Time limit for the first status, which the text in a saved notebook is made of."""


def _built(name: str) -> str:
    try:
        return (resources.files("ivy_kernel") / "static" / name).read_text("utf-8")
    except FileNotFoundError:
        raise UsageError(
            f"The widget's file {name} is not in this installation; in a checkout, run "
            f"`npm ci && npm run build:prod` in labextension/ first."
        ) from None


class StatusWidget(anywidget.AnyWidget):
    """Shows the state and the countdowns of this notebook's sandbox.

    In a notebook with ``%load_ext ivy_kernel``, ``StatusWidget()`` is all there is to say; in the
    Ivy Sandbox kernel ``%ivy widget`` shows it. After ``%ivy attach`` it still shows the sandbox
    that it showed before, until Reconnect is pressed.

    Parameters
    ----------
    owner
        The notebook; ``None``: the one whose IPython runs this.
    loop
        The event loop that its session lives on.
    """

    _esm = _built("widget.js")
    _css = _built("widget.css")

    _watch: Watch | None = None
    _closed = False

    status = traitlets.Dict().tag(sync=True)
    name = traitlets.Unicode().tag(sync=True)
    local = traitlets.Bool(False).tag(sync=True)
    busy_action = traitlets.Unicode().tag(sync=True)
    action_error = traitlets.Unicode().tag(sync=True)
    missing = traitlets.Unicode().tag(sync=True)
    can_create = traitlets.Bool(False).tag(sync=True)
    can_terminate = traitlets.Bool(False).tag(sync=True)

    def __init__(
        self,
        *,
        owner: SessionOwner | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        if owner is None or loop is None:
            owner, loop = _this_notebook()
        self._owner = owner
        self._loop = loop
        self._session: Session | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._first = threading.Event()
        super().__init__()  # opens the comm; what messages need must be there before
        self.on_msg(self._on_message)
        if self.comm is not None:
            self.comm.on_close(lambda _: self.close())
            if hasattr(self.comm, "_reply_subshell_for"):
                # ipykernel 7 hands a widget's messages to the loop that it last spoke from, which
                # a cell may keep busy. Ours may be handled in whatever thread the front end chose.
                self.comm._reply_subshell_for = _as_addressed
        self._start(self._look())
        if not self._is_on_loop():  # there it would wait for itself; `open_widget` waits instead
            self._first.wait(FIRST_STATUS_SECONDS)

    # Watching ----------------------------------------------------------------------------------
    async def _look(self) -> None:
        """Watch the sandbox that the settings mean now."""
        try:
            session = self._owner.session()
        except SettingError as error:
            self._stop_watching()
            self._session = None
            self._set(missing=str(error), can_create=False, can_terminate=False)
            self._first.set()
            return
        lifecycle = session.lifecycle
        is_same = self._session is not None and self._session.lifecycle.key == lifecycle.key
        self._session = session
        self._set(
            name=lifecycle.name,
            local=lifecycle.local,
            missing="",
            can_create=bool(lifecycle.campaign_id),
            can_terminate=True,
        )
        if not is_same or self._watch is None or self._watch.closed:
            self._stop_watching()
            if not self._closed:
                self._watch = lifecycle.monitor().watch(self._on_reading)

    def _on_reading(self, reading: StatusReading) -> None:
        """Called by the monitor, on its loop, with each new status."""
        if not self._closed:
            self._set(status=reading.to_json(monotonic_seconds()))
        self._first.set()

    def _stop_watching(self) -> None:
        if self._watch is not None:
            self._watch.close()

    def close(self) -> None:
        """Stop watching, and remove the widget from the page."""
        self._closed = True
        self._stop_watching()
        super().close()

    # Buttons -----------------------------------------------------------------------------------
    def _on_message(self, _: object, content: object, buffers: object) -> None:
        """Called by ipywidgets for a button, in whatever thread it handles comm messages."""
        action = content.get("action") if isinstance(content, dict) else None
        if action in ("create", "terminate", "reconnect", "refresh"):
            self._start(self._act(str(action)))

    async def _act(self, action: str) -> None:
        if action == "refresh":
            await self._refresh()
            return
        if self.busy_action:  # the buttons are disabled then, in this page; not in another one yet
            return
        self._set(busy_action=action, action_error="")
        try:
            await self._change(action)
        except IvyError as error:
            self._set(action_error=str(error))
        finally:
            self._set(busy_action="")

    async def _change(self, action: str) -> None:
        if action == "reconnect":
            self._owner.live.reload()
            await self._look()
        session = self._session or self._owner.session()
        if action == "create":
            await session.lifecycle.create()
        elif action == "terminate":
            await session.terminate()
        else:
            await session.reconnect()
        # A button stays busy until its effect can be seen.
        await self._refresh()

    async def _refresh(self) -> None:
        if self._session is not None:
            reading = await self._session.lifecycle.monitor().refresh()
            self._on_reading(reading)

    # Threads -----------------------------------------------------------------------------------
    def _is_on_loop(self) -> bool:
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work on the session's loop, the only one that changes traits."""

        def begin() -> None:
            task = asyncio.ensure_future(work)
            self._tasks.add(task)  # the loop itself keeps weak references only
            task.add_done_callback(self._tasks.discard)

        if self._is_on_loop():
            begin()
        else:
            self._loop.call_soon_threadsafe(begin)

    def _set(self, **values: Any) -> None:
        with self.hold_sync():
            for name, value in values.items():
                setattr(self, name, value)

    # In a saved notebook ------------------------------------------------------------------------
    def _words(self) -> list[str]:
        if self.missing:
            return [str(self.missing)]
        session = self._session
        reading = session.lifecycle.monitor().reading if session is not None else StatusReading()
        if session is None or reading.status is None:
            return [f"{self.name or 'Ivy sandbox'}: its status has not been read yet."]
        now = monotonic_seconds()
        lines = status_lines(session.lifecycle, reading.status, now)
        reason = reading.stale_reason(now)
        return lines + ([f"stale: {reason}"] if reason else [])

    def _repr_mimebundle_(self, **options: Any) -> tuple[Json, Json]:
        """Return the live view, and the text that is shown instead where there is none."""
        data, metadata = super()._repr_mimebundle_(**options) or ({}, {})
        lines = ["Ivy sandbox, as it was when this cell ran", *self._words()]
        items = "".join(f"<li>{html.escape(line)}</li>" for line in lines[1:])
        return {
            **data,
            "text/plain": "\n".join(lines),
            "text/html": f"<p>{html.escape(lines[0])}:</p><ul>{items}</ul>",
        }, metadata


def _as_addressed(data: object, subshell_id: str | None) -> str | None:
    """Return the subshell that handles a message: the one that it was sent to."""
    return subshell_id


async def open_widget(owner: SessionOwner) -> Json:
    """Make a widget on the running loop; return the content of the display that shows it."""
    widget = StatusWidget(owner=owner, loop=asyncio.get_running_loop())
    await asyncio.to_thread(widget._first.wait, FIRST_STATUS_SECONDS)
    data, metadata = widget._repr_mimebundle_()
    return {"data": data, "metadata": metadata, "transient": {}}


def _this_notebook() -> tuple[SessionOwner, asyncio.AbstractEventLoop]:
    """Return the sessions of the magics, which are loaded if they are not yet, and their loop."""
    from IPython import get_ipython

    shell = get_ipython()
    if shell is None:
        raise UsageError(
            "StatusWidget() needs a notebook; in the Ivy Sandbox kernel run %ivy widget instead."
        )
    shell.extension_manager.load_extension("ivy_kernel")  # which has no effect a second time
    magics = getattr(shell, SHELL_ATTRIBUTE)
    return magics.sessions, magics.thread.loop
