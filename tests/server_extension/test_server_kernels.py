"""Kernels of this server and their notebooks, as attached to the sandboxes that they use."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from jupyter_client import BlockingKernelClient
from jupyter_server_driver import MARKED_KEY, Json, RunningJupyter
from sandbox_server import RunningSandbox, running_sandbox, until
from test_server_actions import state_of

NOTEBOOK = json.dumps({"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5})


class Notebook:
    """An open notebook with a kernel of ours.

    Parameters
    ----------
    server
        Its Jupyter server.
    path
        Its path below the server's root directory.
    """

    def __init__(self, server: RunningJupyter, path: str) -> None:
        self._server = server
        file = server.home.work / path
        file.parent.mkdir(exist_ok=True)
        file.write_text(NOTEBOOK)
        body = {"path": path, "type": "notebook", "kernel": {"name": "ivy-sandbox"}, "name": ""}
        status, _, self.session = server.call("POST", "api/sessions", body)
        assert status == 201, self.session
        self.kernel_id: str = self.session["kernel"]["id"]

    def run(self, code: str) -> Json:
        """Run a cell; the content of its reply."""
        client = BlockingKernelClient()
        client.load_connection_file(
            str(self._server.home.runtime / f"kernel-{self.kernel_id}.json")
        )
        # The shell alone: a heartbeat on a busy machine takes a slow kernel for a dead one.
        client.start_channels(iopub=False, stdin=False, hb=False, control=False)
        try:
            reply: Json = client.execute(code, reply=True, timeout=60)["content"]
            return reply
        finally:
            client.stop_channels()

    def close(self) -> None:
        """Shut its kernel down."""
        self._server.call("DELETE", f"api/sessions/{self.session['id']}")


@pytest.fixture
def notebook(jupyter: RunningJupyter) -> Iterator[Notebook]:
    """An open notebook in a folder."""
    opened = Notebook(jupyter, "folder/a notebook.ipynb")
    yield opened
    opened.close()


def rows_of(sandboxes: list[Json]) -> list[Json]:
    """What is attached to the default sandbox."""
    rows: list[Json] = sandboxes[0]["sessions"]
    return rows


def test_a_notebook_is_shown_while_its_kernel_uses_the_sandbox(
    jupyter: RunningJupyter, platform: RunningSandbox, notebook: Notebook, chat_id: str
) -> None:
    """It appears with its path once a cell has run, follows a rename, and goes with its kernel."""
    with jupyter.events() as events:
        _, sandboxes = events.until(bool, "the first list came")
        assert rows_of(sandboxes) == []
        assert platform.status(chat_id)["status"] == "none"  # opening a notebook starts nothing

        assert notebook.run("1 + 1")["status"] == "ok"
        row = {
            "kernel_id": notebook.kernel_id,
            "notebook_path": "folder/a notebook.ipynb",
            "kind": "kernel",
        }
        events.until(lambda found: rows_of(found) == [row], "the notebook appeared", 20)
        # The kernel has started the sandbox without us; that is noticed all the same, although a
        # sandbox that is not started is asked for once a minute.
        events.until(lambda found: state_of(found) == "active", "its sandbox was seen", 20)

        renamed = {"path": "folder/renamed.ipynb"}
        session = f"api/sessions/{notebook.session['id']}"
        assert jupyter.call("PATCH", session, renamed)[0] == 200
        row["notebook_path"] = "folder/renamed.ipynb"
        events.until(lambda found: rows_of(found) == [row], "the new name was seen", 20)

        entries = list((jupyter.home.runtime / "ivy-uses").iterdir())
        assert len(entries) == 1
        notebook.close()
        assert not entries[0].exists()
        until(lambda: rows_of(events.sandboxes) == [], "the notebook went", 20)


def test_a_kernel_in_another_chat_has_a_sandbox_of_its_own(
    jupyter: RunningJupyter, platform: RunningSandbox, notebook: Notebook, chat_id: str
) -> None:
    """When the settings move on, the kernel's chat is still shown, after the default one."""
    assert notebook.run("%ivy status")["status"] == "ok"
    first = jupyter.default()
    assert [row["kernel_id"] for row in first["sessions"]] == [notebook.kernel_id]
    jupyter.home.configure({"chat_id": f"{chat_id}-next", "campaign_id": "campaign"})
    until(lambda: jupyter.default()["chat_id"] == f"{chat_id}-next", "the settings moved on")
    default, other = jupyter.sandboxes()
    assert (default["default"], default["sessions"]) == (True, [])
    assert (other["default"], other["chat_id"]) == (False, chat_id)
    assert other["id"] == first["id"]
    assert other["can_create"] is True
    assert [row["kernel_id"] for row in other["sessions"]] == [notebook.kernel_id]
    assert jupyter.act("create", other["id"])["status"]["state"] in ("provisioning", "active")
    assert platform.status(chat_id)["status"] in ("provisioning", "active")
    assert platform.status(f"{chat_id}-next")["status"] == "none"


def test_after_a_change_of_the_address_there_is_one_sandbox(
    jupyter: RunningJupyter, notebook: Notebook, chat_id: str
) -> None:
    """The notebook is at once with the sandbox that its next cell uses; no advice is given."""
    assert notebook.run("%ivy status")["status"] == "ok"
    before = jupyter.default()
    settings = {"chat_id": chat_id, "campaign_id": f"campaign-of-{chat_id}"}
    with running_sandbox(token=MARKED_KEY) as elsewhere:
        jupyter.home.configure({**settings, "api_url": elsewhere.url})
        until(lambda: jupyter.default()["id"] != before["id"], "the settings moved on")
        for _ in range(2):
            (shown,) = jupyter.sandboxes()
            assert [row["kernel_id"] for row in shown["sessions"]] == [notebook.kernel_id]
            assert shown["missing"] is None
            assert shown["can_create"] is True
            assert notebook.run("%ivy status")["status"] == "ok"
        jupyter.home.configure(settings)
        until(lambda: jupyter.default()["id"] == before["id"], "the settings moved back")
        (shown,) = jupyter.sandboxes()
        assert [row["kernel_id"] for row in shown["sessions"]] == [notebook.kernel_id]


def test_kernels_of_other_servers_are_not_shown(jupyter: RunningJupyter, chat_id: str) -> None:
    """An entry of a living process whose kernel is not this server's changes nothing."""
    directory = jupyter.home.runtime / "ivy-uses"
    directory.mkdir(mode=0o700, exist_ok=True)
    entry = directory / f"{jupyter.process.pid}-1.json"
    use = {
        "kernel_id": "a-kernel-of-another-server",
        "process_id": jupyter.process.pid,
        "kind": "kernel",
        "api_url": "local",
        "chat_id": chat_id,
        "campaign_id": "",
    }
    entry.touch(mode=0o600)
    entry.write_text(json.dumps(use))
    try:
        assert len(jupyter.sandboxes()) == 1
        assert rows_of(jupyter.sandboxes()) == []
    finally:
        entry.unlink()
