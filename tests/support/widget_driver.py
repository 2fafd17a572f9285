"""Follows a status widget's model by the comm messages that a front end gets."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from home import Home
from magic_driver import MagicKernel

Json = dict[str, Any]

VIEW = "application/vnd.jupyter.widget-view+json"


class WidgetKernel(MagicKernel):
    """A kernel, and the state of all its widgets.

    Parameters
    ----------
    home, variables, kernel_name
        As for `MagicKernel`.
    """

    def __init__(
        self, home: Home, variables: Mapping[str, str], kernel_name: str = "python3"
    ) -> None:
        super().__init__(home, variables, kernel_name)
        self.models: dict[str, Json] = {}
        self.closed: set[str] = set()

    def any_message(self, deadline: float) -> Json:
        """Take the next message, and updates the models by it."""
        message = super().any_message(deadline)
        content = message["content"]
        if message["msg_type"] == "comm_open":
            self.models[content["comm_id"]] = dict(content["data"]["state"])
        elif message["msg_type"] == "comm_msg" and content["data"].get("method") == "update":
            self.models[content["comm_id"]].update(content["data"]["state"])
        elif message["msg_type"] == "comm_close":
            self.closed.add(content["comm_id"])
        return message

    def show_widget(self) -> tuple[str, Json]:
        """Show a widget; return its model's id, and the bundle that was displayed."""
        cell = self.run("%ivy widget")
        assert cell.reply["status"] == "ok", cell.reply
        (data,) = cell.datas("display_data")
        return str(data[VIEW]["model_id"]), data

    def wait_for(
        self, model_id: str, condition: Callable[[Json], Any], timeout_seconds: float = 25.0
    ) -> Json:
        """Take messages until a model meets the condition."""
        deadline = time.monotonic() + timeout_seconds
        while not condition(self.models.get(model_id, {})):
            try:
                self.any_message(deadline)
            except AssertionError:
                state = {k: v for k, v in self.models[model_id].items() if not k.startswith("_")}
                raise AssertionError(f"the model never met the condition: {state}") from None
        return self.models[model_id]

    def new_subshell(self) -> str:
        """Make the kernel start one more thread for messages; return its id."""
        message = self.client.session.msg("create_subshell_request", {})
        self.client.control_channel.send(message)
        return str(self.client.get_control_msg(timeout=10)["content"]["subshell_id"])

    def press(self, model_id: str, action: str, subshell_id: str | None = None) -> str:
        """Send the message of a button; return its id."""
        content = {
            "comm_id": model_id,
            "data": {"method": "custom", "content": {"action": action}},
        }
        message = self.client.session.msg("comm_msg", content)
        message["header"]["subshell_id"] = subshell_id
        self.client.shell_channel.send(message)
        return str(message["header"]["msg_id"])


def state_is(*states: str) -> Callable[[Json], bool]:
    """Return a condition: the widget shows one of these states."""
    return lambda model: (model.get("status") or {}).get("state") in states
