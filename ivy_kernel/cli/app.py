"""The ``jupyter-ivy`` program, and what its commands share: settings, ``--json``, exit codes.

The commands' modules are named as strings, so that only the one that runs is imported.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from jupyter_core.application import JupyterApp
from traitlets import Bool, TraitError
from traitlets.config import Application, Config
from traitlets.config.loader import ArgumentError

from ivy_kernel._version import __version__
from ivy_kernel.errors import IvyError, SettingError, UsageError
from ivy_kernel.models import visible
from ivy_kernel.settings.live import LiveSettings
from ivy_kernel.settings.settings import Ivy

EXIT_FAILED = 1
"""Exit code: something ran and failed."""
EXIT_USAGE = 2
"""Exit code: the command line or a setting is wrong; nothing ran."""
EXIT_SIGNAL = 128
"""Exit code after a signal, as shells give it, less the signal's number."""
EXIT_INTERRUPTED = EXIT_SIGNAL + signal.SIGINT
"""Exit code after Ctrl-C."""

DEBUG_FLAG = {
    "debug": (
        {"Application": {"log_level": "DEBUG"}},
        "Log much, on stderr.",
    )
}
JSON_FLAG = {
    **DEBUG_FLAG,
    "json": (
        {"IvyCommandApp": {"as_json": True}},
        "Print one JSON object, for scripts.",
    ),
}
YES_FLAG = {
    "yes": (
        {"IvyCommandApp": {"yes": True}},
        "Do not ask.",
    )
}


class _StrictApp(JupyterApp):
    """An application whose command line is taken at its word."""

    # JupyterApp declares it so, unlike traitlets' Application.
    def load_config_file(self, suppress_errors: bool = True) -> None:  # type: ignore[override]
        """Called by JupyterApp. Our own reader knows each value's source and hides keys."""

    def parse_command_line(self, argv: Any = None) -> None:
        """Called by JupyterApp; ends the process when a value cannot be used.

        traitlets would end it with 1, as if something had run.
        """
        try:
            inspect.unwrap(JupyterApp.parse_command_line)(self, argv)
        except (TraitError, ArgumentError) as error:
            print_line(f"{self.name}: {error}", error=True)
            self.exit(EXIT_USAGE)

    def check_options(self) -> None:
        """Check that each ``--Class.option`` is one.

        Raises
        ------
        UsageError
            When one is not: names it.
        """
        classes = {
            one.__name__: one.class_traits()
            for one in type(self).mro()
            if issubclass(one, Application)
        }
        for section, options in self.cli_config.items():
            if not isinstance(options, Config):
                raise UsageError(f"There is no option --{section}; see --help.")
            for name in options if section != Ivy.__name__ else ():  # its reader checks those
                if name not in classes.get(section, ()):
                    raise UsageError(f"There is no option --{section}.{name}; see --help-all.")


class IvyCommandApp(_StrictApp):
    """Base of the commands.

    Subclasses implement `run`, which returns the exit code. An `IvyError` becomes one line on
    stderr and exit code 1; a wrong setting 2.
    """

    version = __version__
    flags: dict[str, Any] = DEBUG_FLAG
    # Not JupyterApp's: a --config file would be passed over.
    aliases: dict[str, Any] = {"log-level": "Application.log_level"}  # noqa: RUF012 - as above
    classes = [Ivy]  # noqa: RUF012 - the way that traitlets applications are declared
    as_json = Bool(False, help="Print one JSON object, for scripts.").tag(config=True)
    yes = Bool(False, help="Do not ask.").tag(config=True)
    takes_arguments = False
    """Whether words beside options mean anything to the command."""

    def start(self) -> None:
        """Called by `launch_instance`; ends the process with the exit code."""
        super().start()
        try:
            self.check_options()
            if self.extra_args and not self.takes_arguments:
                raise UsageError(f"There is no {' '.join(self.extra_args)!r} here; see --help.")
            code = asyncio.run(self.run())
        except KeyboardInterrupt:
            code = EXIT_INTERRUPTED
        except BrokenPipeError:  # who reads the output has enough of it, as `head` has
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = EXIT_SIGNAL + signal.SIGPIPE
        except (SettingError, UsageError) as error:
            code = self.fail(error, EXIT_USAGE)
        except IvyError as error:
            code = self.fail(error, EXIT_FAILED)
        self.exit(code)

    async def run(self) -> int:
        """Do the work; the exit code."""
        raise NotImplementedError

    def live_settings(self, **arguments: Any) -> LiveSettings:
        """Return the settings, with this command's flags."""
        return LiveSettings(arguments=arguments, flags=self.cli_config)

    def fail(self, error: IvyError, code: int) -> int:
        """Print an error, and pass on the exit code."""
        if self.as_json:
            self.print_json({"error": {"kind": type(error).__name__, "message": str(error)}})
        else:
            print_line(f"{self.name}: {error}", error=True)
        return code

    def print_json(self, value: Any) -> None:
        """Print one JSON value."""
        print_line(json.dumps(value, indent=2))


def print_line(text: str, *, error: bool = False, raw: bool = False) -> None:
    """Print at once, to stdout or stderr.

    Parameters
    ----------
    text
        One or more lines.
    error
        Whether to stderr.
    raw
        Whether control characters are meant for the terminal, as in the outputs of a notebook.
    """
    text = text if raw else visible(text, keep="\n\t")
    print(text, file=sys.stderr if error else sys.stdout, flush=True)


@contextmanager
def interruptible() -> Iterator[None]:
    """Have Ctrl-C end a question; asyncio's own handler would wait for the answer first."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def read_answer(prompt: str) -> str:
    """Ask on stderr, for stdout may be read by a program; raises `EOFError` without an answer."""
    with interruptible():
        sys.stderr.write(visible(prompt))
        sys.stderr.flush()
        return input()


def confirmed(question: str, command: str) -> bool:
    """Ask the user of a terminal a yes/no question; no answer means no.

    Raises
    ------
    UsageError
        When there is nobody to answer.
    """
    if not sys.stdin.isatty():
        raise UsageError(f"{command} asks first, and nobody can answer here: add --yes.")
    try:
        return read_answer(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        sys.stderr.write("\n")
        return False


class ProgressLine:
    """Progress in a terminal: one line that is rewritten, on stderr.

    Elsewhere only what begins is told, each once: a log is no place for percentages.
    """

    def __init__(self) -> None:
        self._is_live = sys.stderr.isatty()
        self._told = ""

    def show(self, words: str, fraction: float | None) -> None:
        """Show how far something has come, and the part that is done."""
        if not self._is_live:
            if not fraction and words.partition(",")[0] != self._told.partition(",")[0]:
                print_line(words, error=True)
                self._told = words
            return
        bar = "" if fraction is None else f"{fraction:4.0%} "
        # A line as wide as the terminal would wrap, and "\r" would not lead back to its start.
        width = shutil.get_terminal_size().columns
        sys.stderr.write(f"\r\x1b[K{visible(bar + words)[: width - 1]}")
        sys.stderr.flush()
        self._told = words

    def clear(self) -> None:
        """Take the line away."""
        if self._told and self._is_live:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
        self._told = ""


def print_cell(cell: Any) -> None:
    """Print a cell's source, as a terminal session shows it."""
    width = min(shutil.get_terminal_size().columns, 100)
    print_line("─" * width)
    for line in cell.source.splitlines():
        print_line(f"  │ {line}")


def print_message(message: Any) -> None:
    """Print an output as text."""
    content = message["content"]
    if message["msg_type"] == "stream":
        # Raw: the escapes are the notebook's own colours, as in any terminal.
        print_line(content["text"].rstrip("\n"), raw=True)
    elif message["msg_type"] == "error":
        print_line("\n".join(content["traceback"]), raw=True)
    elif "data" in content:
        data = content["data"]
        for mimetype, value in data.items():
            if mimetype.startswith("image/"):
                print_line(f"[{mimetype}, {len(value) * 3 // 4:,} bytes: see the notebook]")
                return
        print_line(str(data.get("text/plain", f"[{', '.join(data)}: see the notebook]")))


COLOURS = re.compile(r"(\x1b\[[0-9;]*m)")
"""The only escapes that are passed on to the terminal."""


class OutputPrinter:
    """Prints cells and outputs, each once, from one state of a notebook to the next."""

    def __init__(self) -> None:
        self._shown: dict[int, list[int]] = {}

    def show(self, cells: list[Any], places: Sequence[int]) -> None:
        """Print what is new.

        Parameters
        ----------
        cells
            The notebook's cells, as they are now.
        places
            The positions of those that have begun, in the order in which they ran.
        """
        for at in places:
            if at >= len(cells):
                return
            if at not in self._shown:
                self._shown[at] = []
                print_cell(SimpleNamespace(source=_text(cells[at].get("source", ""))))
            outputs = cells[at].get("outputs")
            self._show_outputs(self._shown[at], outputs if isinstance(outputs, list) else [])

    def _show_outputs(self, shown: list[int], outputs: list[Any]) -> None:
        for index, output in enumerate(outputs):
            if not isinstance(output, dict):
                continue
            is_stream = output.get("output_type") == "stream"
            text = _text(output.get("text", "")) if is_stream else ""
            done = shown[index] if index < len(shown) else -1
            if done < 0:
                shown.append(len(text))
            elif len(text) > done:  # a stream that goes on
                text = text[done:]
                shown[index] = done + len(text)
            else:
                continue
            if is_stream:
                print_line(_coloured(text).rstrip("\n"), raw=True)
            elif output.get("output_type") == "error":
                lines = output.get("traceback") or [
                    f"{output.get('ename')}: {output.get('evalue')}"
                ]
                print_line(_coloured("\n".join(map(str, lines))), raw=True)
            elif isinstance(output.get("data"), dict):
                data = {str(kind): _text(value) for kind, value in output["data"].items()}
                data = {kind: _coloured(value) for kind, value in data.items()}
                print_message({"msg_type": "display_data", "content": {"data": data}})


def _text(value: Any) -> str:
    """Text that a notebook has as one string, or as lines."""
    if isinstance(value, list):
        return "".join(map(str, value))
    return value if isinstance(value, str) else str(value)


def _coloured(text: str) -> str:
    """Text whose escapes are colours alone: it comes from another machine, perhaps a year later."""
    parts = COLOURS.split(text)
    return "".join(
        part if index % 2 else visible(part, keep="\n\t\r") for index, part in enumerate(parts)
    )


def packaged_directory(name: str) -> Path:
    """Return a directory of files that come with the package: in it, or in the source tree.

    Raises
    ------
    UsageError
        When it is not there.
    """
    package = Path(__file__).resolve().parent.parent
    for directory in (package / name, package.parent / name):
        if directory.is_dir():
            return directory
    raise UsageError(f"The package's directory {name} is missing; install ivy-kernel again.")


# The program --------------------------------------------------------------------------------------
_COMMANDS = {
    "demo": ("ivy_kernel.cli.run.DemoApp", "Run the quickstart notebook in the local sandbox."),
    "run": ("ivy_kernel.cli.run.RunApp", "Run a notebook, every cell in the sandbox."),
    "runs": (
        "ivy_kernel.cli.runs.RunsApp",
        "List, follow, fetch, cancel and resume runs that go on in the sandbox.",
    ),
    "verify": (
        "ivy_kernel.cli.verify.VerifyApp",
        "Check an executed notebook: its receipt, and its outputs by running it again.",
    ),
    "login": ("ivy_kernel.cli.setup.LoginApp", "Save key, chat and campaign, after a check."),
    "logout": ("ivy_kernel.cli.setup.LogoutApp", "Remove the keys from the config file."),
    "install": (
        "ivy_kernel.cli.setup.InstallApp",
        "Make the kernel known to a Jupyter in another environment.",
    ),
    "serve": ("ivy_kernel.cli.sandbox.ServeApp", "Run the local sandbox in the foreground."),
    "status": ("ivy_kernel.cli.sandbox.StatusApp", "Show the sandbox's state."),
    "create": ("ivy_kernel.cli.sandbox.CreateApp", "Start the chat's sandbox and wait for it."),
    "terminate": ("ivy_kernel.cli.sandbox.TerminateApp", "Shut the sandbox down."),
    "files": ("ivy_kernel.cli.sandbox.FilesApp", "List the files registered for the chat."),
    "chats": ("ivy_kernel.cli.setup.ChatsApp", "List the chats that you have used."),
    "doctor": ("ivy_kernel.cli.doctor.DoctorApp", "Check settings, network, key and kernel."),
}


class IvyApp(_StrictApp):
    """Run Jupyter notebooks in the sandbox of an Ivy Biosciences chat."""

    name = "jupyter-ivy"
    version = __version__
    description = __doc__
    subcommands = _COMMANDS
    examples = """
    jupyter ivy demo                       # no account needed
    jupyter ivy run analysis.ipynb         # exit code 1 if a cell fails
    jupyter ivy doctor                     # what is set, what works, what to fix
    """

    def start(self) -> None:
        """Called by `launch_instance`."""
        super().start()
        if self.subapp is not None:  # super() has run the command
            return
        if self.extra_args:
            print_line(
                f"{self.name}: There is no command {self.extra_args[0]!r}; there are "
                f"{', '.join(_COMMANDS)}.",
                error=True,
            )
        else:
            self.print_help()
        self.exit(EXIT_USAGE)


def main() -> None:
    """Run the program; it ends with the exit code of its command."""
    try:
        IvyApp.launch_instance()
    except KeyboardInterrupt:  # while it was being imported
        print_line("jupyter-ivy: Interrupted; nothing was run.", error=True)
        sys.exit(EXIT_INTERRUPTED)
