"""The ``jupyter-ivy`` program, and what its commands share: settings, ``--json``, exit codes.

The commands' modules are named as strings, so that only the one that runs is imported.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from jupyter_core.application import JupyterApp
from traitlets import Bool

from ivy_kernel._version import __version__
from ivy_kernel.errors import IvyError, SettingError, UsageError
from ivy_kernel.settings.live import LiveSettings
from ivy_kernel.settings.settings import Ivy

KERNEL_NAME = "ivy-sandbox"
"""The kernelspec of our kernel."""

EXIT_FAILED = 1
"""Exit code: something ran and failed."""
EXIT_USAGE = 2
"""Exit code: the command line or a setting is wrong; nothing ran."""
EXIT_INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells give it: 128 + SIGINT."""

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


class IvyCommandApp(JupyterApp):
    """Base of the commands.

    Subclasses implement `run`, which returns the exit code. An `IvyError` becomes one line on
    stderr and exit code 1; a wrong setting 2.
    """

    version = __version__
    flags: dict[str, Any] = DEBUG_FLAG
    classes = [Ivy]  # noqa: RUF012 - the way that traitlets applications are declared
    as_json = Bool(False, help="Print one JSON object, for scripts.").tag(config=True)
    yes = Bool(False, help="Do not ask.").tag(config=True)
    takes_arguments = False
    """Whether words beside options mean anything to the command."""

    # JupyterApp declares it so, unlike traitlets' Application.
    def load_config_file(self, suppress_errors: bool = True) -> None:  # type: ignore[override]
        """Called by JupyterApp. Our own reader knows each value's source and hides keys."""

    def start(self) -> None:
        """Called by `launch_instance`; ends the process with the exit code."""
        super().start()
        try:
            if self.extra_args and not self.takes_arguments:
                raise UsageError(f"There is no {' '.join(self.extra_args)!r} here; see --help.")
            code = asyncio.run(self.run())
        except KeyboardInterrupt:
            code = EXIT_INTERRUPTED
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


def plain(text: object, keep: str = "") -> str:
    """Return text from outside as a terminal may show it: control characters made visible."""
    return "".join(
        character if character.isprintable() or character in keep else f"\\x{ord(character):02x}"
        for character in str(text)
    )


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
    text = text if raw else plain(text, keep="\n\t")
    print(text, file=sys.stderr if error else sys.stdout, flush=True)


_COMMANDS = {
    "demo": ("ivy_kernel.cli.run.DemoApp", "Run the quickstart notebook in the local sandbox."),
    "run": ("ivy_kernel.cli.run.RunApp", "Run a notebook, every cell in the sandbox."),
    "serve": ("ivy_kernel.cli.sandbox.ServeApp", "Run the local sandbox in the foreground."),
    "status": ("ivy_kernel.cli.sandbox.StatusApp", "Show the sandbox's state."),
    "create": ("ivy_kernel.cli.sandbox.CreateApp", "Start the chat's sandbox and wait for it."),
    "terminate": ("ivy_kernel.cli.sandbox.TerminateApp", "Shut the sandbox down."),
    "files": ("ivy_kernel.cli.sandbox.FilesApp", "List the files registered for the chat."),
    "doctor": ("ivy_kernel.cli.doctor.DoctorApp", "Check settings, network, key and kernel."),
}


class IvyApp(JupyterApp):
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

    # JupyterApp declares it so, unlike traitlets' Application.
    def load_config_file(self, suppress_errors: bool = True) -> None:  # type: ignore[override]
        """Called by JupyterApp; the commands read our config files themselves."""

    def start(self) -> None:
        """Called by `launch_instance`."""
        super().start()
        if self.subapp is None:  # super() has run the command otherwise
            self.print_help()
            self.exit(2)


main = IvyApp.launch_instance
