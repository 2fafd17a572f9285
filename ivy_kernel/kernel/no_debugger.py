"""Answers of the debugger while there is none (message spec, "Debug request").

Front ends ask for its state when a notebook is opened, long before the sandbox's kernel is there.
"""

from __future__ import annotations

from ivy_kernel.models import Json

MISSING = (
    "The debugger is the one of the sandbox's Python, which is not there yet, or has none. "
    "Run a cell first; where that does not help, install debugpy in the sandbox."
)

_NOT_STARTED: Json = {
    "isStarted": False,
    "hashMethod": "Murmur2",
    "hashSeed": 0,
    "tmpFilePrefix": "",
    "tmpFileSuffix": ".py",
    "breakpoints": [],
    "stoppedThreads": [],
    "richRendering": True,
    "exceptionPaths": [],
    "copyToGlobals": True,
}


def answer_without_debugger(request: Json) -> Json:
    """The content of the reply: "not started" to who asks, a refusal to all else.

    Parameters
    ----------
    request
        The content of the request (Debug Adapter Protocol).
    """
    command = request.get("command", "")
    answer: Json = {
        "type": "response",
        "seq": request.get("seq", 0),
        "request_seq": request.get("seq", 0),
        "command": command,
    }
    if command == "debugInfo":
        return {**answer, "success": True, "body": dict(_NOT_STARTED)}
    return {**answer, "success": False, "message": MISSING, "body": {}}
