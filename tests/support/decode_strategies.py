"""JSON values for property-based tests: any at all, and some that look like tools' answers."""

from __future__ import annotations

import base64
import json
from typing import Any

from hypothesis import strategies as st

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII="
TRACEBACK = (
    'Traceback (most recent call last):\n  File "cell.py", line 3, in <module>\n    1 / 0\n'
    "ZeroDivisionError: division by zero\n"
)
SVG = '<svg xmlns="http://www.w3.org/2000/svg"></svg>'

any_text = st.one_of(
    st.text(),
    st.text(alphabet="\ud83e\uddec a\n", min_size=1),  # halves of surrogate pairs
    st.sampled_from(
        [
            TRACEBACK,
            f"before\n{TRACEBACK}",
            "ValueError: no such gene",
            "\x1b[31mKeyError\x1b[39m: 'TP53'",
            PNG,
            f"data:image/png;base64,{PNG}",
            base64.b64encode(SVG.encode()).decode(),
            SVG,
            "data:image/png;base64,no picture!",
            "data:text/plain,caf%C3%A9",
            "https://example.org/plot.png",
            "/home/user/plot.png",
            "[1, 2]",
            "Grüße\n世界\n",
            "text/html",
            "ok",
            "error",
        ]
    ),
)
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.just(10**400), any_text
)
any_json = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(any_text, inner, max_size=4)
    ),
    max_leaves=20,
)
texts = st.one_of(any_text, st.lists(any_text, max_size=3))


def _objects(names: list[str], values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.dictionaries(st.sampled_from(names), values, max_size=6)


mime_bundles = _objects(
    [
        "text/plain",
        "text/html",
        "image/png",
        "image/svg+xml",
        "application/json",
        "application/vnd.plotly.v1+json",
        "application/x-other",
    ],
    st.one_of(texts, any_json),
)
output_items = st.one_of(
    st.fixed_dictionaries(
        {"output_type": st.just("stream"), "name": st.sampled_from(["stdout", "stderr"])},
        optional={"text": texts},
    ),
    st.fixed_dictionaries(
        {"output_type": st.sampled_from(["display_data", "execute_result"]), "data": mime_bundles},
        optional={"metadata": mime_bundles, "execution_count": scalars},
    ),
    st.fixed_dictionaries(
        {"output_type": st.just("error")},
        optional={"ename": texts, "evalue": texts, "traceback": st.one_of(texts, any_json)},
    ),
)
content_items = st.one_of(
    st.fixed_dictionaries({"type": st.just("text"), "text": any_text}),
    st.fixed_dictionaries(
        {"type": st.sampled_from(["image", "audio", "resource"])},
        optional={"data": any_text, "mimeType": st.just("image/png"), "resource": any_json},
    ),
)
picture_items = st.one_of(
    any_text,
    st.fixed_dictionaries(
        {"mimeType": st.sampled_from(["image/png", "image/svg+xml", "text/csv", "text/plain"])},
        optional=dict.fromkeys(("data", "url", "path", "title", "caption"), any_text),
    ),
    _objects(["data", "base64", "url", "path", "title", "caption", "width", "content"], scalars),
    _objects(["data", "url", "extra"], st.one_of(mime_bundles, scalars)),
)
typed_items = _objects(
    ["text", "png", "html", "svg", "latex", "json", "data", "raw", "isMainResult"],
    st.one_of(any_json),
)
files_in_base64 = st.fixed_dictionaries(
    {"filename": st.sampled_from(["fit.png", "fit.csv", "fit.bin", "fit"])},
    optional={"content_base64": any_text, "base64_data": any_text, "size": scalars},
)
event_items = st.one_of(
    st.fixed_dictionaries(
        {"type": st.sampled_from(["stdout", "stderr", "log", "result", "error", "exit", "start"])},
        optional={"text": any_text, "data": st.one_of(any_text, any_json), "code": scalars},
    ),
    st.fixed_dictionaries(
        {"msg_type": st.sampled_from(["stream", "display_data", "error", "execute_reply"])},
        optional={
            "content": _objects(
                ["text", "name", "data", "ename", "evalue", "traceback", "status", "prompt"],
                st.one_of(texts, any_json),
            )
        },
    ),
)
errors = st.one_of(
    any_text,
    _objects(["name", "value", "traceback", "message", "code", "details"], st.one_of(texts)),
    any_json,
)


def _answers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    value = st.one_of(inner, any_json, inner.map(_as_json_text))
    plain = st.fixed_dictionaries(
        {},
        optional={
            "stdout": texts,
            "stderr": texts,
            "exitCode": scalars,
            "timedOut": scalars,
            "success": scalars,
            "isError": st.booleans(),
            "output": st.one_of(value, texts),
            "text": texts,
            "result": value,
            "data": value,
            "status": any_text,
            "execution_count": scalars,
            "note": value,
            "structuredContent": value,
            "properties": value,
            "run": value,
            "rawResult": value,
            "outcome": any_text,
            "signal": scalars,
            "cmdId": any_text,
            "plot_url": any_text,
            "image_base64": any_text,
        },
    )
    lists = st.fixed_dictionaries(
        {},
        optional={
            "outputs": st.lists(st.one_of(output_items, any_json), max_size=4),
            "cells": st.lists(
                st.fixed_dictionaries({"outputs": st.lists(output_items, max_size=3)}), max_size=2
            ),
            "results": st.lists(st.one_of(typed_items, any_json), max_size=3),
            "logs": st.one_of(_objects(["stdout", "stderr"], texts), any_json),
            "content": st.lists(st.one_of(content_items, any_json), max_size=3),
            "images": st.one_of(st.lists(picture_items, max_size=3), any_json),
            "output_files": st.one_of(st.lists(files_in_base64, max_size=3), any_json),
            "events": st.one_of(st.lists(event_items, max_size=4), any_json),
            "error": errors,
            "errors": st.lists(errors, max_size=2),
            "traceback": st.one_of(texts, any_json),
            "message": any_text,
        },
    )
    both = st.tuples(plain, lists).map(lambda pair: pair[0] | pair[1])
    return st.one_of(plain, lists, both)


def _as_json_text(value: Any) -> Any:
    try:
        return json.dumps(value)
    except ValueError:  # integers beyond what Python prints
        return repr(type(value))


answers = st.recursive(any_json, _answers, max_leaves=8)
"""Values that look like tools' answers, sound and broken ones."""
