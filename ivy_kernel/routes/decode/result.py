"""A tool's answer as notebook outputs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from ivy_kernel.routes.decode.parts import Output, ResultParts, display, stream
from ivy_kernel.routes.decode.shapes import add_answer
from ivy_kernel.routes.decode.tracebacks import (
    EXIT_ERROR,
    TOOL_ERROR,
    Failure,
    exit_text,
    failure_of_text,
    is_timeout,
    missing_lines,
    plain,
    split_traceback,
    tells_timeout,
)
from ivy_kernel.routes.decode.values import clean_value, is_empty, json_text

UNKNOWN_HINT = (
    "The tool's answer has a shape that Ivy Kernel does not know, so it is shown in full as JSON."
)

_ERROR_LINE = re.compile(r"(\S+: )?(fatal )?error\b", re.IGNORECASE)
_TIMEOUT_TEXT = "the tool's time budget ran out before the code had finished"
# No code, that of `timeout`, and those of SIGKILL and SIGTERM, by which a runner ends what runs on.
_EXITS_OF_TIMEOUTS = (None, 0, 124, 137, 143, -9, -15)
_ERROR_LINES_LIMIT = 20  # longer words of a failed tool stay a stream, their last line is the error


@dataclass(frozen=True, slots=True)
class DecodedResult:
    """A tool's answer, decoded.

    Parameters
    ----------
    outputs
        nbformat v4 outputs, in the order in which they are to be shown.
    error
        ``ename``, ``evalue`` and ``traceback`` when the cell failed: the last error output.
    """

    outputs: list[Output]
    error: dict[str, Any] | None = None


def decode_result(result: object, *, execution_count: int | None = None) -> DecodedResult:
    """Decode a tool's answer of any shape into notebook outputs.

    Pure and total: no JSON value makes it raise, and the same value gives the same outputs.
    No text is lost: each string of the answer that is not blank is in the outputs, as it is, as a
    part of JSON text, or as what it encodes (base64 without its prefix, SVG and texts decoded,
    JSON in a string taken apart). Left out are type tags, stream names and status words, headers
    of messages, cells' metadata, short book-keeping (``values.NOISE_KEYS``) and echoes of the code
    (``values.ECHO_KEYS``), displays that a later update replaces, and what is there twice.

    Parameters
    ----------
    result
        The answer, as decoded JSON.
    execution_count
        The number for results to which the answer itself gives none.
    """
    value = clean_value(result)
    parts = ResultParts()
    # Where nothing but unknown fields was found, the whole answer tells more than its rest.
    is_known = add_answer(value, parts)
    if not is_known or (not parts.has_content() and parts.others):
        parts = _unknown(value, parts)
    outputs = _compose(parts)
    for output in outputs:
        if output["output_type"] == "execute_result" and output["execution_count"] is None:
            count = parts.execution_count
            output["execution_count"] = execution_count if count is None else count
    error = next((item for item in reversed(outputs) if item["output_type"] == "error"), None)
    return DecodedResult(
        outputs=outputs,
        error=error and {name: error[name] for name in ("ename", "evalue", "traceback")},
    )


def _unknown(value: Any, found: ResultParts) -> ResultParts:
    """Return the parts that show a value of unknown shape in full; the flags found are kept."""
    parts = ResultParts(
        exit_code=found.exit_code,
        has_failed=found.has_failed,
        has_succeeded=found.has_succeeded,
        timed_out=found.timed_out,
        execution_count=found.execution_count,
    )
    if is_empty(value):
        return parts
    parts.notes.append(UNKNOWN_HINT)
    parts.pictures.append(display({"text/plain": json_text(value, indent=2)}))
    return parts


def _compose(parts: ResultParts) -> list[Output]:
    """Return the outputs in a notebook's order: streams, results, pictures, others, errors."""
    stdout, stderr = "".join(parts.stdout), "".join(parts.stderr)
    stdout = _without_repetition(stdout, "stdout", parts)
    stderr = _without_repetition(stderr, "stderr", parts)
    _drop_repeated_words(parts, stdout, stderr)
    stdout, stderr, failures = _settle_failures(parts, stdout, stderr)
    outputs = [stream(name, text) for name, text in _streams(stdout, stderr, parts) if text]
    outputs += parts.shown
    outputs += _new_pictures(parts)
    if parts.others:
        text = f"Other fields of the tool's answer: {json_text(parts.others)}"
        outputs.append(display({"text/plain": text}))
    return outputs + [failure.output() for failure in failures]


def _new_pictures(parts: ResultParts) -> list[Output]:
    """Return the pictures that are not among the outputs; of one that is, its name stays."""
    shown = {
        (mime_type, value): output
        for output in parts.shown
        for mime_type, value in output.get("data", {}).items()
        if isinstance(value, str) and mime_type.startswith(("image/", "application/pdf"))
    }
    new: list[Output] = []
    for picture in parts.pictures:
        data = dict(picture["data"])
        name = data.pop("text/plain", "")
        texts = [item for item in data.items() if isinstance(item[1], str)]
        if not texts or len(texts) < len(data) or not all(item in shown for item in texts):
            new.append(picture)
        elif name and shown[texts[0]]["data"].setdefault("text/plain", name) != name:
            new.append(display({"text/plain": name}))
    return new


def _streams(stdout: str, stderr: str, parts: ResultParts) -> list[tuple[str, str]]:
    notes = "".join(f"{note}\n" for note in dict.fromkeys(parts.notes))
    if notes and stderr and not stderr.endswith("\n"):
        notes = f"\n{notes}"
    return [("stdout", stdout), ("stderr", stderr + notes)]


def _without_repetition(text: str, name: str, parts: ResultParts) -> str:
    """Return a stream's text, or nothing when the outputs hold the same text already."""
    shown = "".join(
        output["text"]
        for output in parts.shown
        if output["output_type"] == "stream"
        and output["name"] == name
        and not any(output is words for words in parts.said)
    )
    return "" if shown and shown.strip() == text.strip() else text


def _drop_repeated_words(parts: ResultParts, stdout: str, stderr: str) -> None:
    """Drop words of the tool that only repeat the streams."""
    out, err = _filled_lines(stdout), _filled_lines(stderr)
    if len(parts.said) == 1 and _filled_lines(parts.said[0]["text"]) in (
        lines for lines in (out, err, out + err, err + out) if lines
    ):
        _drop(parts, parts.said.pop())


def _filled_lines(text: str) -> list[str]:
    """Return the lines of a text that are not blank, without white space at their ends."""
    return [line.rstrip() for line in text.split("\n") if line.strip()]


def _drop(parts: ResultParts, words: Output) -> None:
    parts.shown = [output for output in parts.shown if output is not words]


def _settle_failures(
    parts: ResultParts, stdout: str, stderr: str
) -> tuple[str, str, list[Failure]]:
    """Decide whether the cell failed and with which errors, each shown once.

    Returns
    -------
    tuple[str, str, list[Failure]]
        What is left of stdout and of stderr, and the errors to add.
    """
    shown_errors = [output for output in parts.shown if output["output_type"] == "error"]
    shown_text = "\n".join(
        plain("\n".join((error["ename"], error["evalue"], *error["traceback"])))
        for error in shown_errors
    )
    # A report of an error that an output shows already is dropped, unless it says more.
    failures = [
        failure
        for failure in parts.failures
        if not shown_errors or failure == Failure() or missing_lines(shown_text, _lines(failure))
    ]
    failures = _without_repeated(failures)
    has_failed = (
        parts.has_failed
        or parts.timed_out
        or parts.exit_code not in (None, 0)
        or bool(shown_errors or failures)
    )
    texts = _Texts(parts, stdout, stderr)
    # A program may print a traceback and go on. Only where the answer says nothing of how it went
    # is one at the end of stderr taken for the cell's end.
    is_silent = not parts.has_succeeded and parts.exit_code is None
    if not has_failed and not (is_silent and split_traceback(stderr)):
        return stdout, stderr, []
    # A traceback at the end of a text is mostly the error that is reported elsewhere in short: the
    # two become one. It is cut from its text only where it is certain to be shown.
    found = texts.find_traceback()
    if found is not None:
        if shown_errors:
            is_told = not missing_lines(shown_text, _lines(found))
        elif failures and failures[-1].traceback:
            is_told = not missing_lines(failures[-1].text(), _lines(found))
        else:
            is_told = True
            failures = [*failures[:-1], _completed(found, failures[-1:])]
        if is_told:
            texts.cut_traceback()
    # The cell has failed, so it must end in an error, whatever there is to make one from.
    if not failures and not shown_errors:
        failures = [_failure_of_words(parts, texts.stderr)]
    # What is left of stderr may be no more than the error's own message.
    if failures and _filled_lines(plain(texts.stderr)) in (
        [],
        _filled_lines(failures[-1].value),
        _filled_lines(plain("\n".join(failures[-1].output()["traceback"]))),
    ):
        texts.stderr = ""
    if parts.timed_out or (failures and is_timeout(failures[-1])):
        failures = [*failures[:-1], _timeout(failures[-1] if failures else Failure())]
    return texts.stdout, texts.stderr, failures


def _without_repeated(failures: list[Failure]) -> list[Failure]:
    """Return the errors but for those that another one tells as well."""
    kept: list[Failure] = []
    for failure in failures:
        if any(not missing_lines(other.text(), _lines(failure)) for other in kept):
            continue
        kept = [one for one in kept if missing_lines(failure.text(), _lines(one))]
        kept.append(failure)
    return kept


class _Texts:
    """The texts of a failed cell, one of which may end in the traceback of its error."""

    def __init__(self, parts: ResultParts, stdout: str, stderr: str) -> None:
        self._parts = parts
        self.stdout = stdout
        self.stderr = stderr
        self._place = ""
        self._before = ""

    def find_traceback(self) -> Failure | None:
        """Return the traceback at the end of stderr, of the tool's last words, or of stdout."""
        words = self._parts.said[-1]["text"] if self._parts.said else ""
        for place, text in (("stderr", self.stderr), ("words", words), ("stdout", self.stdout)):
            split = split_traceback(text)
            if split is not None:
                self._place = place
                self._before, found = split
                return found
        return None

    def cut_traceback(self) -> None:
        """Take the traceback that was found out of its text, since it is shown elsewhere."""
        if self._place == "stderr":
            self.stderr = self._before
        elif self._place == "stdout":
            self.stdout = self._before
        elif self._before:
            self._parts.said[-1]["text"] = self._before
        else:
            _drop(self._parts, self._parts.said.pop())


def _lines(failure: Failure) -> list[str]:
    return [failure.name, failure.value, *failure.traceback]


def _completed(found: Failure, reported: list[Failure]) -> Failure:
    """Return the error of a traceback on stderr, with what the answer itself says of it."""
    lines = [line for failure in reported for line in _lines(failure)]
    missing = missing_lines(found.text(), lines)
    if not missing:
        return found
    return Failure(found.name, found.value, (*found.traceback, "", *missing))


def _failure_of_words(parts: ResultParts, stderr: str) -> Failure:
    """Return the error of a cell whose answer reports none, perhaps in the tool's words."""
    words = "\n".join(output["text"].rstrip("\n") for output in parts.said)
    is_message = bool(words.strip()) and parts.exit_code in (None, 0) and not parts.timed_out
    if not is_message or words.count("\n") >= _ERROR_LINES_LIMIT:
        return _default_failure(parts, stderr if stderr.strip() else words)
    for output in parts.said:
        _drop(parts, output)
    return failure_of_text(words)


def _default_failure(parts: ResultParts, text: str) -> Failure:
    """Return the error of a cell of which only the texts and the exit code are known."""
    if parts.timed_out:
        return Failure()
    lines = plain(text).strip().split("\n")
    reason = next(filter(_ERROR_LINE.match, reversed(lines)), lines[-1]).strip()
    if parts.exit_code in _EXITS_OF_TIMEOUTS and tells_timeout(reason):
        return Failure("", reason)
    if parts.exit_code in (None, 0):
        words = f"the tool reported a failure ({', '.join(parts.reported)})"
        without = "the tool reported a failure without a reason"
        return failure_of_text(reason or (words if parts.reported else without))
    ended = exit_text(parts.exit_code or 0)
    return Failure(EXIT_ERROR, f"the process ended with {ended}" + (reason and f" ({reason})"))


def _timeout(failure: Failure) -> Failure:
    """Return an error as the timeout that caused it."""
    value = failure.value or _TIMEOUT_TEXT
    if failure.name in ("", "TimeoutError", "Error", TOOL_ERROR) and not failure.traceback:
        return Failure("TimeoutError", value)
    lines = failure.output()["traceback"]
    return Failure("TimeoutError", value, (*lines, f"TimeoutError: {value}"))
