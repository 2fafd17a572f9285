"""The parts of a tool's answer that the decoder has found, and makers of single outputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ivy_kernel.routes.decode.bundles import bundle_of, is_bundle
from ivy_kernel.routes.decode.tracebacks import Failure, plain
from ivy_kernel.routes.decode.values import is_empty, json_text, parse_json, put

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
    clears_next
        Whether the next output replaces what was shown before it.
    written
        The stream that is being written, its output, and its pieces; ``None`` while none is.
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
    clears_next: bool = False
    written: tuple[str, Output, list[str]] | None = None

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

    def write(self, name: str, text: str) -> None:
        """Add what was written to a stream, at this place; `join_written` ends it."""
        self.begin_output()
        if (
            self.written
            and self.written[0] == name
            and self.shown
            and self.shown[-1] is self.written[1]
        ):
            self.written[2].append(text)
        elif text:
            self.join_written()
            output = stream(name, "")
            self.shown.append(output)
            self.written = (name, output, [text])

    def join_written(self) -> None:
        """Put together what was written in pieces, of which there may be very many."""
        if self.written is not None:
            self.written[1]["text"] = "".join(self.written[2])
            self.written = None

    def clear(self, *, waits: bool) -> None:
        """Clear what is shown, at once or with the next output (message spec, "Clear output")."""
        self.clears_next = waits
        if not waits:
            self.shown, self.said = [], []
            self.displays.clear()

    def begin_output(self) -> None:
        """Called before an output of a list is added."""
        if self.clears_next:
            self.clear(waits=False)

    # Views: an answer may tell the same in two forms ---------------------------------------------
    def view(self) -> ResultParts:
        """Return empty parts for a part of the answer that may repeat what is here."""
        return ResultParts(has_succeeded=self.has_succeeded, displays=self.displays)

    def add_view(self, view: ResultParts, *, is_repeated: bool | None = None) -> None:
        """Add what another part of the answer holds, unless it is the same once more.

        Parameters
        ----------
        view
            What was found there.
        is_repeated
            Whether it is; ``None``: it is when both say exactly the same.
        """
        if is_repeated is None:
            both_say = self.has_content() and view.has_content()
            is_repeated = both_say and view.pieces() == self.pieces()
        if is_repeated:
            self.has_failed = self.has_failed or bool(view.failures)
        else:
            self._add_content(view)
        for path, value in view.others.items():
            self.add_other(path, value)
        if self.exit_code in (None, 0) and view.exit_code is not None:
            self.exit_code = view.exit_code
        self.has_failed = self.has_failed or view.has_failed
        self.has_succeeded = self.has_succeeded or view.has_succeeded
        self.timed_out = self.timed_out or view.timed_out
        self.reported += view.reported
        if view.execution_count is not None:
            self.execution_count = view.execution_count

    def _add_content(self, view: ResultParts) -> None:
        self.stdout += view.stdout
        self.stderr += view.stderr
        for output in view.shown:
            if any(output is words for words in view.said):
                self.say(output["text"])
            else:
                self.shown.append(output)
        self.pictures += view.pictures
        self.failures += view.failures
        self.notes += view.notes

    def pieces(self) -> Counter[str]:
        """Return what has been found, in pieces that are the same in every form of an answer."""
        found: Counter[str] = Counter()
        found.update(pieces_of_text("".join(self.stdout)))
        found.update(pieces_of_text("".join(self.stderr)))
        for output in (*self.shown, *self.pictures):
            found.update(_pieces_of_output(output))
        for failure in self.failures:
            found.update(_pieces_of_output(failure.output()))
        return found

    def repeats(self, text: str) -> bool:
        """Return whether a text is, as a whole, what one part of the answer holds already."""
        told = Counter(pieces_of_text(text)) if self.has_content() else None
        if not told:
            return False
        results = [o for o in self.shown if o["output_type"] == "execute_result"]
        wholes = [self.pieces(), Counter(pieces_of_text("".join(self.stdout)))]
        return told in wholes or any(told == Counter(_pieces_of_output(o)) for o in results)


def pieces_of_text(text: str) -> list[str]:
    """Return the lines of a text, or the values of the JSON that it is."""
    value = parse_json(text)
    if value is not None:
        return pieces_of_value(value)
    return [line for line in (plain(line).strip() for line in text.split("\n")) if line]


def pieces_of_value(value: Any) -> list[str]:
    """Return the values of a list, each on its own, or the one value in a form for comparing."""
    if value is None:
        return []
    if isinstance(value, str):
        return pieces_of_text(value)
    if isinstance(value, list):
        return [piece for item in value for piece in pieces_of_value(item)]
    return [json_text(value, sort_keys=True)]


def _pieces_of_output(output: Output) -> Iterable[str]:
    if output["output_type"] == "stream":
        return pieces_of_text(output["text"])
    if output["output_type"] == "error":
        return pieces_of_text("\n".join(output["traceback"]))
    data = dict(output["data"])
    if "application/json" in data:  # its text says the same
        data.pop("text/plain", None)
    return [piece for value in data.values() for piece in pieces_of_value(value)]


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
