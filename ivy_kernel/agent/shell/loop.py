"""The shell's main loop: takes requests in turn, replies, publishes busy and idle."""

from __future__ import annotations

import builtins
import codeop
import getpass
import os
import platform
import signal
import sys
from typing import Any

from ..extension import Extension, Host
from . import output
from .execution import Execution, complete, describe_error, inspect_at, to_python
from .output import AgentSocket, Capture, Display, encoded, mime_bundle

HISTORY_LIMIT = 10000


class StdinNotImplementedError(RuntimeError):
    """``input()`` was called in a front end that cannot ask."""


class RequestLoop:
    """The shell's main thread, in which all requests are worked on."""

    def __init__(self, agent: AgentSocket) -> None:
        self._agent = agent
        self._capture = Capture(agent)
        self._execution = Execution(self._capture.flush)
        self._display = Display(agent, self._capture.flush)
        self._extension = Extension(Host(lambda: self._execution.namespace, self._set_count))
        self._count = 0
        self._history: list[tuple[int, int, str]] = []
        self._is_running = False
        self._may_ask = False
        self._install()

    def run(self) -> None:
        """Work on requests until the agent ends this process."""
        self._agent.start()
        self._capture.note_own_threads()
        # Until here SIGINT would end the process; from here on it reaches cells alone.
        signal.signal(signal.SIGINT, self._on_interrupt)
        self._agent.announce({"implementation_version": platform.python_version()})
        wait: float | None = None
        while True:
            request = self._agent.next_request(wait)
            if request is not None:
                self._work_on(request)
            wait = self._extension.on_idle()

    def _work_on(self, request: dict[str, Any]) -> None:
        self._agent.parent = request["h"]
        self._agent.publish("status", {"execution_state": "busy"})
        msg_type = str(request["h"]["msg_type"])
        is_cell = msg_type == "execute_request"
        if is_cell:
            self._extension.before_cell(request.get("m") or {})
        reply = self._reply(msg_type, request["d"])
        # Before the reply, which may end the cell.
        self._capture.flush()
        if reply is not None:
            metadata = self._extension.after_cell(reply) if is_cell else None
            self._agent.send("shell", msg_type.replace("_request", "_reply"), reply, metadata)
        self._capture.tell_background()
        self._agent.publish("status", {"execution_state": "idle"})

    def _set_count(self, number: int) -> None:
        self._count = number

    def _on_ivy_work_request(self, content: dict[str, Any]) -> dict[str, Any]:
        """Do something beside cells (docs/agent-protocol.md, "Work beside cells")."""
        return self._extension.answer(content)

    def _install(self) -> None:
        """Put ``input``, ``display`` and their like where cells look for them."""
        vars(builtins).update(
            input=lambda prompt="": self._ask(str(prompt), is_password=False),
            display=self._display.display,
            update_display=self._display.update_display,
            clear_output=self._display.clear_output,
        )
        vars(getpass)["getpass"] = lambda prompt="Password: ", stream=None: self._ask(
            prompt, is_password=True
        )
        os.environ["MPLBACKEND"] = output.BACKEND
        output.show_through(self._publish_figure)

    def _reply(self, msg_type: str, content: dict[str, Any]) -> dict[str, Any] | None:
        if msg_type.startswith("comm_") and msg_type != "comm_info_request":
            return None
        handler = getattr(self, "_on_" + msg_type, None)
        if handler is None:
            evalue = f"the built-in shell does not answer {msg_type}"
            return {"status": "error", "ename": "NotImplementedError", "evalue": evalue}
        try:
            reply: dict[str, Any] = handler(content)
        except (Exception, KeyboardInterrupt) as error:  # every request gets a reply
            return {"status": "error", **describe_error(error)}
        return reply

    def _on_execute_request(self, content: dict[str, Any]) -> dict[str, Any]:
        """Run a cell (message spec, "Execute")."""
        code, silent = str(content["code"]), bool(content.get("silent"))
        self._may_ask = bool(content.get("allow_stdin"))
        if not silent and content.get("store_history", True):
            self._count += 1
            self._history.append((0, self._count, code))
            del self._history[:-HISTORY_LIMIT]
        if not silent:
            self._agent.publish("execute_input", {"code": code, "execution_count": self._count})
        reply: dict[str, Any] = {"execution_count": self._count, "payload": []}
        try:
            self._is_running = True
            value = self._execution.run(code, self._count)
            if value is not None and not silent:
                self._show_result(value)
            output.show()
            self._is_running = False  # an interrupt that comes later must not cost the reply
        except BaseException as error:  # whatever the user's code raises is a reply
            self._is_running = False
            self._capture.flush()
            described = describe_error(error)
            if not silent:
                self._agent.publish("error", described)
            reply.update(described, status="error", user_expressions={})
            return reply
        wanted = content.get("user_expressions") or {}
        found = {name: self._execution.evaluate(text) for name, text in wanted.items()}
        reply.update(status="ok", user_expressions=found)
        return reply

    def _show_result(self, value: Any) -> None:
        data, metadata = mime_bundle(value)
        self._capture.flush()
        content = {"data": data, "metadata": metadata, "execution_count": self._count}
        self._agent.publish("execute_result", content)

    def _publish_figure(self, data: dict[str, Any]) -> None:
        self._capture.flush()
        shown = {mime_type: encoded(item) for mime_type, item in data.items()}
        self._agent.publish("display_data", {"data": shown, "metadata": {}, "transient": {}})

    def _on_complete_request(self, content: dict[str, Any]) -> dict[str, Any]:
        code = str(content["code"])
        cursor = content.get("cursor_pos")
        return complete(self._execution.namespace, code, len(code) if cursor is None else cursor)

    def _on_inspect_request(self, content: dict[str, Any]) -> dict[str, Any]:
        code, cursor = str(content["code"]), int(content.get("cursor_pos", 0))
        detail = int(content.get("detail_level", 0))
        return inspect_at(self._execution.namespace, code, cursor, detail)

    def _on_is_complete_request(self, content: dict[str, Any]) -> dict[str, Any]:
        try:
            code = codeop.compile_command(to_python(str(content["code"])), symbol="exec")
        except (SyntaxError, ValueError, OverflowError):
            return {"status": "invalid"}
        return (
            {"status": "incomplete", "indent": "    "} if code is None else {"status": "complete"}
        )

    def _on_history_request(self, content: dict[str, Any]) -> dict[str, Any]:
        """Earlier cells (message spec, "History"): by tail, range or search."""
        entries = list(self._history)
        access = content.get("hist_access_type", "tail")
        if access == "range":
            start, stop = int(content.get("start") or 0), content.get("stop")
            end = self._count + 1 if stop is None else int(stop)
            entries = [entry for entry in entries if start <= entry[1] < end]
        else:
            if access == "search":
                wanted = str(content.get("pattern", "")).strip("*")
                entries = [entry for entry in entries if wanted in entry[2]]
            entries = entries[-int(content.get("n") or len(entries) or 1) :]
        if content.get("output"):
            return {"status": "ok", "history": [(s, n, (code, None)) for s, n, code in entries]}
        return {"status": "ok", "history": entries}

    def _on_comm_info_request(self, _: dict[str, Any]) -> dict[str, Any]:
        return {"status": "ok", "comms": {}}

    def _on_kernel_info_request(self, _: dict[str, Any]) -> dict[str, Any]:
        version = platform.python_version()
        return {
            "status": "ok",
            "protocol_version": "5.3",
            "implementation": "ivy-shell",
            "implementation_version": version,
            "language_info": {
                "name": "python",
                "version": version,
                "mimetype": "text/x-python",
                "file_extension": ".py",
            },
            "banner": f"Python {sys.version}",
            "help_links": [],
        }

    def _ask(self, prompt: str, *, is_password: bool) -> str:
        if not self._may_ask:
            raise StdinNotImplementedError(
                "input was requested, but this front end does not support input requests."
            )
        self._capture.flush()
        return self._agent.ask(prompt, is_password=is_password)

    def _on_interrupt(self, *_: object) -> None:
        if self._is_running:
            raise KeyboardInterrupt


def run_shell(descriptor: int) -> None:
    """Run the shell at the other end of this socket. Called in a process of its own."""
    # First comes the working directory, as in any Python; the archive must not hide a module of
    # the user's, but matplotlib imports figure_backend from there.
    archive = sys.path.pop(0)
    sys.path.insert(0, "")
    sys.path.append(archive)
    RequestLoop(AgentSocket(descriptor)).run()
