"""Pictures and files: given as data, in base64, as data URIs, or only by the place they are at."""

from __future__ import annotations

from typing import Any

from ivy_kernel.routes.decode.fields import Fields
from ivy_kernel.routes.decode.outputs import take_metadata

from ivy_kernel.routes.decode.bundles import (
    bundle_of,
    decode_base64_text,
    is_base64,
    link_bundle,
    mime_type_of,
    sniff,
    text_of_data_uri,
)
from ivy_kernel.routes.decode.parts import Output, display, value_data
from ivy_kernel.routes.decode.values import text_of

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
    """Whether an object has what a picture or file must have: its data, or where it is."""
    return any(isinstance(fields.peek(name), (str, dict)) for name in DATA_NAMES) or any(
        isinstance(fields.peek(name), str) for name in _PLACE_NAMES
    )


def is_picture(fields: Fields) -> bool:
    """Whether an object is a picture or file: data or place, and a type."""
    has_type = any(mime_type_of(fields.peek(name)) for name in _TYPE_NAMES)
    return has_data_or_place(fields) and (has_type or fields.peek("type") in PICTURE_TYPES)


def picture_of_text(text: str, name: str = "") -> Output:
    """The display of a picture or file given as one string: data URI, base64, URL or path."""
    mime_type = sniff(text)
    if mime_type is None:
        return display(link_bundle(text.strip(), name))
    data = text_of_data_uri(text) or text if mime_type.startswith("text/") else text
    words = f"{name}\n{data}" if name and mime_type == "text/plain" else name
    return display({mime_type: data} | ({"text/plain": words} if words else {}))


def pictures_of(fields: Fields, name: str = "") -> list[Output]:
    """The displays of a picture or file given as an object.

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
    """Display metadata with the size in which a picture is to be shown, where it is given."""
    size = {
        name: fields.take(name)
        for name in ("width", "height")
        if isinstance(fields.peek(name), (int, float))
    }
    mime_type = next((key for key in bundle if key.startswith("image/")), None)
    if not size or mime_type is None or mime_type in metadata:
        return metadata
    return metadata | {mime_type: size}
