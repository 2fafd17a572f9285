"""The quickstart: its data, its file, and what a plain Python kernel makes of it."""

from __future__ import annotations

import base64
import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import nbclient
import nbformat
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
NOTEBOOK = EXAMPLES / "quickstart.ipynb"
DATA_FILES = ("ivya.fasta", "isolates.csv")


def source_of(cell_id: str) -> str:
    """The source of a cell of the notebook as it is shipped."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    return next(cell.source for cell in notebook.cells if cell.id == cell_id)


def load_data_maker() -> ModuleType:
    """The script that made the data, as a module."""
    spec = importlib.util.spec_from_file_location("make_data", EXAMPLES / "data" / "make_data.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """The outputs of every code cell, by its id, after a run in an empty directory."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    directory = tmp_path_factory.mktemp("quickstart")
    resources = {"metadata": {"path": str(directory)}}
    client = nbclient.NotebookClient(
        notebook, kernel_name="python3", timeout=60, resources=resources
    )
    client.execute()
    return {cell.id: cell.outputs for cell in notebook.cells if cell.cell_type == "code"}


def text_of(outputs: list[Any]) -> str:
    """What a cell printed on stdout."""
    return "".join(output.text for output in outputs if output.get("name") == "stdout")


def test_the_notebook_is_shipped_without_outputs_for_our_kernel() -> None:
    """The notebook is valid, names our kernel, and has neither outputs nor counts in it."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    code_cells = [cell for cell in notebook.cells if cell.cell_type == "code"]

    assert notebook.metadata.kernelspec == {
        "name": "ivy-sandbox",
        "display_name": "Ivy Sandbox",
        "language": "python",
    }
    assert 8 <= len(code_cells) <= 12
    assert all(cell.outputs == [] and cell.execution_count is None for cell in code_cells)


def test_the_notebook_writes_the_shipped_data_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files that the first cell writes are those in ``examples/data``, to the byte."""
    monkeypatch.chdir(tmp_path)
    exec(compile(source_of("write-files"), "write-files", "exec"), {})

    for name in DATA_FILES:
        shipped = (EXAMPLES / "data" / name).read_bytes()
        assert (tmp_path / name).read_bytes() == shipped


def test_the_script_makes_the_shipped_data_files() -> None:
    """The script in ``examples/data`` makes the shipped files again, to the byte."""
    made = load_data_maker().make_files()

    assert set(made) == set(DATA_FILES)
    for name, text in made.items():
        assert (EXAMPLES / "data" / name).read_text(encoding="utf-8") == text


def test_the_shell_line_sees_the_files(executed: dict[str, list[Any]]) -> None:
    """The shell line counts the sequences and shows the top of the sample sheet."""
    lines = text_of(executed["look-at-files"]).split()

    assert lines[0] == "12"
    assert "isolate,site,temperature_c,depth" in lines


def test_the_table_holds_the_right_values(executed: dict[str, list[Any]]) -> None:
    """The table is HTML, and its values are those that a count by hand gives."""
    (output,) = executed["statistics"]
    genes = dict(_records((EXAMPLES / "data" / "ivya.fasta").read_text(encoding="utf-8")))
    gene = genes["IV-07"]
    gc = 100 * (gene.count("G") + gene.count("C")) / len(gene)
    row = next(line for line in output.data["text/plain"].split("\n") if line.startswith("IV-07"))

    assert output.output_type == "execute_result"
    assert "<table" in output.data["text/html"]
    assert f" {gc:.1f} " in row
    assert row.split()[-1] == "40", "the residues before the stop codon that the script puts in"
    assert output.data["text/html"].count("<td>True</td>") == 11
    assert output.data["text/html"].count("<td>False</td>") == 1


def _records(fasta: str) -> list[tuple[str, str]]:
    """Names and sequences of a FASTA file with one line a sequence."""
    lines = fasta.splitlines()
    names = [line[1:].split()[0] for line in lines[::2]]
    return list(zip(names, lines[1::2], strict=True))


@pytest.mark.parametrize("cell_id", ["heat-map", "temperature"])
def test_a_plot_is_a_png(executed: dict[str, list[Any]], cell_id: str) -> None:
    """Each plot arrives as one PNG picture."""
    pictures = [
        output.data["image/png"] for output in executed[cell_id] if "image/png" in output["data"]
    ]

    assert len(pictures) == 1
    assert base64.b64decode(pictures[0]).startswith(b"\x89PNG\r\n")


def test_the_conclusion_uses_what_earlier_cells_found(executed: dict[str, list[Any]]) -> None:
    """The last cell tells of the subfamilies, the broken copy and the temperature."""
    conclusion = text_of(executed["conclusion"])

    assert "2 subfamilies among 12 copies" in conclusion
    assert "IV-07 stops after 40 of 70 residues" in conclusion
    assert "GC3 rises by 1.9 points per 10 °C" in conclusion


def test_nothing_is_printed_on_stderr(executed: dict[str, list[Any]]) -> None:
    """No cell warns of anything."""
    stderr = [o for outputs in executed.values() for o in outputs if o.get("name") == "stderr"]

    assert stderr == []


def test_only_the_declared_packages_are_imported() -> None:
    """Beside the standard library the notebook needs numpy, pandas and matplotlib alone."""
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    lines = [line for cell in cells if cell["cell_type"] == "code" for line in cell["source"]]
    imported = {
        line.split()[1].split(".")[0] for line in lines if line.startswith(("import ", "from "))
    }

    assert imported == {"pathlib", "numpy", "pandas", "matplotlib"}
