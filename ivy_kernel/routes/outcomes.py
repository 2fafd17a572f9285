"""What a cell asks of the kernel, and how its end is put into the one truth."""

from __future__ import annotations

from ivy_kernel.models import Cell, Fate, Json, Message, Outcome, Sink
from ivy_kernel.routes.agent.pending import EndedError

UNANSWERED: dict[str, str] = {
    "lost": "SandboxLostError",
    "unknown": "OutcomeUnknownError",
    "interrupted": "KeyboardInterrupt",
}
"""The ``ename`` of a cell that ended without the kernel's reply."""


def told(sink: Sink, fate: Fate, words: str) -> Outcome:
    """The outcome of a cell that has no reply, shown and replied alike."""
    error = {"ename": UNANSWERED.get(fate, "SandboxError"), "evalue": words}
    shown: Json = {**error, "traceback": [f"{error['ename']}: {words}"]}
    sink(Message("error", shown))
    return Outcome(fate, {"status": "error", **shown})


def execute_content(cell: Cell) -> Json:
    """The content of an ``execute_request``; whether to stop on errors is decided on our side."""
    return {
        "code": cell.code,
        "silent": cell.silent,
        "store_history": cell.store_history,
        "user_expressions": cell.user_expressions,
        "allow_stdin": cell.allow_stdin,
        "stop_on_error": False,
    }


def fate_of(reply: Json, *, was_interrupted: bool) -> Fate:
    """What a reply says of its cell."""
    if reply.get("status") == "ok":
        return "succeeded"
    if was_interrupted and reply.get("ename") == "KeyboardInterrupt":
        return "interrupted"
    return "failed"


def fate_in_words(ended: EndedError) -> str:
    """The sentence for a cell that may have run."""
    if ended.fate == "lost":
        return f"{ended.cause} Whether this cell had run to its end is not known."
    return f"Whether this cell has run to its end is not known: {ended.cause}"
