"""The shapes of tool results: the meaning of each field of an answer, at any nesting depth."""

from __future__ import annotations

import re
from typing import Any

from ivy_kernel.routes.decode.bundles import is_bundle, is_picture_uri
from ivy_kernel.routes.decode.files import has_data_or_place, picture_of_text, pictures_of
from ivy_kernel.routes.decode.items import add_item, is_item
from ivy_kernel.routes.decode.parts import ResultParts, display, execute_result, value_data
from ivy_kernel.routes.decode.tracebacks import take_failures
from ivy_kernel.routes.decode.values import (
    Fields,
    is_empty,
    lines_text_of,
    parse_json,
    without_noise,
)
from ivy_kernel.routes.decode.vocabulary import (
    DESCENT_LIMIT,
    PICTURE_LISTS,
    TEXT_NAMES,
    VALUE_NAMES,
    WRAPPER_NAMES,
    answer_in_text,
    are_named_pictures,
    is_answer,
    is_answer_by_itself,
    is_known,
    is_process,
    says_that_it_failed,
    take_flags,
    take_streams,
)

_CELL_NAMES = ("cell_type", "metadata", "id", "attachments")
_NOTEBOOK_NAMES = ("metadata", "nbformat", "nbformat_minor")
_TRIVIAL_MESSAGE = re.compile(
    r"\W*(ok|success|done|(the )?(code|cell|command|script|notebook)?\s*"
    r"(was |has )?(been )?(execut|complet|finish|run|ran|succe)\w*( successfully)?)\W*",
    re.IGNORECASE,
)


def add_answer(value: Any, parts: ResultParts, path: str = "", depth: int = 0) -> bool:
    """Add all that a tool's answer, or a part of it, holds.

    Parameters
    ----------
    value
        A cleaned JSON value.
    parts
        Takes what is found.
    path
        Where the value stands in the whole answer.
    depth
        How many objects and JSON strings are around it.

    Returns
    -------
    bool
        False when the value is none of the known shapes; then nothing has been added.
    """
    if isinstance(value, str):
        return _add_text(value, parts, path, depth)
    if isinstance(value, list):
        return _add_list(value, parts, path, depth)
    if not isinstance(value, dict) or depth > DESCENT_LIMIT:
        return False
    if is_item(value):
        left = add_item(value, parts)
        if left is not None:
            _keep(left, parts, path, depth)
            return True
    if not is_known(value):
        return False
    _add_object(Fields(value), parts, path, depth)
    return True


def _add_text(text: str, parts: ResultParts, path: str, depth: int) -> bool:
    answer = answer_in_text(text, depth) if depth <= DESCENT_LIMIT else None
    if answer is not None and add_answer(answer, parts, path, depth + 1):
        return True
    if is_picture_uri(text):
        parts.shown.append(picture_of_text(text))
    else:
        parts.say(text)
    return True


def _add_list(items: list[Any], parts: ResultParts, path: str, depth: int) -> bool:
    text = lines_text_of(items)
    if text is not None:
        return _add_text(text, parts, path, depth)
    if depth > DESCENT_LIMIT or not any(is_answer(item, depth + 1) for item in items):
        return False
    for number, item in enumerate(items):
        _add_element(item, parts, f"{path}[{number}]", depth)
    return True


def _add_element(item: Any, parts: ResultParts, path: str, depth: int) -> None:
    """Add an element of a list, as JSON when it is not known."""
    if is_empty(item):
        return
    if isinstance(item, dict):
        # A content part may hold a whole answer as JSON text, as servers of MCP wrap it.
        text = item.get("text") if item.get("type") == "text" else None
        answer = answer_in_text(text, depth) if isinstance(text, str) else None
        if answer is not None and add_answer(answer, parts, path, depth + 1):
            _keep_as_they_are({key: item[key] for key in item if key != "text"}, parts, path)
            return
        left = None if is_process(item) else add_item(item, parts)
        if left is not None:
            _keep(left, parts, path, depth)
            return
    if not add_answer(item, parts, path, depth + 1):
        parts.shown.append(display(value_data(item)))


def _add_object(fields: Fields, parts: ResultParts, path: str, depth: int) -> None:
    """Add the object in the order in which a notebook shows things."""
    # Before the streams are taken: beside them, `code` and `status` are exit codes.
    has_streams = "stdout" in fields or "stderr" in fields or "logs" in fields
    is_bad = take_flags(fields, parts, has_streams=has_streams)
    take_streams(fields, parts)
    _take_cells(fields, parts, path, depth)
    for name in ("outputs", "results", "content"):
        items = fields.peek(name)
        if isinstance(items, list):
            fields.drop(name)
            _add_elements(items, parts, _join(path, name), depth)
    _take_pictures(fields, parts, path)
    _take_values(fields, parts, path, depth, has_streams=has_streams)
    parts.failures += take_failures(fields, is_bad=is_bad)
    message = fields.peek("message")
    if isinstance(message, str) and _TRIVIAL_MESSAGE.fullmatch(message):
        fields.drop("message")
    _keep(fields.left(), parts, path, depth)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _add_elements(items: list[Any], parts: ResultParts, path: str, depth: int) -> None:
    text = lines_text_of(items)
    if text is not None:
        parts.say(text)
        return
    for number, item in enumerate(items):
        _add_element(item, parts, f"{path}[{number}]", depth)


def _take_cells(fields: Fields, parts: ResultParts, path: str, depth: int) -> None:
    cells = fields.peek("cells")
    if not isinstance(cells, list) or not all(isinstance(cell, dict) for cell in cells):
        return
    fields.drop("cells", *_NOTEBOOK_NAMES)
    for number, source in enumerate(cells):
        cell = Fields(source)
        # The source is what was sent; the user has it in the cell.
        cell.drop(*_CELL_NAMES, "source", "code", "input")
        if depth < DESCENT_LIMIT:
            _add_object(cell, parts, f"{_join(path, 'cells')}[{number}]", depth + 1)
        else:
            _keep_as_they_are(cell.left(), parts, path)


def _take_pictures(fields: Fields, parts: ResultParts, path: str) -> None:
    for name in PICTURE_LISTS:
        pictures = fields.peek(name)
        if isinstance(pictures, dict) and are_named_pictures(pictures):
            named = list(pictures.items())
        elif isinstance(pictures, list):
            named = [("", picture) for picture in pictures]
        else:
            continue
        fields.drop(name)
        for number, (title, picture) in enumerate(named):
            _add_picture(picture, title, parts, f"{_join(path, name)}[{number}]")


def _add_picture(picture: Any, title: str, parts: ResultParts, path: str) -> None:
    if isinstance(picture, str):
        if picture.strip():
            parts.pictures.append(picture_of_text(picture, title))
        return
    if isinstance(picture, dict) and not is_bundle(picture):
        fields = Fields(picture)
        found = ResultParts()
        if has_data_or_place(fields):
            found.shown += pictures_of(fields, title)
            left: dict[str, Any] | None = fields.left()
        else:
            left = add_item(picture, found)
        if left is not None:
            parts.pictures += found.shown
            for key, value in without_noise(left).items():
                parts.add_other(_join(path, key), value)
            return
    if not is_empty(picture):
        parts.pictures.append(display(value_data({title: picture} if title else picture)))


def _take_values(
    fields: Fields, parts: ResultParts, path: str, depth: int, *, has_streams: bool
) -> None:
    for name in (*VALUE_NAMES, *TEXT_NAMES, *WRAPPER_NAMES):
        if name not in fields:
            continue
        value = fields.peek(name)
        if name == "notebook" and isinstance(value, str):
            value = parse_json(value) or value
        if is_empty(value) or (name == "structured_content" and _is_said(value, parts)):
            fields.drop(name)
        elif is_answer(value, depth + 1) and not (
            parts.has_succeeded and name in ("output", "text") and _is_printed_error(value, depth)
        ):
            fields.drop(name)
            if not add_answer(value, parts, _join(path, name), depth + 1):
                _keep_as_they_are({name: value}, parts, path)
        elif name in (*VALUE_NAMES, "structured_content"):
            fields.drop(name)
            _add_value(value, parts, has_streams=has_streams)
        elif name in TEXT_NAMES and (text := lines_text_of(value)) is not None:
            fields.drop(name)
            _add_text(text, parts, path, DESCENT_LIMIT + 1)


def _is_printed_error(value: Any, depth: int) -> bool:
    """Return whether a string, where prints go, tells of an error that is not the tool's.

    When the tool says that all went well, it is the answer of something that the user called.
    """
    return isinstance(value, str) and says_that_it_failed(answer_in_text(value, depth + 1))


def _is_said(value: Any, parts: ResultParts) -> bool:
    """Return whether words of the tool hold the same value as JSON."""
    return any(parse_json(words["text"]) == value for words in parts.said)


def _add_value(value: Any, parts: ResultParts, *, has_streams: bool) -> None:
    """Add the value of the cell's last expression."""
    if isinstance(value, str) and is_picture_uri(value):
        parts.shown.append(picture_of_text(value))
    elif isinstance(value, str) and not has_streams:
        parts.say(value)
    elif not (isinstance(value, str) and value in (*parts.stdout, *parts.stderr)):
        parts.shown.append(execute_result(value_data(value)))


def _keep(left: dict[str, Any], parts: ResultParts, path: str, depth: int) -> None:
    """Keep the fields that the object's family does not know; answers among them are decoded."""
    for key, value in left.items():
        is_found = depth < DESCENT_LIMIT and is_answer_by_itself(value, depth)
        if not (is_found and add_answer(value, parts, _join(path, key), depth + 1)):
            _keep_as_they_are({key: value}, parts, path)


def _keep_as_they_are(left: dict[str, Any], parts: ResultParts, path: str) -> None:
    for key, value in without_noise(left).items():
        parts.add_other(_join(path, key), value)
