"""The shapes of tool results: the meaning of each field of an answer, at any nesting depth."""

from __future__ import annotations

import re
from typing import Any

from ivy_kernel.routes.decode.bundles import is_bundle, is_picture_uri
from ivy_kernel.routes.decode.files import (
    has_data_or_place,
    is_picture,
    is_picture_name,
    is_picture_text,
    picture_of_text,
    pictures_of,
)
from ivy_kernel.routes.decode.items import (
    EVENT_TEXT_NAMES,
    OUTPUT_TYPES,
    add_item,
    add_output,
    add_typed,
    are_events,
    drop_tag_of_event,
    event_kind_of,
    is_item,
    is_typed,
    message_type_of,
    tag_of_event,
)
from ivy_kernel.routes.decode.parts import ResultParts, display, execute_result, value_data
from ivy_kernel.routes.decode.tracebacks import (
    Failure,
    failure_of_text,
    take_failures,
    tells_timeout,
)
from ivy_kernel.routes.decode.values import (
    Fields,
    is_empty,
    lines_text_of,
    merged,
    parse_json,
    snake_case,
    text_of,
    without_noise,
)
from ivy_kernel.routes.decode.vocabulary import (
    DESCENT_LIMIT,
    NAMES_OF_RUNS,
    TEXT_NAMES,
    VALUE_NAMES,
    WRAPPER_NAMES,
    answer_in_text,
    are_named_pictures,
    holds_answer,
    is_answer,
    is_answer_by_itself,
    is_known,
    is_process,
    is_run,
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
    # An answer that is one by itself is found under any name, but not within a user's own value.
    if not is_known(value) and not (depth == 0 and holds_answer(value)):
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
    if depth > DESCENT_LIMIT or not (
        are_events(items) or any(is_answer(item, depth + 1) for item in items)
    ):
        return False
    _add_elements(items, parts, path, depth)
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
    if not add_answer(item, parts, path, depth + 1) and not _is_echo(item):
        parts.shown.append(display(value_data(item)))


def _is_echo(item: Any) -> bool:
    """Return whether an element of a list is nothing but the code that was run (Gemini)."""
    return isinstance(item, dict) and Fields(item).names() == ["executable_code"]


def _add_object(fields: Fields, parts: ResultParts, path: str, depth: int) -> None:
    """Add the object in the order in which a notebook shows things."""
    wholes = [fields.peek(name) for name in (*VALUE_NAMES, *TEXT_NAMES, *WRAPPER_NAMES)]
    # Before the streams are taken: beside them, `code` and `status` are exit codes.
    has_streams = "stdout" in fields or "stderr" in fields or "logs" in fields
    is_bad = take_flags(fields, parts, has_streams=has_streams)
    take_streams(fields, parts)
    _take_cells(fields, parts, path, depth)
    _take_two_views(fields, parts, path, depth)
    for name in ("events", "messages"):
        items = fields.peek(name)
        if isinstance(items, list) and items and all(event_kind_of(item) for item in items):
            fields.drop(name)
            _add_events(items, parts, _join(path, name), depth)
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
    left = {
        key: value
        for key, value in fields.left().items()
        # the same once more under a name of its own, such as rawResult
        if not (isinstance(value, dict) and value and value in wholes)
    }
    _keep(left, parts, path, depth)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _add_elements(items: list[Any], parts: ResultParts, path: str, depth: int) -> None:
    text = lines_text_of(items)
    if text is not None:
        parts.say(text)
        return
    if are_events(items):
        _add_events(items, parts, path, depth)
        return
    for number, item in enumerate(items):
        _add_element(item, parts, f"{path}[{number}]", depth)


def _add_events(items: list[Any], parts: ResultParts, path: str, depth: int) -> None:
    for number, item in enumerate(items):
        kind, place = event_kind_of(item), f"{path}[{number}]"
        if kind == "message":
            _add_message(Fields(item), parts, place, depth)
        elif kind == "item":
            _add_element(item, parts, place, depth)
        else:
            _add_event(kind, Fields(item), parts, place, depth)
    parts.join_written()


_ENVELOPE_NAMES = ("header", "parent_header", "metadata", "msg_type", "msg_id", "buffers")


def _add_message(message: Fields, parts: ResultParts, path: str, depth: int) -> None:
    """Add a Jupyter message; most types other than outputs tell nothing of what the cell did."""
    kind = message_type_of(message)
    if kind in OUTPUT_TYPES:
        _keep(add_output(message, parts), parts, path, depth)
        return
    message.drop(*_ENVELOPE_NAMES, "channel", "content" if kind not in _TOLD_TYPES else "")
    content = message.take("content")
    fields = Fields(content if isinstance(content, dict) else {})
    if kind == "clear_output":
        parts.clear(waits=bool(fields.take("wait")))
    elif kind == "input_request":
        parts.write("stdout", fields.take_string("prompt") or "")
    elif kind == "execute_reply":
        is_bad = take_flags(fields, parts, has_streams=False)
        parts.failures += take_failures(fields, is_bad=is_bad)
        pages = fields.take("payload")
        for page in pages if isinstance(pages, list) else []:
            if isinstance(page, dict) and is_bundle(page.get("data")):
                parts.shown.append(display(page["data"]))
    _keep(merged(message.left(), fields.left()), parts, path, depth)


_TOLD_TYPES = ("clear_output", "input_request", "execute_reply")


def _add_event(kind: str, event: Fields, parts: ResultParts, path: str, depth: int) -> None:
    """Add an event of a run: what was written, a result, an error, or how it ended."""
    tag = tag_of_event(event)
    drop_tag_of_event(event)
    for name in ("data", "payload", "body", "content"):
        inner = event.peek(name)
        if isinstance(inner, dict) and not is_bundle(inner):
            event.drop(name)
            event = Fields(merged(inner, event.left()))
            break
    if kind == "stream":
        _add_written(tag, event, parts)
    elif kind == "result":
        _add_result_event(event, parts, path, depth)
    else:
        is_end = kind == "end"
        if is_end and tag.startswith("exit") and "code" not in event and "exit_code" not in event:
            event = Fields({**event.left(), "exit_code": event.take("data", "value")})
        if kind == "error":  # here a name is that of the error
            names = {"name": "ename", "value": "evalue"}
            event = Fields({names.get(key, key): item for key, item in event.left().items()})
        is_bad = take_flags(event, parts, has_streams=is_end) or kind == "error"
        parts.timed_out = parts.timed_out or tells_timeout(tag)
        failures = take_failures(event, is_bad=is_bad)
        if kind == "error" and not failures:
            text = text_of(event.take(*EVENT_TEXT_NAMES))
            failures = [failure_of_text(text) if text is not None else Failure()]
        parts.failures += failures
    event.drop("stage", "phase", "step", "index", "stream", "execution_state")
    _keep(event.left(), parts, path, depth)


def _add_written(tag: str, event: Fields, parts: ResultParts) -> None:
    """Add an event's text to the stream that it names."""
    for name in EVENT_TEXT_NAMES:
        text = text_of(event.peek(name))
        if text is None:
            continue
        event.drop(name)
        where = tag
        if tag not in ("stdout", "stderr"):
            where = event.take_string("stream", "name", "fd", "channel", "level") or "stdout"
        line_end = "\n" if name == "line" and text and not text.endswith("\n") else ""
        is_stderr = where.lower() in ("stderr", "err", "error", "2")
        parts.write("stderr" if is_stderr else "stdout", text + line_end)
        return


def _add_result_event(event: Fields, parts: ResultParts, path: str, depth: int) -> None:
    parts.begin_output()
    if is_picture(event):
        parts.shown.extend(pictures_of(event))
    elif is_typed(event):
        _keep(add_typed(event, parts), parts, path, depth)
        event.drop(*event.names())
    else:
        value = event.take("data", "value", "result", "output", "content", "message")
        if is_answer(value, depth + 1):
            add_answer(value, parts, path, depth + 1)
        elif value is not None:
            parts.shown.append(execute_result(value_data(value)))


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


def _take_two_views(fields: Fields, parts: ResultParts, path: str, depth: int) -> None:
    """Take ``content`` and ``structured_content``, which servers of MCP answer together.

    Both should say the same; what one says more is shown, and nothing twice.
    """
    items, value = fields.peek("content"), fields.peek("structured_content")
    if not isinstance(items, list) or is_empty(items) or is_empty(value):
        return
    fields.drop("content", "structured_content")
    words, data = parts.view(), parts.view()
    _add_elements(items, words, _join(path, "content"), depth)
    has_shape = is_answer(value, depth + 1)
    if not has_shape or not add_answer(value, data, _join(path, "structured_content"), depth + 1):
        data = parts.view()
        _add_value(value, data, has_streams=False)
    in_words, in_data = words.pieces(), data.pieces()
    says_no_more = in_data <= in_words
    is_preferred = has_shape and in_words <= in_data
    parts.add_view(words, is_repeated=in_words <= in_data and (is_preferred or not says_no_more))
    parts.add_view(data, is_repeated=says_no_more and not is_preferred)


def _take_pictures(fields: Fields, parts: ResultParts, path: str) -> None:
    for name in filter(is_picture_name, fields.names()):
        pictures = fields.peek(name)
        if isinstance(pictures, dict) and are_named_pictures(pictures):
            named = list(pictures.items())
        elif isinstance(pictures, list):
            named = [("", picture) for picture in pictures]
        elif isinstance(pictures, dict) and has_data_or_place(Fields(pictures)):
            named = [("", pictures)]
        else:
            continue
        fields.drop(name)
        is_encoded = "base64" in name or "b64" in name
        for number, (title, picture) in enumerate(named):
            if isinstance(picture, str):
                if picture.strip():
                    output = picture_of_text(picture, title, is_encoded=is_encoded)
                    parts.pictures.append(output)
            else:
                _add_picture(picture, title, parts, f"{_join(path, name)}[{number}]")


def _add_picture(picture: Any, title: str, parts: ResultParts, path: str) -> None:
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
        if is_empty(value):
            fields.drop(name)
        elif is_answer(value, depth + 1) and not (
            parts.has_succeeded and name in ("output", "text") and _is_printed_error(value, depth)
        ):
            fields.drop(name)
            if not _add_nested(value, parts, _join(path, name), depth):
                _keep_as_they_are({name: value}, parts, path)
        elif name in (*VALUE_NAMES, "structured_content"):
            fields.drop(name)
            _add_value(value, parts, has_streams=has_streams)
        elif name in (*TEXT_NAMES, "body") and (text := lines_text_of(value)) is not None:
            fields.drop(name)
            if not parts.repeats(text):
                _add_text(text, parts, path, DESCENT_LIMIT + 1)


def _add_nested(value: Any, parts: ResultParts, path: str, depth: int) -> bool:
    """Add an answer within the answer, which may be the same once more; false when it is none."""
    view = parts.view()
    if not add_answer(value, view, path, depth + 1):
        return False
    parts.add_view(view)
    return True


def _is_printed_error(value: Any, depth: int) -> bool:
    """Return whether a string, where prints go, tells of an error that is not the tool's.

    When the tool says that all went well, it is the answer of something that the user called.
    """
    return isinstance(value, str) and says_that_it_failed(answer_in_text(value, depth + 1))


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
        is_named = snake_case(key) in NAMES_OF_RUNS and is_run(value, depth)
        is_found = is_named or is_answer_by_itself(value, depth)
        is_found = is_found and depth < DESCENT_LIMIT
        if not (is_found and _add_nested(value, parts, _join(path, key), depth)):
            _keep_as_they_are({key: value}, parts, path)


def _keep_as_they_are(left: dict[str, Any], parts: ResultParts, path: str) -> None:
    for key, value in without_noise(left).items():
        name = snake_case(key)
        values = value if isinstance(value, list) else [value]
        if values and all(isinstance(text, str) and is_picture_text(name, text) for text in values):
            parts.pictures += [picture_of_text(text, key, is_encoded=True) for text in values]
        else:
            parts.add_other(_join(path, key), value)
