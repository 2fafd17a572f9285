"""Options of magics: argparse that raises our errors instead of ending the process."""

from __future__ import annotations

import argparse
import shlex
from typing import Any, NoReturn

from ivy_kernel.errors import UsageError


class HelpAskedError(Exception):
    """``--help`` was given; the argument is the text to show."""


class _HelpAction(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        raise HelpAskedError(parser.format_help())


class OptionParser(argparse.ArgumentParser):
    """Parses the words after a magic's name.

    Parameters
    ----------
    name
        How the magic is called, for example ``%ivy attach``.
    description
        What it does.
    epilog
        What its help ends with.
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
        """Called by argparse for whatever it cannot take."""
        raise UsageError(f"{self.prog}: {message}. See {self.prog} --help.")

    def parse_line(self, words: list[str]) -> argparse.Namespace:
        """The options.

        Raises
        ------
        UsageError
            For what is unknown, missing or of the wrong type: names it.
        HelpAskedError
            For ``--help``.
        """
        return self.parse_args(words)


def split_line(name: str, line: str) -> list[str]:
    """The words of a magic's line, as a shell takes them apart.

    Raises
    ------
    UsageError
        For a quotation mark that is not closed.
    """
    try:
        return shlex.split(line)
    except ValueError as exc:
        raise UsageError(f"{name} {line}: {exc}.") from None
