"""Writes down which modules of Ivy Kernel a kernel's main thread enters between two signals.

On ``PYTHONPATH``, this is imported by every interpreter; it acts in our kernel's process alone,
where ``TRACE_MODULES_TO`` names a file. SIGUSR1 begins; SIGUSR2 ends, and writes the modules down
in the order in which they were entered, as JSON.
"""

import json
import os
import signal
import sys
from pathlib import Path

PACKAGE = f"{os.sep}ivy_kernel{os.sep}"
target = os.environ.get("TRACE_MODULES_TO")
entered = {}
is_tracing = False


def note(frame, event, _):
    """Called by Python for each call of a function."""
    if is_tracing and event == "call":
        _, found, module = frame.f_code.co_filename.rpartition(PACKAGE)
        if found:
            entered.setdefault(module.replace(os.sep, "/"), frame.f_code.co_name)


def begin(*_):
    """Start to note modules."""
    global is_tracing
    is_tracing = True


def end(*_):
    """Write the modules down, whole or not at all."""
    global is_tracing
    is_tracing = False
    partial = Path(f"{target}.part")
    partial.write_text(json.dumps(list(entered)))
    partial.replace(target)


if target and any("ivy_kernel.kernel" in argument for argument in sys.orig_argv):
    signal.signal(signal.SIGUSR1, begin)
    signal.signal(signal.SIGUSR2, end)
    sys.setprofile(note)
