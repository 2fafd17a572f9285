"""nbformat outputs and Jupyter messages, as a tool's answer holds them."""

from __future__ import annotations

from typing import Any

from ivy_kernel.routes.decode.fields import Fields, merged, snake_case

from ivy_kernel.routes.decode.bundles import mime_type_of
from ivy_kernel.routes.decode.parts import Parts, display, execute_result, stream, value_data
from ivy_kernel.routes.decode.tracebacks import Failure, traceback_lines
from ivy_kernel.routes.decode.values import json_text, text_of

OUTPUT_TYPES = frozenset(
    ["stream", "display_data", "execute_result", "update_display_data", "error", "pyout", "pyerr"]
)
"""The output types of nbformat 3 and 4, and the message types that are outputs."""


def output_type_of(fields: Fields) -> str | None:
    """The nbformat output type or Jupyter message type of an item; ``None`` when it has none."""
    kind = fields.peek("output_type", "msg_type")
    header = fields.peek("header")
    if kind is None and isinstance(header, dict):
        kind = Fields(header).peek("msg_type")
    if kind is None:
        tag = fields.peek("type")
        is_output = tag != "error" or fields.peek("ename") is not None
        kind = tag if is_output else None
    return kind if isinstance(kind, str) and kind in OUTPUT_TYPES else None


def add_output(fields: Fields, parts: Parts) -> dict[str, Any]:
    """Add an output or message.

    Parameters
    ----------
    fields
        One for which `output_type_of` has an answer.
    parts
        Takes the output.

    Returns
    -------
    dict[str, Any]
        The fields that an output does not have.
    """
    kind = output_type_of(fields)
    fields.drop("output_type", "msg_type", "header", "parent_header")
    if fields.peek("type") == kind:
        fields.drop("type")
    content = fields.peek("content")
    if not isinstance(content, dict) or fields.peek("data", "text", "ename") is not None:
        _add_content(kind, fields, parts)
        return fields.left()
    fields.drop("content", "channel")
    inner = Fields(content)
    _add_content(kind, inner, parts)
    return merged(fields.left(), inner.left())


def _add_content(kind: str | None, fields: Fields, parts: Parts) -> None:
    if kind == "stream":
        _add_stream(fields, parts)
    elif kind in ("error", "pyerr"):
        failure = Failure(
            _text_or_json(fields.take("ename", "name")),
            _text_or_json(fields.take("evalue", "value", "message")),
        )
        lines = list(traceback_lines(fields.take("traceback")))
        parts.shown.append(failure.output() | {"traceback": lines})
    else:
        _add_display(kind, fields, parts)


def _add_stream(fields: Fields, parts: Parts) -> None:
    text = text_of(fields.peek("text", "data"))
    if text is None:
        return
    fields.take("text", "data")
    name = fields.peek("name", "stream")
    is_stderr = isinstance(name, str) and "err" in name.lower()
    if isinstance(name, str):
        fields.take("name", "stream")
    if text:
        parts.shown.append(stream("stderr" if is_stderr else "stdout", text))


def _text_or_json(value: object) -> str:
    if value is None:
        return ""
    text = text_of(value)
    return json_text(value) if text is None else text


def _add_display(kind: str | None, fields: Fields, parts: Parts) -> None:
    data = fields.take("data")
    metadata = take_metadata(fields)
    if data is None:
        data = _flat_bundle(fields)
    elif not isinstance(data, dict):
        data = value_data(data)
    display_id = _take_display_id(fields)
    if kind in ("execute_result", "pyout"):
        output = execute_result(data, metadata, take_count(fields))
    else:
        output = display(data, metadata)
    shown_before = parts.displays.get(display_id)
    if kind == "update_display_data" and shown_before is not None:
        shown_before.update(data=output["data"], metadata=output["metadata"])
        return
    if display_id:
        parts.displays[display_id] = output
    parts.shown.append(output)


def _flat_bundle(fields: Fields) -> dict[str, Any]:
    """The data of an nbformat 3 output, which has its formats beside its type."""
    data: dict[str, Any] = {}
    for key in fields.left():
        mime_type = mime_type_of(snake_case(key))
        if mime_type is not None and mime_type not in data:
            data[mime_type] = fields.take_key(key)
    return data


def _take_display_id(fields: Fields) -> str:
    transient = fields.peek("transient")
    if isinstance(transient, dict) and transient.keys() <= {"display_id"}:
        fields.drop("transient")
        display_id = transient.get("display_id")
    else:
        display_id = fields.peek("display_id")
    return display_id if isinstance(display_id, str) else ""


def take_metadata(fields: Fields) -> dict[str, Any]:
    """The display metadata of an item; empty when it has none."""
    metadata = fields.peek("metadata")
    if not isinstance(metadata, dict):
        return {}
    fields.drop("metadata")
    return dict(metadata)


def take_count(fields: Fields) -> int | None:
    """The execution count of an object; ``None`` when it has no valid one."""
    count = fields.peek("execution_count", "prompt_number")
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        return None
    fields.drop("execution_count", "prompt_number")
    return count
