"""The parts of a tool's answer that the decoder has found, and makers of single outputs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ivy_kernel.routes.decode.bundles import bundle_of, is_bundle
from ivy_kernel.routes.decode.tracebacks import Failure
from ivy_kernel.routes.decode.values import is_empty, json_text, put

Output = dict[str, Any]
"""One nbformat v4 output."""


@dataclass(slots=True)
class ResultParts:
    """The parts of a tool's answer that have been found so far, sorted by what they are.

    Parameters
    ----------
    stdout, stderr
        Texts of the two streams that the answer gives apart from any order.
    shown
        Outputs in the order in which the answer has them.
    said
        Those of ``shown`` that are plain words of the tool, which may repeat a stream or turn
        out to be the text of an error; the same objects.
    pictures
        Displays of pictures and files.
    failures
        Errors that the answer reports in fields of its own.
    notes
        Sentences of ours about the answer.
    others
        Fields that no family knows, by their path.
    displays
        The displays that updates may name, by their ids.
    exit_code
        The first exit code that is not zero, else zero, else ``None``.
    has_failed, has_succeeded, timed_out
        What flags and status words say; an answer may hold several that differ.
    reported
        Words by which the answer says that it failed, where they say more than that.
    execution_count
        The count that stands beside the outputs, not in one of them.
    """

    stdout: list[str] = field(default_factory=list)
    stderr: list[str] = field(default_factory=list)
    shown: list[Output] = field(default_factory=list)
    said: list[Output] = field(default_factory=list)
    pictures: list[Output] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    others: dict[str, Any] = field(default_factory=dict)
    displays: dict[str, Output] = field(default_factory=dict)
    exit_code: int | None = None
    has_failed: bool = False
    has_succeeded: bool = False
    timed_out: bool = False
    reported: list[str] = field(default_factory=list)
    execution_count: int | None = None

    def has_content(self) -> bool:
        """Return whether anything that a user would look at has been found."""
        return bool(
            self.stdout or self.stderr or self.shown or self.pictures or self.failures or self.notes
        )

    def say(self, text: str) -> None:
        """Add words of the tool, as text on stdout at this place."""
        if text:
            if self.shown and self.said and self.shown[-1] is self.said[-1]:
                # Two pieces of words in a row, which front ends would show on one line.
                last = self.shown[-1]
                last["text"] += "" if last["text"].endswith("\n") else "\n"
            output = stream("stdout", text)
            self.shown.append(output)
            self.said.append(output)

    def add_other(self, path: str, value: object) -> None:
        """Keep a field that no family knows."""
        put(self.others, path, value)


def stream(name: str, text: str) -> Output:
    """Return a stream output."""
    return {"output_type": "stream", "name": name, "text": text}


def display(data: dict[str, Any], metadata: dict[str, Any] | None = None) -> Output:
    """Return a display_data output."""
    return {
        "output_type": "display_data",
        "data": bundle_of(data),
        "metadata": metadata or {},
    }


def execute_result(
    data: dict[str, Any], metadata: dict[str, Any] | None = None, count: int | None = None
) -> Output:
    """Return an execute_result output; without a count it gets one when the decoding ends."""
    return {
        "output_type": "execute_result",
        "data": bundle_of(data),
        "metadata": metadata or {},
        "execution_count": count,
    }


def value_data(value: object) -> dict[str, Any]:
    """Return the MIME bundle that shows a JSON value: a bundle itself, a text, or JSON."""
    if isinstance(value, dict) and is_bundle(value):
        return value
    if isinstance(value, str):
        return {"text/plain": value}
    if isinstance(value, (dict, list)) and not is_empty(value):
        return {"application/json": value, "text/plain": json_text(value)}
    return {"text/plain": json_text(value)}
