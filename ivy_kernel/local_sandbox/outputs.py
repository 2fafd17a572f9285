"""Outputs of one notebook cell, put together from its messages as a notebook would hold them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]

_ERROR_KEYS = ("ename", "evalue", "traceback")


@dataclass
class Outputs:
    """The outputs so far.

    Parameters
    ----------
    limit_bytes
        How much text of streams is kept; the rest is dropped and counted.
    items
        The outputs, as in nbformat 4.
    execution_count
        The number that the kernel gave to the cell.
    failed
        Whether the cell ended in an error.
    """

    limit_bytes: int
    items: list[Json] = field(default_factory=list)
    execution_count: int | None = None
    failed: bool = False
    _clear_next: bool = False
    _display_ids: list[str | None] = field(default_factory=list)
    _parts: list[str] = field(default_factory=list)
    _stream_chars: int = 0
    _dropped_chars: int = 0

    def take(self, kind: str, content: Json) -> None:
        """Apply one iopub message."""
        if kind == "execute_input":
            self.execution_count = content["execution_count"]
        elif kind == "clear_output":
            if content.get("wait"):
                self._clear_next = True
            else:
                self._clear()
        elif kind == "update_display_data":
            self._update(content)
        elif kind == "stream":
            self._stream(content["name"], content["text"])
        elif kind in ("display_data", "execute_result"):
            output = {"output_type": kind, "data": content["data"], "metadata": content["metadata"]}
            if kind == "execute_result":
                output["execution_count"] = content["execution_count"]
            self._add(output, content.get("transient", {}).get("display_id"))
        elif kind == "error":
            self.failed = True
            self._add({"output_type": "error", **{k: content[k] for k in _ERROR_KEYS}}, None)

    def finish(self) -> None:
        """Put the parts of the last stream together."""
        if self._parts:
            self.items[-1]["text"] = "".join(self._parts)
            self._parts = []
        if self._dropped_chars:
            note = f"\n... [output limit reached: {self._dropped_chars} characters were dropped]\n"
            self._dropped_chars = 0
            self._add({"output_type": "stream", "name": "stderr", "text": note}, None)

    def _clear(self) -> None:
        self._clear_next = False
        self.items.clear()
        self._display_ids.clear()
        self._parts = []

    def _add(self, output: Json, display_id: str | None) -> None:
        if self._clear_next:
            self._clear()
        if self._parts:
            self.items[-1]["text"] = "".join(self._parts)
            self._parts = []
        self.items.append(output)
        self._display_ids.append(display_id)

    def _stream(self, name: str, text: str) -> None:
        room = max(0, self.limit_bytes - self._stream_chars)
        self._dropped_chars += max(0, len(text) - room)
        text = text[:room]
        self._stream_chars += len(text)
        if self._clear_next or not self._parts or self.items[-1]["name"] != name:
            self._add({"output_type": "stream", "name": name, "text": ""}, None)
        self._parts.append(text)

    def _update(self, content: Json) -> None:
        display_id = content.get("transient", {}).get("display_id")
        for item, own_id in zip(self.items, self._display_ids, strict=True):
            if own_id is not None and own_id == display_id:
                item["data"], item["metadata"] = content["data"], content["metadata"]
