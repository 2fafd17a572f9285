"""A cell's outputs as a notebook document has them, put together from its messages.

Standard library only and without a kernel: the sandbox writes notebooks with it that run there
unwatched, our side fills cells that nobody watched, and both tell by it whether outputs are equal.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

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


# -- the document

OUTPUT_LIMIT_BYTES = 64 << 20
"""Of one notebook's outputs; of what comes beyond it, results and errors alone are kept."""

WIDGET_STATE = "application/vnd.jupyter.widget-state+json"


def replace_file(path: Path, data: bytes, *, must_last: bool = False) -> None:
    """Write a file whole or not at all; ``must_last``: wait until the disk has it."""
    part = path.with_name(f".{path.name}.part")
    with part.open("wb") as file:
        file.write(data)
        if must_last:
            file.flush()
            os.fsync(file.fileno())
    part.replace(path)


class NotebookFile:
    """A notebook on the disk, whose cells get what their messages say, one cell at a time.

    Parameters
    ----------
    notebook
        The notebook (JSON of format 4).
    path
        Its file.

    Attributes
    ----------
    writes
        How often the file was written.
    """

    def __init__(self, notebook: dict[str, Any], path: Path) -> None:
        self._notebook = notebook
        self._path = path
        self._texts: list[bytes | None] = [None] * len(notebook["cells"])
        self._outputs: dict[int, CellOutputs] = {}
        self.writes = 0
        self._at = 0
        self._bytes_left = OUTPUT_LIMIT_BYTES
        self._widgets: dict[str, dict[str, Any]] = {}
        self._buffers: dict[str, dict[str, Any]] = {}

    @property
    def cell(self) -> dict[str, Any]:
        """The cell that messages are taken for."""
        cell: dict[str, Any] = self._notebook["cells"][self._at]
        return cell

    def source(self, at: int) -> str:
        """Return the source of the cell at a position."""
        source = self._notebook["cells"][at].get("source", "")
        return source if isinstance(source, str) else "".join(source)

    def begin(self, at: int) -> None:
        """Empty the cell at a position, and take messages for it from now on."""
        self._at = at
        self._outputs[at] = CellOutputs()
        self.cell.setdefault("metadata", {})["execution"] = {}
        self._put(at)

    def note_time(self, name: str, date: str) -> None:
        """Keep a time of the cell, under the names that nbclient has for it."""
        self.cell["metadata"]["execution"][name] = date.replace("+00:00", "Z")
        self._texts[self._at] = None

    def note_receipt(self, run: str, receipt: dict[str, Any]) -> None:
        """Keep the cell's receipt, with the digest of its outputs, which are whole."""
        digest = outputs_digest(self.cell["outputs"])
        self.cell["metadata"]["ivy"] = {"run": run, "receipt": receipt, "outputs": digest}
        self._texts[self._at] = None

    def take(
        self, msg_type: str, content: dict[str, Any], metadata: dict[str, Any], size_bytes: int = 0
    ) -> bool:
        """Take an output of the cell; return whether the notebook has changed."""
        has_changed = False
        if (content.get("transient") or {}).get("display_id"):
            # A display of an earlier cell is updated too, also by one that is shown again.
            for at, outputs in self._outputs.items():
                if outputs.take("update_display_data", content, metadata):
                    self._put(at)
                    has_changed = True
        if msg_type in ("stream", "display_data"):
            had_room = self._bytes_left > 0
            self._bytes_left -= size_bytes
            if self._bytes_left <= 0:
                if not had_room:
                    return has_changed
                text = f"[Output beyond {OUTPUT_LIMIT_BYTES >> 20} MB is left out.]\n"
                msg_type, content = "stream", {"name": "stderr", "text": text}
        is_update = msg_type == "update_display_data"
        if not is_update and self._outputs[self._at].take(msg_type, content, metadata):
            self._put(self._at)
            has_changed = True
        return has_changed

    def _put(self, at: int) -> None:
        cell, outputs = self._notebook["cells"][at], self._outputs[at]
        cell["outputs"], cell["execution_count"] = outputs.outputs, outputs.execution_count
        self._texts[at] = None

    def take_comm(self, content: dict[str, Any], buffers: Sequence[Any]) -> None:
        """Keep the state of a widget (message spec, "Comms"), which is saved with notebooks."""
        data = content.get("data") or {}
        if not isinstance(data.get("state"), dict):
            return
        comm_id = str(content.get("comm_id"))
        self._widgets.setdefault(comm_id, {}).update(data["state"])
        for path, buffer in zip(data.get("buffer_paths") or (), buffers):
            text = base64.b64encode(bytes(buffer)).decode()
            kept = {"data": text, "encoding": "base64", "path": path}
            self._buffers.setdefault(comm_id, {})[json.dumps(path)] = kept

    def write(self) -> None:
        """Write it as it is now. Only the cells that have changed are put into JSON anew."""
        for at, text in enumerate(self._texts):
            if text is None:
                self._texts[at] = json.dumps(self._notebook["cells"][at], default=str).encode()
        if self._widgets:
            self._notebook["metadata"]["widgets"] = {WIDGET_STATE: self._widget_state()}
        rest = {name: value for name, value in self._notebook.items() if name != "cells"}
        cells = b",\n".join(text for text in self._texts if text is not None)
        data = b'{"cells": [\n%s\n], %s\n' % (cells, json.dumps(rest, default=str).encode()[1:])
        replace_file(self._path, data)
        self.writes += 1

    def _widget_state(self) -> dict[str, Any]:
        states: dict[str, Any] = {}
        for comm_id, state in self._widgets.items():
            if "_model_name" not in state:
                continue
            names = ("model_name", "model_module", "model_module_version")
            states[comm_id] = {name: state.get(f"_{name}") for name in names}
            states[comm_id]["state"] = state
            if comm_id in self._buffers:
                states[comm_id]["buffers"] = list(self._buffers[comm_id].values())
        return {"state": states, "version_major": 2, "version_minor": 0}
