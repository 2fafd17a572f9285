"""Options of magics: an argparse that raises our errors, and the options of ``%%ivy``."""

from __future__ import annotations

import argparse
import json
import keyword
import math
import re
import shlex
from dataclasses import dataclass
from typing import Any, NoReturn

from ivy_kernel.errors import UsageError
from ivy_kernel.routes.tools import TOOLS


class HelpAskedError(Exception):
    """Raised for ``--help``; its argument is the text to show."""


class _HelpAction(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        raise HelpAskedError(parser.format_help())


class OptionParser(argparse.ArgumentParser):
    """Parses the words after a magic's name; never ends the process, as argparse does.

    Parameters
    ----------
    name
        The magic as it is typed, for example ``%ivy attach``.
    description
        First text of its help.
    epilog
        Last text of its help.
    """

    def __init__(self, name: str, description: str, epilog: str = "") -> None:
        super().__init__(
            prog=name,
            description=description,
            epilog=epilog or None,
            add_help=False,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self.add_argument(
            "-h", "--help", nargs=0, action=_HelpAction, help="show this text and do nothing"
        )

    def error(self, message: str) -> NoReturn:
        """Called by argparse for arguments that it rejects."""
        raise UsageError(f"{self.prog}: {message}. See {self.prog} --help.")

    def parse_line(self, words: list[str]) -> argparse.Namespace:
        """Return the options.

        Raises
        ------
        UsageError
            For an argument that is unknown, missing or of the wrong type: names it.
        HelpAskedError
            For ``--help``.
        """
        return self.parse_args(words)


def split_line(name: str, line: str) -> list[str]:
    """Return the words of a magic's line, split as a shell does.

    Raises
    ------
    UsageError
        For a quotation mark that is not closed.
    """
    try:
        return shlex.split(line)
    except ValueError as exc:
        raise UsageError(f"{name} {line}: {exc}.") from None


# %%ivy ------------------------------------------------------------------------------------------
SCRIPT_LANGUAGES = {tool.lang: tool.name for tool in TOOLS.values() if tool.lang}
LANGUAGES = {"python": "", **SCRIPT_LANGUAGES}
"""Language → the tool that runs it; Python goes where all cells go, and keeps its variables."""

OUT_HELP = """\
--out NAME puts what the cell gives into the variable NAME of this notebook, when it succeeds:
  the value of its last line, if that is plain data (numbers, text, lists, dictionaries, …);
  else the text that stands for that value;
  without any value, what it printed, decoded if that is JSON, else as text.
"""


@dataclass(frozen=True, slots=True)
class CellOptions:
    """The options after ``%%ivy``.

    Parameters
    ----------
    timeout_seconds
        Time limit after which the cell is stopped; ``None`` for no limit of ours.
    chat_id
        The chat whose sandbox runs it; ``None`` for the one that is attached.
    language
        One of `LANGUAGES`.
    out
        The variable that keeps the cell's result; empty for none.
    tool
        The tool that gets the cell as its JSON parameters; empty for none.
    """

    timeout_seconds: float | None = None
    chat_id: str | None = None
    language: str = "python"
    out: str = ""
    tool: str = ""


def cell_parser() -> OptionParser:
    """Make the parser of a ``%%ivy`` line."""
    parser = OptionParser(
        "%%ivy", "Run this cell in the sandbox. Python keeps its variables there.", OUT_HELP
    )
    parser.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=_seconds,
        help="stop the cell after so long; the start of a sandbox does not count",
    )
    parser.add_argument(
        "--chat",
        metavar="CHAT",
        type=_filled,
        help="run it in the sandbox of another chat: id or name",
    )
    parser.add_argument(
        "--lang",
        choices=list(LANGUAGES),
        help=_languages_in_words(),
    )
    parser.add_argument("--out", metavar="NAME", type=_variable, help="keep the result; see below")
    parser.add_argument(
        "--tool",
        metavar="NAME",
        type=_tool,
        help="run a tool of the platform; the cell is a JSON object with its parameters",
    )
    return parser


def _languages_in_words() -> str:
    *others, last = SCRIPT_LANGUAGES
    count = ("two", "three", "four", "five")[len(others) - 1]
    words = ", ".join(["python (the default)", *others])
    return f"{words} or {last}; the last {count} are scripts, without variables"


def parse_cell_options(line: str) -> CellOptions:
    """Parse the options of one ``%%ivy`` line.

    Raises
    ------
    UsageError
        For an unknown option, or a value that it does not take.
    HelpAskedError
        For ``--help``.
    """
    words = split_line("%%ivy", line)
    options = cell_parser().parse_line(words)
    if options.tool and options.lang:
        raise UsageError(
            "%%ivy: --tool and --lang exclude each other; --lang chooses a tool by itself."
        )
    return CellOptions(
        timeout_seconds=options.timeout,
        chat_id=options.chat,
        language=options.lang or "python",
        out=options.out or "",
        tool=options.tool or "",
    )


def tool_parameters(tool: str, code: str) -> dict[str, Any]:
    """Parse the parameters in a ``--tool`` cell.

    Raises
    ------
    UsageError
        When it is not a JSON object: says where the error is.
    """
    if not code.strip():
        return {}
    try:
        value = json.loads(code)
    except ValueError as exc:
        raise UsageError(
            f"The cell below --tool {tool} must be a JSON object with the tool's parameters: "
            f"{exc}. Nothing was run."
        ) from None
    if not isinstance(value, dict):
        raise UsageError(
            f"The cell below --tool {tool} must be a JSON object with the tool's parameters, but "
            f"it is a JSON {_kind(value)}. Nothing was run."
        )
    return value


def _kind(value: object) -> str:
    kinds = {list: "array", str: "string", bool: "truth value", type(None): "null"}
    return kinds.get(type(value), "number")


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number of seconds above 0")
    return value


def _filled(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("it must be the id of a chat")
    return text.strip()


def _variable(text: str) -> str:
    if not text.isidentifier() or keyword.iskeyword(text):
        raise argparse.ArgumentTypeError(f"{text!r} cannot be the name of a variable")
    return text


def _tool(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", text) or not text.strip("."):
        raise argparse.ArgumentTypeError(f"{text!r} cannot be the name of a tool")
    return text
