"""Whatever shape the platform's results have, cells look sensible, on both plain routes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kernel_driver import CellRun, Home, KernelDriver, kernel_variables, running_kernel
from sandbox_server import RunningSandbox, running_sandbox

FAMILIES = [
    *("process", "process_returncode", "text", "text_result", "text_text", "nbformat"),
    *("nbformat_lines", "nbformat_cells", "nbformat_notebook", "typed", "content", "artifacts"),
    *("images", "error_string", "error_object", "error_traceback"),
    *("mcp", "mcp_words", "e2b", "azure", "piston", "gemini", "events", "messages"),
]

DRESSES = [("camel", ""), ("snake", "result"), ("camel", "data_json"), ("snake", "output_json")]
"""Spelling and nesting, tried with one family each of a kind."""


@pytest.fixture(scope="module")
def server() -> Iterator[RunningSandbox]:
    """A server whose result family changes from test to test."""
    with running_sandbox() as running:
        yield running


@pytest.fixture(scope="module")
def kernels(
    server: RunningSandbox, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, KernelDriver]]:
    """A kernel on each plain route, in one chat."""
    started: dict[str, KernelDriver] = {}
    homes = {route: Home(tmp_path_factory.mktemp(route)) for route in ("notebook", "script")}
    both = {route: kernel_variables(server, "families", IVY_ROUTE=route) for route in homes}
    with (
        running_kernel(homes["notebook"], both["notebook"]) as notebook,
        running_kernel(homes["script"], both["script"]) as script,
    ):
        started = {"notebook": notebook, "script": script}
        for kernel in started.values():
            assert kernel.run("1").reply["status"] == "ok"
        yield started


def shown_text(cell: CellRun) -> str:
    """All that a user can read of a cell's outputs."""
    texts = [cell.text(), cell.text("stderr")]
    texts += [str(data.get("text/plain", "")) for data in cell.datas("execute_result")]
    texts += [str(data.get("text/plain", "")) for data in cell.datas("display_data")]
    return "\n".join(texts)


def assert_sensible(kernel: KernelDriver, family: str) -> None:
    """Printed text, a value, an error with its name, and an empty cell, as a user expects them."""
    cell = kernel.run("print('printed: ü {\"a\": 1}')\nprint('second line')")
    assert cell.reply["status"] == "ok", (family, cell.reply)
    text = shown_text(cell)
    assert 'printed: ü {"a": 1}\nsecond line' in text, (family, cell.outputs)
    assert "exit_code" not in text, family
    assert "\\n" not in text, family

    assert "42" in shown_text(kernel.run("40 + 2")), family

    quiet = kernel.run("unseen = 1")
    assert quiet.reply["status"] == "ok", (family, quiet.reply)
    assert shown_text(quiet).strip() == "", (family, quiet.outputs)

    failing = kernel.run("print('before')\n{}['missing-key']")
    assert failing.reply["status"] == "error", (family, failing.outputs)
    everything = shown_text(failing) + str(failing.error)
    assert "before" in shown_text(failing), family
    assert "KeyError" in everything, family
    assert "missing-key" in everything, family


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("route", ["notebook", "script"])
def test_cells_look_sensible_in_every_family(
    kernels: dict[str, KernelDriver], server: RunningSandbox, route: str, family: str
) -> None:
    """Text, value, silence and error come out right, with nothing lost and no JSON shown."""
    server.control({"result_family": family, "result_case": "snake", "result_nesting": ""})
    assert_sensible(kernels[route], family)


@pytest.mark.parametrize("family", ["process", "nbformat", "typed", "content"])
@pytest.mark.parametrize(("case", "nesting"), DRESSES)
def test_spelling_and_nesting_make_no_difference(
    kernels: dict[str, KernelDriver],
    server: RunningSandbox,
    family: str,
    case: str,
    nesting: str,
) -> None:
    """camelCase, and results inside of results or of JSON strings, are understood."""
    server.control({"result_family": family, "result_case": case, "result_nesting": nesting})
    assert_sensible(kernels["notebook"], f"{family} {case} {nesting}")


@pytest.mark.parametrize("family", ["nbformat", "typed", "content", "e2b", "events", "messages"])
def test_pictures_survive_where_the_family_has_them(
    kernels: dict[str, KernelDriver], server: RunningSandbox, family: str
) -> None:
    """A PNG comes back as image/png, byte for byte."""
    server.control({"result_family": family, "result_case": "snake", "result_nesting": ""})
    png = (
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5E"
        "rkJggg=="
    )
    cell = kernels["notebook"].run(
        f"import base64\nfrom IPython.display import Image\nImage(data=base64.b64decode('{png}'))"
    )
    pictures = [
        data["image/png"].replace("\n", "")
        for data in cell.datas("execute_result") + cell.datas("display_data")
        if "image/png" in data
    ]
    assert pictures == [png]
