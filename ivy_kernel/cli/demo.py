"""``jupyter ivy demo``: the quickstart notebook, in the local sandbox."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from traitlets import Unicode

from ivy_kernel.cli.base import IvyCommandApp, print_line
from ivy_kernel.cli.run import check_target, read_notebook, report, write_notebook
from ivy_kernel.errors import UsageError

DEMO_SETTINGS = ["--Ivy.api_url=local", "--Ivy.chat_id=demo", "--Ivy.campaign_id=demo"]
DEMO_ALIASES = {"output": "DemoApp.output"}


class DemoApp(IvyCommandApp):
    """Run the quickstart notebook, every cell through the embedded local sandbox.

    Needs no account and no network. Prints each cell and its output, and writes the executed
    notebook.
    """

    name = "jupyter-ivy-demo"
    description = __doc__
    aliases = DEMO_ALIASES
    output = Unicode("ivy-quickstart.ipynb", help="Where to write the executed notebook.").tag(
        config=True
    )

    async def run(self) -> int:
        """Run it."""
        from ivy_kernel.cli.execution import execute_notebook  # takes seconds on some machines

        source = examples_directory() / "quickstart.ipynb"
        notebook = read_notebook(source)
        target = Path(self.output)
        check_target(target)
        print_line("Running the quickstart notebook in the embedded local sandbox …")
        failed = await execute_notebook(
            notebook,
            directory=Path.cwd(),
            kernel_arguments=DEMO_SETTINGS,
            before_cell=lambda index: print_cell(notebook.cells[index]),
            on_output=lambda _index, message: print_message(message),
        )
        write_notebook(notebook, target)
        code = report(failed, target)
        if not code:
            print_line(f"Open it with:  jupyter lab {target}")
        return code


def examples_directory() -> Path:
    """Where the example notebooks are: in the installed package, or in the source tree."""
    package = Path(__file__).resolve().parent.parent
    for directory in (package / "examples", package.parent / "examples"):
        if (directory / "quickstart.ipynb").is_file():
            return directory
    raise UsageError("The example notebooks are not there; install the package again.")


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
