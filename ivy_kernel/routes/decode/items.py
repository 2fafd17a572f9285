"""The items in lists of outputs, results and content parts, each decoded by itself."""

from __future__ import annotations

from typing import Any

from ivy_kernel.routes.decode.bundles import FORMATS, is_bundle, is_mime_type
from ivy_kernel.routes.decode.fields import Fields, merged, snake_case
from ivy_kernel.routes.decode.outputs import add_output, output_type_of, take_count, take_metadata
from ivy_kernel.routes.decode.parts import Parts, display, execute_result, stream
from ivy_kernel.routes.decode.pictures import (
    DATA_NAMES,
    PICTURE_TYPES,
    is_picture,
    picture_of_text,
    pictures_of,
)
from ivy_kernel.routes.decode.values import is_empty, json_text, lines_text_of, text_of

_TEXT_TYPES = frozenset(["text", "output_text", "input_text"])
_STREAM_TYPES = frozenset(["stdout", "stderr"])
_RESOURCE_TYPES = frozenset(["resource", "resource_link"])


def is_item(value: object) -> bool:
    """Whether a value, wherever it stands, can be nothing but an item that `add_item` knows."""
    if not isinstance(value, dict):
        return False
    fields = Fields(value)
    return output_type_of(fields) is not None or is_bundle(value) or _is_content_part(fields)


def add_item(item: object, parts: Parts) -> dict[str, Any] | None:
    """Add what one item shows.

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
        parts.families.add("nbformat")
        return add_output(fields, parts)
    if _is_content_part(fields):
        return _add_content_part(fields, parts)
    if is_typed(fields):
        return add_typed(fields, parts)
    if is_picture(fields):
        parts.families.add("artifacts")
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
    return tag in PICTURE_TYPES and fields.peek("source", "url", *DATA_NAMES, tag) is not None


def _add_content_part(fields: Fields, parts: Parts) -> dict[str, Any]:
    tag = fields.take("type")
    if tag in _STREAM_TYPES:
        text = lines_text_of(fields.take("text", "data", "content"))
        if text:
            parts.shown.append(stream(tag, text))
        return fields.left()
    parts.families.add("content")
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
    """Whether an object is a typed result: its keys are formats (``png``, ``html``, …)."""
    names = {snake_case(key) for key in fields.left()}
    return (
        bool(names & (FORMATS.keys() - {"text", "plain"}))
        or "is_main_result" in names
        or (text_of(fields.peek("text")) is not None and "type" not in names)
        or is_bundle(fields.peek("formats", "extra"))
    )


def add_typed(fields: Fields, parts: Parts) -> dict[str, Any]:
    """Add a typed result; returns the fields that are not known."""
    parts.families.add("typed")
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
    if data and all(mime_type.startswith("application/vnd.ivy.") for mime_type in data):
        data["text/plain"] = "\n".join(json_text(value) for value in data.values())
    return data
