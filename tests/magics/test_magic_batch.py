"""Run All, papermill, several notebooks, the terminal, and the example notebook."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import papermill
import pytest
from magic_driver import MagicKernel, magic_variables
from sandbox_server import RunningSandbox, until

from ivy_kernel.session import local_server

EXAMPLE = Path(__file__).parents[2] / "examples" / "ivy-magic.ipynb"


def notebook_of(*sources: str) -> Any:
    """A notebook with these code cells."""
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernelspec})


@pytest.fixture
def in_chat(server: RunningSandbox, monkeypatch: pytest.MonkeyPatch, new_chat: Any) -> None:
    """A chat of the test server for this process and its children."""
    for name, value in magic_variables(server, new_chat()).items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("in_chat")
def test_papermill_fails_with_the_remote_error(tmp_path: Path) -> None:
    """Papermill stops at the failing cell, and reports the name and value of the remote error."""
    source, target = tmp_path / "in.ipynb", tmp_path / "out.ipynb"
    nbformat.write(
        notebook_of("%load_ext ivy_kernel", "%%ivy\n{}['gene']", "print('never')"), source
    )
    with pytest.raises(papermill.PapermillExecutionError) as raised:
        papermill.execute_notebook(source, target, progress_bar=False)

    assert (raised.value.ename, raised.value.evalue) == ("KeyError", "'gene'")
    cells = [c for c in nbformat.read(target, 4).cells if c.cell_type == "code"]
    failed = next(c for c in cells if "gene" in c.source and "%%ivy" in c.source)
    assert [o.output_type for o in failed.outputs].count("error") == 1
    assert not cells[-1].outputs


@pytest.mark.usefixtures("in_chat")
def test_run_all_stops_at_a_usage_error() -> None:
    """What is only a wrong option ends a batch run, too."""
    notebook = notebook_of("%load_ext ivy_kernel", "%%ivy --nonsense\n1", "print('never')")
    with pytest.raises(nbclient.exceptions.CellExecutionError) as raised:
        nbclient.NotebookClient(notebook, timeout=60).execute()

    assert raised.value.ename == "UsageError"
    assert not notebook.cells[2].outputs


@pytest.mark.usefixtures("in_chat")
def test_a_saved_notebook_holds_nothing_of_the_start(server: RunningSandbox) -> None:
    """The progress that was shown while the sandbox started is not in the notebook."""
    server.control({"provision_seconds": {"compute": 0.4, "mount": 0.3}})
    try:
        notebook = notebook_of("%load_ext ivy_kernel", "%%ivy\nprint('mine')")
        nbclient.NotebookClient(notebook, timeout=60).execute()
    finally:
        server.control({"provision_seconds": {"compute": 0, "mount": 0}})

    assert [output.get("text") for output in notebook.cells[1].outputs] == ["mine\n"]


def test_two_notebooks_have_variables_of_their_own(
    start_kernel: Callable[..., MagicKernel], new_chat: Callable[[], str]
) -> None:
    """Two kernels on one chat share its sandbox and files, not their variables."""
    chat_id = new_chat()
    one, two = start_kernel(chat_id), start_kernel(chat_id)
    one.ivy("mine = 1\nopen('shared.txt', 'w').write('x')")

    assert two.ivy("'mine' in globals()").result == "False"
    assert two.ivy("open('shared.txt').read()").result == "'x'"
    assert one.ivy("mine").result == "1"


@pytest.mark.usefixtures("in_chat")
def test_it_works_in_a_terminal(tmp_path: Path) -> None:
    """In IPython without a front end: text outputs, an error, an answered question, an exit."""
    lines = [
        "%load_ext ivy_kernel",
        "get_ipython().run_cell_magic('ivy', '--out got', 'print(\"printed\")\\n40 + 2')",
        "got + 1",
        "get_ipython().run_cell_magic('ivy', '', '1/0')",
        "get_ipython().run_cell_magic('ivy', '', 'print(\"hello\", input(\"who? \"))')",
        "Ada",
        "%ivy terminate",
        "n",
        "exit()",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "IPython", "--simple-prompt", "--no-banner", "--colors=NoColor"],
        input="\n".join(lines) + "\n",
        env=dict(os.environ),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 0
    for words in ("printed", "42", "43", "ZeroDivisionError", "hello Ada", "Not terminated"):
        assert words in done.stdout, (words, done.stdout, done.stderr)
    assert "ivy_kernel/" not in done.stdout, "no frames of ours"


def test_a_kernel_leaves_nothing_running(
    start_kernel: Callable[..., MagicKernel], server: RunningSandbox
) -> None:
    """A kernel that ends takes its Python in the sandbox with it."""
    before = set(server.pids())
    kernel = start_kernel()
    kernel.ivy("1")
    assert set(server.pids()) - before
    kernel.stop()

    until(lambda: set(server.pids()) <= before, "the end of its last processes")


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The cells of the example by id, executed on a plain kernel with the embedded sandbox."""
    home = tmp_path_factory.mktemp("example")
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith(("IVY_", "RECOUP_", "JPY_")) and name != "IVY_SHARED":
                patch.delenv(name)
        for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
            (home / name).mkdir(mode=0o700)
            patch.setenv(name, str(home / name))
        patch.setenv("PYTHONPATH", str(EXAMPLE.parents[1]))
        notebook = nbformat.read(EXAMPLE, 4)
        resources = {"metadata": {"path": str(home)}}
        try:
            nbclient.NotebookClient(notebook, timeout=60, resources=resources).execute()
        finally:
            local_server.stop()
        yield {cell.id: cell for cell in notebook.cells if cell.cell_type == "code"}


def test_the_example_is_shipped_without_outputs() -> None:
    """It is valid, names the plain kernel, and has neither outputs nor counts."""
    notebook = nbformat.read(EXAMPLE, 4)
    nbformat.validate(notebook)
    code_cells = [cell for cell in notebook.cells if cell.cell_type == "code"]

    assert notebook.metadata.kernelspec.name == "python3"
    assert all(not cell.outputs and cell.execution_count is None for cell in code_cells)


def test_the_example_analyses_in_the_sandbox_and_goes_on_here(example: dict[str, Any]) -> None:
    """Its table, its value and what follows from them are those that a count by hand gives."""
    table, value = example["analyse"].outputs
    assert "<td>IV-02</td><td>58.3</td><td>12</td>" in table.data["text/html"]
    assert "<td>IV-04</td><td>47.2</td><td>None</td>" in table.data["text/html"]
    expected = {"IV-01": 50.0, "IV-02": 58.3, "IV-03": 36.1, "IV-04": 47.2}
    assert json.loads(value.data["text/plain"].replace("'", '"')) == expected
    assert example["here"].outputs[0].text == "IV-02 has the most G and C: 58.3 %\n"


def test_the_example_runs_a_shell_there(example: dict[str, Any]) -> None:
    """The shell sees the file that Python wrote, and its answer is a number here."""
    assert example["shell"].outputs[0].text == "4\n"
    assert example["agree"].outputs[0].text == "4 sequences on both sides\n"


def test_the_example_prints_as_it_goes(example: dict[str, Any]) -> None:
    """The slow cell has printed a line for each copy, and nothing else."""
    text = "".join(output.text for output in example["slow"].outputs)

    assert len(text.splitlines()) == 4
    assert "IV-04 ends at codon None of 12" in text
    assert all(o.name == "stdout" for o in example["slow"].outputs)
