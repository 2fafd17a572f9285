"""Pictures and files of an answer: their data in any encoding, or where they are."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from ivy_kernel.routes.decode.bundles import (
    bundle_of,
    decode_base64,
    decode_base64_text,
    is_json_type,
    link_bundle,
    mime_type_of,
    sniff,
    text_of_data_uri,
)
from ivy_kernel.routes.decode.parts import Output, display, value_data
from ivy_kernel.routes.decode.values import Fields, parse_json, text_of


def take_metadata(fields: Fields) -> dict[str, Any]:
    """Return the display metadata of an item; empty when it has none."""
    metadata = fields.peek("metadata")
    if not isinstance(metadata, dict):
        return {}
    fields.drop("metadata")
    return dict(metadata)


PICTURE_TYPES = frozenset(
    ["image", "audio", "video", "picture", "figure", "plot", "file", "image_url"]
)
"""Type tags of pictures and files that are no MIME types."""

DATA_NAMES = ("data", "base64", "b64", "b64_json", "blob", "content", "body", "bytes", "image")
# Names such as content_base64, base64_data and png_b64.
_BASE64_NAME = re.compile(r"(.+_)?(base64|b64)(_.+)?")
_PLACE_NAMES = (
    *("url", "uri", "href", "src", "download_url", "signed_url", "presigned_url", "public_url"),
    *("image_url", "file_url", "file_uri", "path", "file_path", "filepath", "local_path"),
    *("image_path", "filename", "file_name", "file", "file_id"),
)
_TITLE_NAMES = ("name", "title", "label")
_CAPTION_NAMES = ("caption", "alt", "alt_text", "description")
_TYPE_NAMES = ("mime_type", "mimetype", "media_type", "content_type", "mime", "format", "type")


def has_data_or_place(fields: Fields) -> bool:
    """Return whether an object has what a picture or file must have: its data, or where it is."""
    return any(
        isinstance(fields.peek(name), (str, dict))
        if name in DATA_NAMES
        else isinstance(fields.peek(name), str)
        for name in (*DATA_NAMES, *_PLACE_NAMES, *base64_names(fields))
    )


def base64_names(fields: Fields) -> list[str]:
    """Return the names of fields that say of themselves that they hold base64."""
    return [name for name in fields.names() if _BASE64_NAME.fullmatch(name)]


_PICTURE_NOUNS = frozenset(
    ["image", "plot", "figure", "chart", "artifact", "attachment", "file", "picture", "screenshot"]
)
_PICTURE_QUALIFIERS = frozenset(
    [
        *("output", "result", "generated", "created", "new", "saved", "written", "modified"),
        *("base64", "b64", "encoded", "url", "urls", "uri", "uris", "path", "paths", "displayed"),
    ]
)


def is_picture_name(name: str) -> bool:
    """Return whether a field's name means pictures or files: ``images``, ``output_files``, …."""
    words = name.split("_")
    are_nouns = [word.removesuffix("s") in _PICTURE_NOUNS for word in words]
    return any(are_nouns) and all(
        is_noun or word in _PICTURE_QUALIFIERS
        for word, is_noun in zip(words, are_nouns, strict=True)
    )


def is_picture_text(name: str, text: str) -> bool:
    """Return whether the text of a field is a picture or file, or the web address of one.

    A path is none: many fields that name a file say where the code came from.
    """
    mime_type = sniff(text)
    if mime_type is not None:
        return not mime_type.startswith("text/") or is_picture_name(name)
    words = name.split("_")
    if is_picture_name(name) and words[-1] in ("url", "uri"):
        return text.strip().startswith(("http://", "https://"))
    return _BASE64_NAME.fullmatch(name) is not None and decode_base64(text) is not None


def is_picture(fields: Fields) -> bool:
    """Return whether an object is a picture or file: data or place, and a type."""
    has_type = any(mime_type_of(fields.peek(name)) for name in _TYPE_NAMES)
    return has_data_or_place(fields) and (has_type or fields.peek("type") in PICTURE_TYPES)


def picture_of_text(text: str, name: str = "", *, is_encoded: bool = False) -> Output:
    """Return the display of a picture or file given as data URI, base64, URL or path.

    Parameters
    ----------
    text
        The data URI, base64, URL or path.
    name
        What it is called; empty when the answer does not say.
    is_encoded
        Whether the answer says that it is base64, so that it is no path.
    """
    mime_type = sniff(text)
    if mime_type is None and is_encoded and decode_base64(text) is not None:
        return display(_decoded_bundle(text, type_of_file(name), name))
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
    is_encoded = fields.peek("encoding") == "base64" or bool(base64_names(fields))
    words = [name, *_take_strings(fields, _TITLE_NAMES), *_take_strings(fields, _CAPTION_NAMES)]
    words = list(dict.fromkeys(word for word in words if word))
    data = _take_data(fields)
    places = _take_strings(fields, _PLACE_NAMES)
    if is_encoded and mime_type is None and data and not isinstance(data, dict):
        mime_type = sniff(data) or type_of_file((*places, *words))
    bundle = _bundle_of_data(fields, mime_type, data, is_encoded=is_encoded)
    if not bundle:
        return _links(places, ": ".join(words), _take_size(fields))
    metadata = _with_size(fields, take_metadata(fields), bundle)
    notes = "\n".join(dict.fromkeys([*words, *places]))
    if "application/octet-stream" in bundle:
        size = len(decode_base64(bundle["application/octet-stream"]) or b"")
        fields.drop(*_SIZE_NAMES)
        notes = f"{notes or 'a file'} ({size} bytes)"
    if not notes:
        return [display(bundle, metadata)]
    if "text/plain" in bundle:
        return [display({"text/plain": notes}), display(bundle, metadata)]
    return [display(bundle | {"text/plain": notes}, metadata)]


_SIZE_NAMES = ("size", "size_bytes", "file_size")


def _take_size(fields: Fields) -> str:
    size = fields.peek(*_SIZE_NAMES)
    if isinstance(size, bool) or not isinstance(size, int):
        return ""
    fields.take(*_SIZE_NAMES)
    return f" ({size} bytes)"


def _links(places: list[str], title: str, size: str) -> list[Output]:
    if places and size:
        title = f"{title or places[0]}{size}"
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
    for name in (*base64_names(fields), *DATA_NAMES, "text"):
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
    fields: Fields, mime_type: str | None, data: str | dict[str, Any] | None, *, is_encoded: bool
) -> dict[str, Any]:
    """The MIME bundle of the data; texts decoded where they come in base64 or as a data URI."""
    if not data:
        return {}
    if isinstance(data, dict):
        is_json = mime_type is not None and "json" in mime_type
        return bundle_of({mime_type: data} if mime_type and is_json else value_data(data))
    sniffed = sniff(data)
    if is_encoded and sniffed is None and decode_base64(data) is not None:
        fields.drop("encoding")
        return _decoded_bundle(data, mime_type)
    mime_type = mime_type or sniffed or "text/plain"
    if is_json_type(mime_type):
        text = decode_base64_text(data) if parse_json(data) is None else None
        return {mime_type: (parse_json(text) if text else None) or data}
    is_text = mime_type.startswith("text/")
    if is_text and sniffed is not None:
        data = text_of_data_uri(data) or data
    bundle = {mime_type: data}
    if is_text and mime_type not in ("text/html", "text/markdown"):
        bundle["text/plain"] = data  # so that formats which front ends do not know are readable
    return bundle_of(bundle)


def _decoded_bundle(data: str, mime_type: str | None, name: str = "") -> dict[str, Any]:
    """Return the MIME bundle of base64: as text where it holds text, else as it is."""
    text = decode_base64_text(data)
    if mime_type is not None and not mime_type.startswith("text/"):
        value = parse_json(text) if text is not None and is_json_type(mime_type) else None
        bundle = {mime_type: data if value is None else value}
    elif text is None:
        bundle = {"application/octet-stream": data}
    else:
        bundle = {mime_type or "text/plain": text, "text/plain": text}
        name = f"{name}\n{text}" if name else text
    return bundle_of(bundle | ({"text/plain": name} if name else {}))


def type_of_file(names: str | Iterable[str]) -> str | None:
    """Return the MIME type that the ending of a file's name means; ``None`` when it means none."""
    for name in (names,) if isinstance(names, str) else names:
        _, dot, ending = name.rpartition(".")
        mime_type = mime_type_of(ending) if dot else None
        if mime_type is not None:
            return mime_type
    return None


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
