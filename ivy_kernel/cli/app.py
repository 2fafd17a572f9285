"""The ``jupyter-ivy`` program and its list of commands."""

from __future__ import annotations

from jupyter_core.application import JupyterApp

from ivy_kernel._version import __version__

_COMMANDS = {
    "demo": ("ivy_kernel.cli.run.DemoApp", "Run the quickstart notebook in the local sandbox."),
    "run": ("ivy_kernel.cli.run.RunApp", "Run a notebook, every cell in the sandbox."),
    "serve": ("ivy_kernel.cli.serve.ServeApp", "Run the local sandbox in the foreground."),
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
