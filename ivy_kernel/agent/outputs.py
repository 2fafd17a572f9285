"""A cell's outputs as a notebook document has them, put together from its messages.

Standard library only and without a kernel: the sandbox writes notebooks with it that run there
unwatched, our side fills cells that nobody watched, and both tell by it whether outputs are equal.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

OUTPUT_TYPES = ("stream", "display_data", "execute_result", "error")


class CellOutputs:
    """The outputs of one cell (nbformat 4, "Code cell outputs"), as far as its messages have come.

    Attributes
    ----------
    outputs
        The outputs, ready for a notebook.
    execution_count
        The number that the cell has; ``None`` while that is not known.
    """

    def __init__(self) -> None:
        self.outputs: list[dict[str, Any]] = []
        self.execution_count: int | None = None
        self._must_clear = False
        self._displays: dict[str, list[dict[str, Any]]] = {}

    def take(
        self, msg_type: str, content: dict[str, Any], metadata: dict[str, Any] | None = None
    ) -> bool:
        """Take one message of the cell; return whether that changed anything.

        Parameters
        ----------
        msg_type, content, metadata
            As in the message spec, "Messages on the IOPub channel". Types that leave nothing in a
            notebook are ignored.
        """
        if msg_type == "execute_input":
            self.execution_count = content.get("execution_count")
            return True
        if msg_type == "clear_output":
            if content.get("wait"):
                self._must_clear = True
                return False
            return self._clear()
        if msg_type == "update_display_data":
            return self._update(content)
        if msg_type not in OUTPUT_TYPES:
            return False
        if self._must_clear:
            self._clear()
        self._add(msg_type, content)
        return True

    def _clear(self) -> bool:
        self._must_clear = False
        had_some = bool(self.outputs)
        self.outputs.clear()
        self._displays.clear()
        return had_some

    def _add(self, msg_type: str, content: dict[str, Any]) -> None:
        if msg_type == "stream":
            name, text = str(content.get("name", "stdout")), str(content.get("text", ""))
            last = self.outputs[-1] if self.outputs else {}
            if last.get("output_type") == "stream" and last["name"] == name:
                last["text"] += text
            else:
                self.outputs.append({"output_type": "stream", "name": name, "text": text})
            return
        if msg_type == "error":
            self.outputs.append(
                {
                    "output_type": "error",
                    "ename": str(content.get("ename", "")),
                    "evalue": str(content.get("evalue", "")),
                    "traceback": [str(line) for line in content.get("traceback") or ()],
                }
            )
            return
        output: dict[str, Any] = {
            "output_type": msg_type,
            "data": dict(content.get("data") or {}),
            "metadata": dict(content.get("metadata") or {}),
        }
        if msg_type == "execute_result":
            output["execution_count"] = content.get("execution_count")
            self.execution_count = content.get("execution_count")
        self.outputs.append(output)
        display_id = (content.get("transient") or {}).get("display_id")
        if display_id:
            self._displays.setdefault(str(display_id), []).append(output)

    def _update(self, content: dict[str, Any]) -> bool:
        display_id = str((content.get("transient") or {}).get("display_id"))
        shown = self._displays.get(display_id, ())
        for output in shown:
            output["data"] = dict(content.get("data") or {})
            output["metadata"] = dict(content.get("metadata") or {})
        return bool(shown)


def outputs_digest(outputs: list[dict[str, Any]]) -> str:
    """Return the SHA-256 of a cell's outputs, in hex.

    It does not depend on how text was cut into lists of lines, as documents on disk have it, nor
    into stream messages, nor on the cell's number.
    """
    joined = CellOutputs()
    for output in outputs:
        kind = str(output.get("output_type"))
        content = {key: value for key, value in output.items() if key != "output_type"}
        if kind == "stream":
            content["text"] = _joined(content.get("text", ""))
        elif "data" in content:
            content["data"] = {key: _joined(value) for key, value in content["data"].items()}
            content["execution_count"] = None
        joined.take(kind, content)
    text = json.dumps(joined.outputs, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def _joined(value: Any) -> Any:
    """Return text that a document holds as a list of lines as one string; others as they are."""
    if isinstance(value, list) and value and all(isinstance(line, str) for line in value):
        return "".join(value)
    return value
