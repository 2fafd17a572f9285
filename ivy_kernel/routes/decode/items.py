"""The items in lists of outputs, results and content parts, each decoded by itself."""

from __future__ import annotations

from typing import Any

from ivy_kernel.routes.decode.bundles import (
    FORMATS,
    bundle_of,
    decode_base64_text,
    is_base64,
    is_bundle,
    is_mime_type,
    link_bundle,
    mime_type_of,
    sniff,
    text_of_data_uri,
)
from ivy_kernel.routes.decode.parts import (
    Output,
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


def take_metadata(fields: Fields) -> dict[str, Any]:
    """Return the display metadata of an item; empty when it has none."""
    metadata = fields.peek("metadata")
    if not isinstance(metadata, dict):
        return {}
    fields.drop("metadata")
    return dict(metadata)


def take_count(fields: Fields) -> int | None:
    """Return the execution count of an object; ``None`` when it has no valid one."""
    count = fields.peek("execution_count", "prompt_number")
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        return None
    fields.drop("execution_count", "prompt_number")
    return count


PICTURE_TYPES = frozenset(
    ["image", "audio", "video", "picture", "figure", "plot", "file", "image_url"]
)
"""Type tags of pictures and files that are no MIME types."""

DATA_NAMES = ("data", "base64", "b64", "b64_json", "blob", "content", "body", "bytes", "image")
_PLACE_NAMES = (
    *("url", "uri", "href", "src", "download_url", "signed_url"),
    *("path", "file_path", "filepath", "filename", "file"),
)
_TITLE_NAMES = ("name", "title", "label")
_CAPTION_NAMES = ("caption", "alt", "alt_text", "description")
_TYPE_NAMES = ("mime_type", "mimetype", "media_type", "content_type", "mime", "format", "type")


def has_data_or_place(fields: Fields) -> bool:
    """Return whether an object has what a picture or file must have: its data, or where it is."""
    return any(isinstance(fields.peek(name), (str, dict)) for name in DATA_NAMES) or any(
        isinstance(fields.peek(name), str) for name in _PLACE_NAMES
    )


def is_picture(fields: Fields) -> bool:
    """Return whether an object is a picture or file: data or place, and a type."""
    has_type = any(mime_type_of(fields.peek(name)) for name in _TYPE_NAMES)
    return has_data_or_place(fields) and (has_type or fields.peek("type") in PICTURE_TYPES)


def picture_of_text(text: str, name: str = "") -> Output:
    """Return the display of a picture or file given as data URI, base64, URL or path."""
    mime_type = sniff(text)
    if mime_type is None:
        return display(link_bundle(text.strip(), name))
    data = text_of_data_uri(text) or text if mime_type.startswith("text/") else text
    words = f"{name}\n{data}" if name and mime_type == "text/plain" else name
    return display({mime_type: data} | ({"text/plain": words} if words else {}))


def pictures_of(fields: Fields, name: str = "") -> list[Output]:
    """Return the displays of a picture or file given as an object.

    Parameters
    ----------
    fields
        The object; what is shown is taken from it.
    name
        What it is called, where the answer says so outside of the object.
    """
    mime_type = _take_mime_type(fields)
    words = [name, *_take_strings(fields, _TITLE_NAMES), *_take_strings(fields, _CAPTION_NAMES)]
    words = list(dict.fromkeys(word for word in words if word))
    data = _take_data(fields)
    places = _take_strings(fields, _PLACE_NAMES)
    bundle = _bundle_of_data(fields, mime_type, data)
    if not bundle:
        return _links(places, ": ".join(words))
    metadata = _with_size(fields, take_metadata(fields), bundle)
    notes = "\n".join(dict.fromkeys([*words, *places]))
    if not notes:
        return [display(bundle, metadata)]
    if "text/plain" in bundle:
        return [display({"text/plain": notes}), display(bundle, metadata)]
    return [display(bundle | {"text/plain": notes}, metadata)]


def _links(places: list[str], title: str) -> list[Output]:
    if not places:
        return [display({"text/plain": title})] if title else []
    first, *others = places
    return [display(link_bundle(first, title)), *(display(link_bundle(other)) for other in others)]


def _take_strings(fields: Fields, names: tuple[str, ...]) -> list[str]:
    found = (fields.take_string(name) for name in names)
    return [text for text in found if text is not None]


def _take_mime_type(fields: Fields) -> str | None:
    found: str | None = None
    for name in _TYPE_NAMES:
        mime_type = mime_type_of(fields.peek(name))
        if mime_type is not None and found in (None, mime_type):
            found = mime_type
            fields.drop(name)
        elif fields.peek(name) in PICTURE_TYPES:
            fields.drop(name)
    return found


def _take_data(fields: Fields) -> str | dict[str, Any] | None:
    for name in (*DATA_NAMES, "text"):
        value = fields.peek(name)
        data = value if isinstance(value, dict) else text_of(value)
        if data:
            fields.drop(name)
            return data
    for name in _PLACE_NAMES:
        place = fields.peek(name)
        if isinstance(place, str) and place.lstrip()[:5].lower() == "data:":
            fields.drop(name)
            return place
    return None


def _bundle_of_data(
    fields: Fields, mime_type: str | None, data: str | dict[str, Any] | None
) -> dict[str, Any]:
    """The MIME bundle of the data; texts decoded where they come in base64 or as a data URI."""
    if not data:
        return {}
    if isinstance(data, dict):
        is_json = mime_type is not None and "json" in mime_type
        return bundle_of({mime_type: data} if mime_type and is_json else value_data(data))
    sniffed = sniff(data)
    mime_type = mime_type or sniffed or "text/plain"
    is_text = mime_type.startswith("text/")
    if fields.peek("encoding") == "base64" and is_text and is_base64(data):
        fields.drop("encoding")
        data = decode_base64_text(data) or data
    elif is_text and sniffed is not None:
        data = text_of_data_uri(data) or data
    bundle = {mime_type: data}
    if is_text and mime_type not in ("text/html", "text/markdown"):
        bundle["text/plain"] = data  # so that formats which front ends do not know are readable
    return bundle_of(bundle)


def _with_size(fields: Fields, metadata: dict[str, Any], bundle: dict[str, Any]) -> dict[str, Any]:
    """Return display metadata with the size in which a picture is to be shown, if given."""
    size = {
        name: fields.take(name)
        for name in ("width", "height")
        if isinstance(fields.peek(name), (int, float))
    }
    mime_type = next((key for key in bundle if key.startswith("image/")), None)
    if not size or mime_type is None or mime_type in metadata:
        return metadata
    return metadata | {mime_type: size}


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
    return tag in PICTURE_TYPES and fields.peek("source", "url", *DATA_NAMES, tag) is not None


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
