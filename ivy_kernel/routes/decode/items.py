"""The items in lists of outputs, results and content parts, each decoded by itself."""

from __future__ import annotations

from typing import Any

from ivy_kernel.routes.decode.bundles import FORMATS, is_bundle, is_mime_type, mime_type_of
from ivy_kernel.routes.decode.files import (
    DATA_NAMES,
    PICTURE_TYPES,
    base64_names,
    is_picture,
    picture_of_text,
    pictures_of,
    take_metadata,
)
from ivy_kernel.routes.decode.parts import (
    ResultParts,
    display,
    execute_result,
    stream,
    value_data,
)
from ivy_kernel.routes.decode.tracebacks import Failure, traceback_lines
from ivy_kernel.routes.decode.values import (
    Fields,
    is_empty,
    json_text,
    lines_text_of,
    merged,
    snake_case,
    text_of,
)

OUTPUT_TYPES = frozenset(
    ["stream", "display_data", "execute_result", "update_display_data", "error", "pyout", "pyerr"]
)
"""The output types of nbformat 3 and 4, and the message types that are outputs."""


def output_type_of(fields: Fields) -> str | None:
    """Return the nbformat output type or Jupyter message type of an item, or ``None``."""
    kind = fields.peek("output_type", "msg_type")
    header = fields.peek("header")
    if kind is None and isinstance(header, dict):
        kind = Fields(header).peek("msg_type")
    if kind is None:
        tag = fields.peek("type")
        # Typed results use "error" as a tag, too; only Jupyter's has an ename.
        is_output = tag != "error" or fields.peek("ename") is not None
        kind = tag if is_output else None
    return kind if isinstance(kind, str) and kind in OUTPUT_TYPES else None


def add_output(fields: Fields, parts: ResultParts) -> dict[str, Any]:
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
    parts.begin_output()
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


def _add_content(kind: str | None, fields: Fields, parts: ResultParts) -> None:
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


def _add_stream(fields: Fields, parts: ResultParts) -> None:
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


def _add_display(kind: str | None, fields: Fields, parts: ResultParts) -> None:
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
    # The update replaces what the notebook shows, so the first display is changed in its place.
    shown_before = parts.displays.get(display_id)
    if kind == "update_display_data" and shown_before is not None:
        shown_before.update(data=output["data"], metadata=output["metadata"])
        return
    if display_id:
        parts.displays[display_id] = output
    parts.shown.append(output)


def _flat_bundle(fields: Fields) -> dict[str, Any]:
    """Return the data of an nbformat 3 output, which has its formats beside its type."""
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


def take_count(fields: Fields) -> int | None:
    """Return the execution count of an object; ``None`` when it has no valid one."""
    count = fields.peek("execution_count", "prompt_number")
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        return None
    fields.drop("execution_count", "prompt_number")
    return count


_TEXT_TYPES = frozenset(["text", "output_text", "input_text"])
_STREAM_TYPES = frozenset(["stdout", "stderr"])
_RESOURCE_TYPES = frozenset(["resource", "resource_link"])


def is_item(value: object) -> bool:
    """Return whether a value at any place is certainly an item that `add_item` knows."""
    if not isinstance(value, dict):
        return False
    fields = Fields(value)
    return output_type_of(fields) is not None or is_bundle(value) or _is_content_part(fields)


def add_item(item: object, parts: ResultParts) -> dict[str, Any] | None:
    """Add the outputs of one item.

    Parameters
    ----------
    item
        An element of a list of outputs, results or content parts, cleaned.
    parts
        Takes what is found.

    Returns
    -------
    dict[str, Any] | None
        The fields of the item that are not known; ``None`` when the item is none that is known
        here, and then nothing has been added.
    """
    if not isinstance(item, dict):
        return None
    if is_bundle(item):
        parts.shown.append(display(item))
        return {}
    fields = Fields(item)
    if output_type_of(fields) is not None:
        return add_output(fields, parts)
    if _is_content_part(fields):
        return _add_content_part(fields, parts)
    if is_typed(fields):
        return add_typed(fields, parts)
    if is_picture(fields):
        parts.shown.extend(pictures_of(fields))
        return fields.left()
    return None


def _is_content_part(fields: Fields) -> bool:
    tag = fields.peek("type")
    if not isinstance(tag, str):
        return False
    if tag in _TEXT_TYPES:
        return text_of(fields.peek("text")) is not None
    if tag in _STREAM_TYPES:
        return text_of(fields.peek("text", "data", "content")) is not None
    if tag in _RESOURCE_TYPES:
        return fields.peek("resource", "uri") is not None
    has_data = fields.peek("source", "url", *DATA_NAMES, *base64_names(fields), tag) is not None
    return tag in PICTURE_TYPES and has_data


def _add_content_part(fields: Fields, parts: ResultParts) -> dict[str, Any]:
    tag = fields.take("type")
    if tag in _STREAM_TYPES:
        text = lines_text_of(fields.take("text", "data", "content"))
        if text:
            parts.shown.append(stream(tag, text))
        return fields.left()
    if tag in _TEXT_TYPES:
        parts.say(text_of(fields.take("text")) or "")
        return fields.left()
    # a picture or resource may be described one level down
    inner = fields.peek("source", "image_url", "resource")
    if isinstance(inner, str):
        fields.take("source", "image_url", "resource")
        parts.shown.append(picture_of_text(inner))
        return fields.left()
    if not isinstance(inner, dict):
        parts.shown.extend(pictures_of(fields))
        return fields.left()
    fields.take("source", "image_url", "resource")
    inner_fields = Fields(inner)
    if inner_fields.peek("type") in ("base64", "url"):
        inner_fields.drop("type")
    parts.shown.extend(pictures_of(inner_fields))
    return merged(fields.left(), inner_fields.left())


def is_typed(fields: Fields) -> bool:
    """Return whether an object is a typed result: its keys are formats (``png``, ``html``, …)."""
    names = {snake_case(key) for key in fields.left()}
    return (
        bool(names & (FORMATS.keys() - {"text", "plain"}))
        or "is_main_result" in names
        or (text_of(fields.peek("text")) is not None and "type" not in names)
        or is_bundle(fields.peek("formats", "extra"))
    )


def add_typed(fields: Fields, parts: ResultParts) -> dict[str, Any]:
    """Add a typed result; return the fields that are not known."""
    is_main = isinstance(fields.peek("is_main_result"), bool) and fields.take("is_main_result")
    metadata = take_metadata(fields)
    data = _typed_bundle(fields)
    if is_main or data.keys() == {"text/plain"}:
        count = take_count(fields)
        if data:
            parts.shown.append(execute_result(data, metadata, count))
    elif data:
        parts.shown.append(display(data, metadata))
    return fields.left()


def _typed_bundle(fields: Fields) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for key in fields.left():
        mime_type = FORMATS.get(snake_case(key)) or (key if is_mime_type(key) else None)
        if mime_type is not None and mime_type not in data:
            value = fields.take_key(key)
            if value is not None:
                data[mime_type] = value
    _merge_raw(fields, data)
    for name in ("formats", "extra", "data"):
        more = fields.peek(name)
        if isinstance(more, dict) and is_bundle(more) and not data.keys() & more.keys():
            fields.drop(name)
            data.update(more)
    for name in ("data", "chart"):
        more = fields.peek(name)
        if isinstance(more, (dict, list)) and not is_empty(more):
            fields.drop(name)
            data[f"application/vnd.ivy.{name}+json"] = more
    # No front end shows these types, so where nothing else is there the same goes as text.
    if data and all(mime_type.startswith("application/vnd.ivy.") for mime_type in data):
        data["text/plain"] = "\n".join(json_text(value) for value in data.values())
    return data


def _merge_raw(fields: Fields, data: dict[str, Any]) -> None:
    """Take ``raw``, which holds the formats of a typed result once more, and perhaps others."""
    raw = fields.peek("raw")
    if not isinstance(raw, dict):
        return
    types = {key: FORMATS.get(snake_case(key)) or (key if is_mime_type(key) else "") for key in raw}
    # Nothing of it is dropped that is not shown otherwise.
    if all(
        mime_type and (mime_type not in data or data[mime_type] == raw[key])
        for key, mime_type in types.items()
    ):
        fields.drop("raw")
        data.update({mime_type: raw[key] for key, mime_type in types.items()})


# Events and messages -----------------------------------------------------------------------------
_TAG_NAMES = ("type", "event", "event_type", "kind", "stream")
_EVENT_KINDS = {
    "stream": [
        *("stdout", "stderr", "output", "log", "logs", "console", "print", "data", "chunk", "line"),
    ],
    "error": ["error", "exception", "execution_error", "failure"],
    "result": [
        *("result", "main_result", "value", "return_value", "display", "image", "chart", "figure"),
    ],
    "end": [
        *("end", "exit", "exited", "done", "finish", "finished", "complete", "completed", "close"),
        *("closed", "end_of_execution", "execution_complete", "execution_end", "exit_code"),
        *("execution_finished", "terminated", "timeout", "timed_out", "status", "summary"),
    ],
    "note": [
        *("start", "started", "begin", "init", "runtime", "stage", "ping", "pong", "heartbeat"),
        *("keepalive", "keep_alive", "connected", "ready", "queued", "running", "metadata"),
        *("execution_start", "execution_started", "number_of_executions", "execution_count"),
    ],
}
_KIND_OF_TAG = {tag: kind for kind, tags in _EVENT_KINDS.items() for tag in tags}
EVENT_TEXT_NAMES = (
    *("text", "data", "line", "chunk", "output", "message", "content", "logs", "value", "error"),
)
"""Fields that hold the text of an event."""

_MESSAGE_TYPES = OUTPUT_TYPES | {
    *("status", "execute_input", "execute_reply", "clear_output", "input_request", "comm_open"),
    *("comm_msg", "comm_close", "execute_request", "kernel_info_reply", "shutdown_reply"),
    *("iopub_welcome", "debug_event", "inspect_reply", "complete_reply", "comm_info_reply"),
}


def message_type_of(fields: Fields) -> str:
    """Return the type of a Jupyter message; empty for anything else."""
    header = fields.peek("header")
    kind = fields.peek("msg_type") or (header.get("msg_type") if isinstance(header, dict) else None)
    return kind if isinstance(kind, str) and kind in _MESSAGE_TYPES else ""


def event_kind_of(item: object) -> str:
    """Return what an element of a list of events tells.

    Returns
    -------
    str
        ``stream``, ``error``, ``result``, ``end``, ``note``, ``message`` (of Jupyter), ``item``
        (what `add_item` knows); empty for what is no event.
    """
    if not isinstance(item, dict):
        return ""
    fields = Fields(item)
    if message_type_of(fields):
        return "message"
    tag = tag_of_event(fields)
    if is_item(item) and tag not in _STREAM_TYPES:
        return "item"
    return _KIND_OF_TAG.get(tag, "")


def tag_of_event(fields: Fields) -> str:
    """Return the word by which an event says what it is; empty without one."""
    tag = fields.peek(*_TAG_NAMES)
    return snake_case(tag.strip()) if isinstance(tag, str) else ""


def drop_tag_of_event(fields: Fields) -> None:
    """Count the field with the event's tag as dealt with."""
    for name in _TAG_NAMES:
        if fields.peek(name) is not None:
            fields.drop(name)
            return


def are_events(items: list[Any], *, surely: bool = False) -> bool:
    """Return whether a list is one of events or messages of a run.

    Parameters
    ----------
    items
        The list: all of it must be known, and something must hold output or an error.
    surely
        Whether it may be the user's own value, for users have lists of objects with a type, too.
        Then something must be of a kind that is hardly chance: a message, text for a stream that
        is named, or an error with its traceback.
    """
    kinds = [event_kind_of(item) for item in items]
    return all(kinds) and any(
        kind == "message"
        or ((_is_sure_event(item) if surely else kind in _TOLD_KINDS) and _has_payload(item))
        for kind, item in zip(kinds, items, strict=True)
    )


_TOLD_KINDS = ("stream", "error", "result")


def _is_sure_event(item: dict[str, Any]) -> bool:
    fields = Fields(item)
    inner = fields.peek("data")
    error = Fields(inner) if isinstance(inner, dict) else fields
    has_stream = tag_of_event(fields) in _STREAM_TYPES or fields.peek("stream") in _STREAM_TYPES
    return has_stream or error.peek("traceback", "ename") is not None


def _has_payload(item: dict[str, Any]) -> bool:
    fields = Fields(item)
    payload = fields.peek(*EVENT_TEXT_NAMES, "payload", "traceback", "ename", "evalue", "png")
    return isinstance(payload, (str, dict, list)) and not is_empty(payload)
