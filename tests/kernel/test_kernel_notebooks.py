"""Batch runs: nbclient and papermill execute notebooks with the kernel, and failures fail them."""

from __future__ import annotations

import asyncio
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import nbclient
import nbformat
import pytest
from kernel_driver import kernel_variables
from sandbox_server import RunningSandbox

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def set_variables(
    server: RunningSandbox, monkeypatch: pytest.MonkeyPatch, new_chat: Callable[[], str]
) -> Callable[..., str]:
    """Sets this process's environment, which the tools pass on to the kernel; gives the chat."""

    def set_them(**more: str) -> str:
        chat = new_chat()
        for name, value in kernel_variables(server, chat, **more).items():
            monkeypatch.setenv(name, value)
        return chat

    return set_them


@pytest.fixture(autouse=True)
def _event_loop() -> Iterator[None]:
    """Nbclient's blocking call wants a loop that it may use, and closes none itself."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    loop.close()
    asyncio.set_event_loop(None)


def notebook_of(*sources: str) -> nbformat.NotebookNode:
    """A notebook with these code cells, for our kernel."""
    notebook = nbformat.v4.new_notebook()
    notebook.metadata["kernelspec"] = {
        "name": "ivy-sandbox",
        "display_name": "Ivy Sandbox",
        "language": "python",
    }
    notebook.cells = [nbformat.v4.new_code_cell(source) for source in sources]
    return notebook


def texts(cell: nbformat.NotebookNode) -> str:
    """All text of a cell's outputs."""
    return "".join(output.get("text", "") for output in cell.get("outputs", []))


def run(notebook: nbformat.NotebookNode, **options: object) -> nbformat.NotebookNode:
    """Execute a notebook with nbclient."""
    client = nbclient.NotebookClient(notebook, timeout=90, kernel_name="ivy-sandbox", **options)
    executed = client.execute()
    nbformat.validate(executed)
    return executed


def test_progress_of_the_start_is_not_in_the_saved_notebook(
    set_variables: Callable[..., str], changed: Callable[..., None]
) -> None:
    """The bar that the first cell showed is transient; what the cell printed is there."""
    changed(provision_seconds={"compute": 0.8, "mount": 0.4})
    set_variables()
    executed = run(notebook_of("print('result')", "6 * 7"))
    assert "is starting" not in nbformat.writes(executed)
    assert "ivy-start" not in nbformat.writes(executed)
    stdout = [o.text for o in executed.cells[0].outputs if o.get("name") == "stdout"]
    assert stdout == ["result\n"]
    assert executed.cells[1].outputs[0].data["text/plain"] == "42"
    assert [cell.execution_count for cell in executed.cells] == [1, 2]


def test_a_failing_cell_fails_the_run_and_is_saved(set_variables: Callable[..., str]) -> None:
    """The run raises with name and value; its traceback is saved, and later cells do not run."""
    set_variables()
    notebook = notebook_of(
        "x = 1", "def f():\n    raise ValueError('bad reading')\nf()", "print(3)"
    )
    with pytest.raises(nbclient.exceptions.CellExecutionError) as caught:
        run(notebook)
    assert (caught.value.ename, caught.value.evalue) == ("ValueError", "bad reading")
    (error,) = [output for output in notebook.cells[1].outputs if output.output_type == "error"]
    assert (error.ename, error.evalue) == ("ValueError", "bad reading")
    assert "bad reading" in "\n".join(error.traceback)
    assert "f()" in re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(error.traceback))
    assert notebook.cells[2].outputs == []


def test_errors_of_ours_fail_the_run_too(set_variables: Callable[..., str]) -> None:
    """A refused key, and wrong use of a magic, are failures and not printed remarks."""
    for sources, name in ((["%ivy nonsense"], "UsageError"), (["1"], "CredentialsError")):
        set_variables(IVY_API_KEY="ivy_not_accepted")
        with pytest.raises(nbclient.exceptions.CellExecutionError) as caught:
            run(notebook_of(*sources))
        assert caught.value.ename == name


def test_allowed_errors_let_the_run_go_on(set_variables: Callable[..., str]) -> None:
    """With allow_errors every cell runs and each error is saved."""
    set_variables()
    executed = run(notebook_of("1/0", "print('went on')"), allow_errors=True)
    assert executed.cells[0].outputs[-1].ename == "ZeroDivisionError"
    assert texts(executed.cells[1]) == "went on\n"


@pytest.fixture
def quickstart(tmp_path: Path) -> Path:
    """A copy of the quickstart notebook."""
    source = REPOSITORY / "examples" / "quickstart.ipynb"
    target = tmp_path / "quickstart.ipynb"
    target.write_bytes(source.read_bytes())
    return target


def test_nbclient_runs_the_quickstart(set_variables: Callable[..., str], quickstart: Path) -> None:
    """Every cell of the shipped notebook runs in the sandbox, and there is a plot and a table."""
    set_variables()
    executed = run(nbformat.read(quickstart, as_version=4))
    code_cells = [cell for cell in executed.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in code_cells)
    assert all("shell.execute_reply" in cell.metadata.execution for cell in code_cells)
    types = {kind for c in code_cells for o in c.outputs for kind in o.get("data", {})}
    assert "image/png" in types or "image/svg+xml" in types
    assert "text/html" in types


def test_papermill_runs_the_quickstart(
    set_variables: Callable[..., str], quickstart: Path, tmp_path: Path
) -> None:
    """Papermill too, and its output notebook names no failure."""
    papermill = import_papermill()
    set_variables()
    output = tmp_path / "out.ipynb"
    papermill.execute_notebook(
        str(quickstart), str(output), kernel_name="ivy-sandbox", progress_bar=False
    )
    saved = nbformat.read(output, as_version=4)
    assert saved.metadata.papermill.exception is None
    code_cells = [cell for cell in saved.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in code_cells)
    assert all("iopub.status.idle" in cell.metadata.execution for cell in code_cells)


def test_papermill_fails_with_a_failing_cell(
    set_variables: Callable[..., str], tmp_path: Path
) -> None:
    """The run raises the cell's own exception, and injected parameters reach the sandbox."""
    papermill = import_papermill()
    set_variables()
    notebook = notebook_of("depth = 1", "print('depth', depth)", "{}[depth]")
    notebook.cells[0].metadata["tags"] = ["parameters"]
    source, output = tmp_path / "in.ipynb", tmp_path / "out.ipynb"
    nbformat.write(notebook, source)
    with pytest.raises(papermill.PapermillExecutionError) as caught:
        papermill.execute_notebook(
            str(source),
            str(output),
            parameters={"depth": 30},
            kernel_name="ivy-sandbox",
            progress_bar=False,
        )
    assert (caught.value.ename, caught.value.evalue) == ("KeyError", "30")
    saved = nbformat.read(output, as_version=4)
    assert "depth 30\n" in "".join(texts(cell) for cell in saved.cells)
    errors = [o for c in saved.cells for o in c.get("outputs", []) if o.output_type == "error"]
    assert [error.ename for error in errors] == ["KeyError"]


def import_papermill():
    """papermill, whose import warns of other packages' coming changes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import papermill

    return papermill


def test_two_notebooks_at_once(set_variables: Callable[..., str]) -> None:
    """Two kernels run two notebooks in one chat's sandbox, started once, without a clash."""
    set_variables()
    first, second = notebook_of("a = 1\nprint('first')"), notebook_of("b = 2\nprint('second')")

    async def both() -> None:
        clients = [
            nbclient.NotebookClient(notebook, timeout=90, kernel_name="ivy-sandbox")
            for notebook in (first, second)
        ]
        await asyncio.gather(*(client.async_execute() for client in clients))

    asyncio.run(both())
    assert "first\n" in texts(first.cells[0])
    assert "second\n" in texts(second.cells[0])
