"""A cell's outputs, put together from its messages as a notebook would have them."""

from __future__ import annotations

from typing import Any

from ivy_kernel.agent.outputs import CellOutputs, outputs_digest


def stream(text: str, name: str = "stdout") -> tuple[str, dict[str, Any]]:
    """Return a stream message."""
    return "stream", {"name": name, "text": text}


def display(text: str, display_id: str = "") -> tuple[str, dict[str, Any]]:
    """Return a display, with an id by which it can be updated."""
    content: dict[str, Any] = {"data": {"text/plain": text}, "metadata": {}}
    if display_id:
        content["transient"] = {"display_id": display_id}
    return "display_data", content


def outputs_of(*messages: tuple[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the outputs of a cell that has said this."""
    cell = CellOutputs()
    for msg_type, content in messages:
        cell.take(msg_type, content)
    return cell.outputs


def test_text_of_one_stream_is_one_output() -> None:
    """Until another stream or output comes between."""
    found = outputs_of(stream("a"), stream("b"), stream("!", "stderr"), stream("c"))
    assert [(each["name"], each["text"]) for each in found] == [
        ("stdout", "ab"),
        ("stderr", "!"),
        ("stdout", "c"),
    ]


def test_an_update_changes_the_display_that_it_names() -> None:
    """And nothing else."""
    update = ("update_display_data", display("new", "one")[1])
    found = outputs_of(display("old", "one"), display("other", "two"), update)
    assert [each["data"]["text/plain"] for each in found] == ["new", "other"]
    assert "transient" not in found[0]


def test_a_clear_that_waits_clears_with_the_next_output() -> None:
    """Until then the old output stays."""
    waits = ("clear_output", {"wait": True})
    assert outputs_of(stream("old"), waits) == outputs_of(stream("old"))
    assert outputs_of(stream("old"), waits, stream("new")) == outputs_of(stream("new"))
    assert outputs_of(stream("old"), ("clear_output", {"wait": False})) == []


def test_results_and_errors_are_kept_as_documents_have_them() -> None:
    """With the number of the cell, and without what only messages have."""
    cell = CellOutputs()
    result = {"data": {"text/plain": "2"}, "metadata": {}, "execution_count": 7}
    cell.take("execute_result", result)
    cell.take("error", {"ename": "E", "evalue": "v", "traceback": ["t"], "status": "error"})
    assert cell.execution_count == 7
    assert cell.outputs == [
        {"output_type": "execute_result", **result},
        {"output_type": "error", "ename": "E", "evalue": "v", "traceback": ["t"]},
    ]


def test_the_digest_is_of_what_is_shown() -> None:
    """Not of how it was cut, nor of the cell's number; every other difference counts."""
    whole = outputs_of(stream("a\nb\n"), display("x\ny"))
    cut = outputs_of(stream("a\n"), stream("b\n"), display("x\ny"))
    cut[0]["text"], cut[1]["data"]["text/plain"] = ["a\n", "b\n"], ["x\n", "y"]
    assert outputs_digest(whole) == outputs_digest(cut)
    assert outputs_digest(whole) != outputs_digest(outputs_of(stream("a\nb"), display("x\ny")))
    swapped = outputs_of(display("x\ny"), stream("a\nb\n"))
    assert outputs_digest(whole) != outputs_digest(swapped)
    result = {"data": {"text/plain": "2"}, "metadata": {}, "execution_count": 7}
    first = outputs_of(("execute_result", result))
    second = outputs_of(("execute_result", {**result, "execution_count": 8}))
    assert outputs_digest(first) == outputs_digest(second)
