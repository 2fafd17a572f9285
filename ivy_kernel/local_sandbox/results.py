"""What calls answer: the result of running code, in the tool's shape, and error responses.

The two usual shapes are here: ``process`` for scripts, ``nbformat`` for notebook cells. All
others, other spellings of the keys and nested results are in ``simulation.result_shapes``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]

ANSI_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Run:
    """The result of running some code, before it is put into a shape.

    Parameters
    ----------
    outputs
        Outputs as in nbformat 4, strings whole.
    exit_code
        The exit code of the process; 1 for a cell that raised.
    execution_count
        The number of the cell; ``None`` for a script.
    pictures
        Picture files that it made: ``mimeType``, ``data`` (base64) and ``path``.
    """

    outputs: list[Json]
    exit_code: int = 0
    execution_count: int | None = None
    pictures: list[Json] = field(default_factory=list)

    def stream(self, name: str) -> str:
        """All text of one stream."""
        return "".join(out["text"] for out in self.outputs if out.get("name") == name)

    @property
    def values(self) -> list[Json]:
        """The outputs that carry a MIME bundle."""
        kinds = ("display_data", "execute_result")
        return [out for out in self.outputs if out["output_type"] in kinds]

    @property
    def error(self) -> Json | None:
        """Name, value and traceback of the error that ended it; ``None`` when it succeeded."""
        for out in self.outputs:
            if out["output_type"] == "error":
                return {
                    "name": out["ename"],
                    "value": out["evalue"],
                    "traceback": list(out["traceback"]),
                }
        if self.exit_code == 0:
            return None
        # A script's traceback is text on stderr; its last line holds name and value.
        stderr = self.stream("stderr")
        last = stderr.rstrip().rpartition("\n")[2]
        name, _, value = last.partition(": ")
        if "Traceback (most recent call last)" in stderr and re.fullmatch(r"[\w.]+", name):
            return {"name": name, "value": value, "traceback": stderr.rstrip().split("\n")}
        return {"name": "ExitError", "value": f"exit code {self.exit_code}", "traceback": []}

    @property
    def output_text(self) -> str:
        """The text of stdout, and of values that would be shown after it."""
        parts = []
        for out in self.outputs:
            if out.get("name") == "stdout":
                parts.append(out["text"])
            elif "data" in out:
                parts.append(plain_text(out) + "\n")
        return "".join(parts)

    @property
    def error_text(self) -> str:
        """The text of stderr and of the traceback, without colours."""
        parts = [self.stream("stderr")]
        parts += [
            "\n".join(out["traceback"]) + "\n"
            for out in self.outputs
            if out["output_type"] == "error"
        ]
        return ANSI_COLOURS.sub("", "".join(parts))


def plain_text(output: Json) -> str:
    """An output as text; without a text form, the names of its MIME types."""
    data = output["data"]
    return str(data.get("text/plain", f"[{', '.join(data)}]"))


def process(run: Run) -> Json:
    """The shape ``process``."""
    return {
        "stdout": run.output_text,
        "stderr": run.error_text,
        "exit_code": run.exit_code,
        "timed_out": False,  # a run whose time was up has no result: it is answered with 504
    }


def nbformat_outputs(run: Run) -> list[Json]:
    """The outputs, with an error for a script that failed without one."""
    outputs = list(run.outputs)
    if run.exit_code and not any(out["output_type"] == "error" for out in outputs):
        error = run.error
        assert error is not None  # noqa: S101 - for the type checker: exit_code is not 0
        outputs.append(
            {
                "output_type": "error",
                "ename": error["name"],
                "evalue": error["value"],
                "traceback": error["traceback"],
            }
        )
    return outputs


def nbformat(run: Run) -> Json:
    """The shape ``nbformat``."""
    return {"outputs": nbformat_outputs(run), "execution_count": run.execution_count}


# Error responses ----------------------------------------------------------------------------------
class ApiError(Exception):
    """An HTTP error response: raised anywhere below a handler, which sends it as JSON.

    Parameters
    ----------
    status_code
        The HTTP status code, one that the route documents.
    error
        One sentence that says what is wrong and what to do.
    code
        The machine-readable code, for example ``SANDBOX_NOT_READY``.
    retry_after
        The value of a ``Retry-After`` header; empty for none.
    """

    def __init__(self, status_code: int, error: str, code: str, retry_after: str = "") -> None:
        super().__init__(error)
        self.status_code = status_code
        self.error = error
        self.code = code
        self.retry_after = retry_after
