"""Harmless snippets, one a language, that show whether a tool runs the code it is sent.

Each prints a word that does not stand in the snippet itself, so that a tool which only repeats its
input, in an error message for example, is not taken for one that ran it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ivy_kernel.routes.result_strings import strings_in


@dataclass(frozen=True, slots=True)
class Language:
    """What a tool runs, and how to find out whether it did.

    Parameters
    ----------
    fields
        Names under which such tools may take their code, the likeliest first.
    snippet_format
        Runs without a trace, and prints what ``answer_format`` matches.
    answer_format
        The printed word, as a regular expression.
    """

    fields: tuple[str, ...]
    snippet_format: str
    answer_format: str

    def snippet(self, nonce: str) -> str:
        """The code to send; ``nonce`` is a random word of this call."""
        return self.snippet_format.format(nonce=nonce)

    def find_answer(self, result: object, nonce: str) -> re.Match[str] | None:
        """What the snippet printed, if it ran; ``result`` is the tool's JSON."""
        pattern = re.compile(self.answer_format.format(nonce=nonce))
        for text in strings_in(result):
            if match := pattern.search(text):
                return match
        return None


PYTHON = Language(
    fields=("code", "source", "script", "input", "cells"),
    snippet_format="""\
import os as _ivy_os, sys as _ivy_sys
_ivy_start = ''
_ivy_file = None
try:
    with open('/proc/self/stat') as _ivy_file:
        _ivy_start = _ivy_file.read().rsplit(')', 1)[1].split()[19]
except Exception:
    pass
_ivy_id = _ivy_sys.__dict__.setdefault('_ivy_kernel_id', '{nonce}')
print('IVY-PROBE-{nonce}:%s:%s:%s:%s:' % (
    _ivy_id, _ivy_os.getpid(), _ivy_start, _ivy_sys.version.split()[0]))
del _ivy_os, _ivy_sys, _ivy_start, _ivy_id, _ivy_file
""",
    answer_format=(
        r"IVY-PROBE-{nonce}:(?P<identity>\w+):(?P<process_id>\d+):(?P<process_start>\d*)"
        r":(?P<python_version>[\w.+]+):"
    ),
)
"""It also tells which Python answers, and plants an identity in it."""

_SCRIPT_FIELDS = ("code", "command", "source", "script", "cmd", "input")

R = Language(_SCRIPT_FIELDS, "cat(paste0('IVY-', 'PROBE-{nonce}\\n'))", "IVY-PROBE-{nonce}")

SHELL = Language(_SCRIPT_FIELDS, "echo IVY-''PROBE-{nonce}", "IVY-PROBE-{nonce}")

LANGUAGES = {
    "sandbox_python": PYTHON,
    "sandbox_notebook": PYTHON,
    "sandbox_rscript": R,
    "sandbox_exec": SHELL,
}
"""Tool → what it runs. No other tool is probed: who knows what it would do with any code."""
