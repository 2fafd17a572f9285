"""Notebooks with widgets end when nbclient runs them, each time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kernel_driver import Home, kernel_variables
from nbclient import NotebookClient
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook
from sandbox_server import RunningSandbox

SOURCES = [
    "import ipywidgets as w\nfrom IPython.display import display\nbar = w.IntProgress(max=20)\nbar",
    "for bar.value in range(21):\n    pass\nprint('full')",
    "out = w.Output()\ndisplay(out)\nwith out:\n    print('caught')",
    "slider = w.IntSlider(value=4)\nslider.observe(lambda change: print('moved'), 'value')\n"
    "display(slider)\nslider.value = 6",
    "w.interact(lambda x: print('x is', x), x=(0, 9));",
    "slider.value",
]


def run_notebook(server: RunningSandbox, home: Home) -> NotebookNode:
    """Run the widget notebook once, in a kernel of its own."""
    server.ready("nbclient", "session-of-nbclient", "campaign-of-nbclient")
    notebook = new_notebook(cells=[new_code_cell(source) for source in SOURCES])
    client = NotebookClient(notebook, kernel_name="ivy-sandbox", timeout=60)
    variables = kernel_variables(server, "nbclient", IVY_ROUTE="agent")
    client.execute(env=home.environment(variables))
    return notebook


def check(notebook: NotebookNode, log: pytest.LogCaptureFixture) -> None:
    """All that the widgets did is in the notebook, and each cell's end was heard."""
    assert "Timeout waiting" not in log.text
    last: Any = notebook.cells[-1].outputs[0]
    assert last["data"]["text/plain"] == "6"
    assert [one["text"] for one in notebook.cells[1].outputs] == ["full\n"]
    states = notebook.metadata["widgets"]["application/vnd.jupyter.widget-state+json"]["state"]
    by_name = {state["model_name"]: state["state"] for state in states.values()}
    assert by_name["IntProgressModel"]["value"] == 20
    assert "IntSliderModel" in by_name
    outputs = [
        state["state"].get("outputs", [])
        for state in states.values()
        if state["model_name"] == "OutputModel"
    ]
    assert "caught" in str(outputs)


@pytest.mark.timeout(600)
def test_a_widget_notebook_ends_each_time(
    server: RunningSandbox, new_home: Callable[[], Home], caplog: pytest.LogCaptureFixture
) -> None:
    """Six runs of six end, with the widgets' state saved."""
    for _ in range(6):
        check(run_notebook(server, new_home()), caplog)


@pytest.mark.thorough
@pytest.mark.timeout(1200)
def test_a_widget_notebook_ends_sixty_times(
    server: RunningSandbox, new_home: Callable[[], Home], caplog: pytest.LogCaptureFixture
) -> None:
    """Sixty runs of sixty end."""
    for _ in range(60):
        check(run_notebook(server, new_home()), caplog)
