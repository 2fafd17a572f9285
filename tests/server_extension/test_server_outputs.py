"""Outputs that no page took: into the document that said them, and by REST to a page that comes."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from urllib.parse import quote, urlencode

import nbformat
import pytest
import websocket
from jupyter_server_driver import TOKEN, Json, RunningJupyter, ServerHome, running_jupyter
from nbformat.sign import NotebookNotary
from sandbox_server import until

from ivy_kernel.session.output_journal import OutputJournal

PROGRAM = """
import os
from jupyter_server.auth import Authorizer
from jupyter_server.serverapp import ServerApp, main
from jupyter_server.services.contents.largefilemanager import AsyncLargeFileManager
from ivy_kernel.server_extension import documents

class RefusesOnRequest(Authorizer):
    def is_authorized(self, handler, user, action, resource):
        return handler.request.headers.get("X-Refuse") != f"{action} {resource}"

class Meddling(AsyncLargeFileManager):
    async def get(self, path, content=True, **options):
        model = await super().get(path, content=content, **options)
        file = self._get_os_path(path)
        meddler = os.path.splitext(file)[0] + ".meddle"
        if content and os.path.exists(meddler):
            os.replace(meddler, file)
        return model

ServerApp.contents_manager_class.default_value = Meddling
documents.LOOK_SECONDS = 0.3
documents.RUNNING_SECONDS = 1.0
documents.OPENING_SECONDS = 1.0
main()
"""
"""As ``python -m jupyter_server``, in a hurry, with another program that writes the same file."""

SOURCES = {"first": "print('first')", "second": "1 + 1", "third": "show()"}


@pytest.fixture(scope="module")
def jupyter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningJupyter]:
    """A Jupyter server that looks often."""
    home = ServerHome(tmp_path_factory.mktemp("outputs") / "home")
    flag = "--ServerApp.authorizer_class=__main__.RefusesOnRequest"
    with running_jupyter(home, {"IVY_CHAT_ID": "outputs"}, flag, program=PROGRAM) as running:
        yield running


class Notebook:
    """A notebook on disk, its session with a kernel of ours, and what that kernel journals.

    Parameters
    ----------
    server
        Its Jupyter server.
    path
        Its path below the server's root directory.
    minor
        The minor version of its format; below 5 its cells have no ids.
    """

    def __init__(self, server: RunningJupyter, path: str, minor: int = 5) -> None:
        self.server, self.path, self.minor = server, path, minor
        self.file = server.home.work / path
        cells = [code_cell(name, minor) for name in SOURCES]
        self.write({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": minor})
        body = {"path": path, "type": "notebook", "kernel": {"name": "ivy-sandbox"}, "name": path}
        status, _, self.session = server.call("POST", "api/sessions", body)
        assert status == 201, self.session
        self.kernel_id: str = self.session["kernel"]["id"]
        # The kernel's own is the same module in another process; here what it says is chosen.
        self.journal = OutputJournal(self.kernel_id, str(self.file))

    def write(self, content: Json) -> None:
        """Write the document as another program would."""
        self.file.parent.mkdir(exist_ok=True)
        partial = self.file.with_suffix(".new")
        partial.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")
        partial.replace(self.file)

    def read(self) -> Json:
        """The document as it is on disk."""

        def whole() -> Json | None:
            with contextlib.suppress(ValueError):  # Jupyter is writing it at this moment
                found: Json = json.loads(self.file.read_text())
                return found
            return None

        found: Json = until(whole, "the document is whole", 20)
        return found

    def cell(self, name: str) -> Json:
        """A cell of it."""
        source = SOURCES[name]
        cells = [c for c in self.read()["cells"] if "".join(c["source"]).startswith(source)]
        found: Json = cells[0]
        return found

    def say(self, name: str, text: str, run: str = "") -> None:
        """One line of a cell that has begun."""
        self.journal.message(run or f"run-{name}", "stream", {"name": "stdout", "text": text})

    def run(self, name: str, text: str, *, ended: bool = True) -> None:
        """A cell that says something."""
        self.journal.begin(f"run-{name}", name, digest(SOURCES[name]), 7)
        self.say(name, text)
        if ended:
            self.end(name)

    def end(self, name: str, metadata: Json | None = None) -> None:
        """The end of a cell."""
        self.journal.end(f"run-{name}", "succeeded", 7, metadata)

    def get(self, since: int = 0, **query: str) -> Json:
        """What the REST route says."""
        asked = {"kernel_id": self.kernel_id, "path": self.path, "since": str(since), **query}
        status, _, body = self.server.call("GET", f"ivy/outputs?{urlencode(asked)}")
        assert status == 200, body
        found: Json = body
        return found

    @contextlib.contextmanager
    def page(self) -> Iterator[websocket.WebSocket]:
        """A page that is connected to the kernel."""
        url = self.server.url.replace("http", "ws", 1)
        page = websocket.create_connection(
            f"{url}api/kernels/{self.kernel_id}/channels",
            header=[f"Authorization: token {TOKEN}"],
        )
        until(lambda: self.connections() == 1, "the page is connected", 20)
        try:
            yield page
        finally:
            page.close()
            if self.server.process.poll() is None:
                until(lambda: self.connections() == 0, "the page is gone", 20)

    def connections(self) -> int:
        """How many pages are connected."""
        return int(self.server.call("GET", f"api/kernels/{self.kernel_id}")[2]["connections"])

    def until_written(self, name: str, text: str) -> None:
        """Wait until the document has a cell's text."""
        until(lambda: text_of(self.cell(name)) == text, f"{name} has {text!r}", 20)

    def close(self) -> None:
        """Shut its kernel down."""
        self.journal.close()
        if self.server.process.poll() is None:
            self.server.call("DELETE", f"api/sessions/{self.session['id']}")


def code_cell(name: str, minor: int = 5) -> Json:
    """A code cell without outputs, as JupyterLab writes one."""
    cell = {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": []}
    return {**cell, "source": [SOURCES[name]], **({"id": name} if minor >= 5 else {})}


def digest(source: str) -> str:
    """SHA-256 of a source."""
    return hashlib.sha256(source.encode()).hexdigest()


def text_of(cell: Json) -> str:
    """All text of a cell."""
    return "".join("".join(o.get("text", "")) for o in cell["outputs"])


@pytest.fixture
def notebook(
    new_notebook: Callable[..., Notebook],
) -> Notebook:
    """A notebook without a page."""
    return new_notebook("folder/a notebook.ipynb")


@pytest.fixture
def new_notebook(
    jupyter: RunningJupyter, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Notebook]]:
    """Makes notebooks of the module's server, and closes them."""
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(jupyter.home.data))
    made: list[Notebook] = []

    def make(path: str, minor: int = 5, server: RunningJupyter = jupyter) -> Notebook:
        made.append(Notebook(server, path, minor))
        return made[-1]

    yield make
    for notebook in made:
        notebook.close()


def test_without_a_page_the_document_gets_what_its_cells_say(notebook: Notebook) -> None:
    """Outputs, number, run and receipt, in the cell that said them; the rest stays as it was."""
    before = notebook.read()
    notebook.run("first", "one\n", ended=False)
    notebook.until_written("first", "one\n")
    running = notebook.cell("first")
    assert running["execution_count"] is None
    assert "run" not in running["metadata"]["ivy"]  # a page has to ask for the rest
    result = {"data": {"text/html": "<b>2</b>"}, "metadata": {}, "execution_count": 7}
    notebook.journal.message("run-first", "execute_result", result)
    receipt = {"v": 1, "number": 7, "hash": "0" * 64}
    notebook.end("first", {"ivy": {"receipt": receipt}})
    until(lambda: notebook.cell("first")["execution_count"] == 7, "the end was written", 20)
    after = notebook.read()
    cell = notebook.cell("first")
    assert cell["outputs"][1] == {
        "output_type": "execute_result",
        "data": {"text/html": ["<b>2</b>"]},
        "metadata": {},
        "execution_count": 7,
    }
    assert cell["metadata"]["ivy"].items() >= {"run": "run-first", "receipt": receipt}.items()
    assert after["cells"][1:] == before["cells"][1:]
    assert (after["nbformat_minor"], after["metadata"]) == (5, {})
    nbformat.validate(nbformat.from_dict(after))
    # The person has run it, so it is trusted as in a page.
    assert notary(notebook.server).check_signature(nbformat.read(notebook.file, 4))


def notary(server: RunningJupyter) -> NotebookNotary:
    """The server's."""
    return NotebookNotary(data_dir=str(server.home.data))


def test_nothing_is_written_when_nothing_changed(
    notebook: Notebook, new_notebook: Callable[..., Notebook]
) -> None:
    """A cell that runs again and says the same changes no file."""
    notebook.run("first", "one\n")
    notebook.until_written("first", "one\n")
    modified = notebook.file.stat().st_mtime_ns
    notebook.run("first", "one\n")
    # Looks go round: when what came later in another notebook is written, this one was looked at.
    other = new_notebook("beside.ipynb")
    for text in ("a", "b"):
        other.run("third", text)
        other.until_written("third", text)
    assert notebook.file.stat().st_mtime_ns == modified


def test_a_cell_whose_source_is_another_is_left_alone(notebook: Notebook) -> None:
    """Also when it has the id; the others get theirs."""
    content = notebook.read()
    content["cells"][1]["source"] = [SOURCES["second"] + " # changed since"]
    notebook.write(content)
    notebook.run("second", "of another source")
    notebook.run("third", "three")
    notebook.until_written("third", "three")
    assert notebook.cell("second") == content["cells"][1]


def test_what_another_program_writes_meanwhile_is_kept(notebook: Notebook) -> None:
    """Between our read and our save the file changes: both are in it in the end."""
    content = notebook.read()
    note = {"cell_type": "markdown", "id": "note", "metadata": {}, "source": ["# A note"]}
    content["cells"].insert(0, note)
    content["cells"][3]["source"] = ["another source"]
    # Put in its place by the server's own manager of contents, right after it has read the file.
    notebook.file.with_suffix(".meddle").write_text(json.dumps(content))
    notebook.run("first", "one\n")
    notebook.run("third", "of a source that is gone")
    notebook.until_written("first", "one\n")
    assert not notebook.file.with_suffix(".meddle").exists()
    after = notebook.read()
    assert after["cells"][0] == note
    assert after["cells"][3] == content["cells"][3]


def test_while_a_page_is_open_it_writes_itself(notebook: Notebook) -> None:
    """Nothing is written then; what the page has saved partly is made whole when it has gone."""
    with notebook.page():
        notebook.run("first", "one\n", ended=False)
        content = notebook.read()
        content["cells"][0]["outputs"] = [stream("one\n")]
        notebook.write(content)  # the page saves
        modified = notebook.file.stat().st_mtime_ns
        notebook.say("first", "two\n")
        notebook.end("first")
        beside = notebook.file.stat().st_mtime_ns
        assert beside == modified
    notebook.until_written("first", "one\ntwo\n")


def stream(text: str) -> Json:
    """A stream output, as on disk."""
    return {"output_type": "stream", "name": "stdout", "text": [text]}


def test_a_page_that_has_saved_since_is_believed(notebook: Notebook) -> None:
    """Outputs that were cleared, and saved so, do not come back; those that come later are new."""
    with notebook.page():
        notebook.run("first", "cleared by the person")
        later = time.time() + 4  # the page saves, a while after
        os.utime(notebook.file, (later, later))
    until(lambda: time.time() > later, "the time of that save has come", 20)
    notebook.run("third", "new")
    notebook.until_written("third", "new")
    assert text_of(notebook.cell("first")) == ""


def test_a_renamed_notebook_gets_them_under_its_new_name(
    notebook: Notebook, new_notebook: Callable[..., Notebook]
) -> None:
    """By a page, which tells the session, and in the file browser, which does not."""
    server = notebook.server
    for number, tells in enumerate((True, False)):
        renamed = f"folder/renamed {number}.ipynb"
        old = quote(notebook.path)
        assert server.call("PATCH", f"api/contents/{old}", {"path": renamed})[0] == 200
        if tells:
            session = f"api/sessions/{notebook.session['id']}"
            assert server.call("PATCH", session, {"path": renamed})[0] == 200
        notebook.path, notebook.file = renamed, server.home.work / renamed
        notebook.run("first", f"after {number}")
        notebook.until_written("first", f"after {number}")
    assert [path.name for path in notebook.file.parent.glob("*.ipynb")] == [notebook.file.name]


def test_a_notebook_without_cell_ids_keeps_its_format(
    new_notebook: Callable[..., Notebook],
) -> None:
    """The cell is the only one with that source; the minor version stays."""
    notebook = new_notebook("old.ipynb", 4)
    content = notebook.read()
    content["cells"].append(content["cells"][2])
    notebook.write(content)
    notebook.journal.begin("run-third", "the page's own id", digest(SOURCES["third"]), 1)
    notebook.say("third", "of one of two")
    notebook.end("third")
    notebook.run("first", "one")
    notebook.until_written("first", "one")
    after = notebook.read()
    assert after["nbformat_minor"] == 4
    assert [text_of(cell) for cell in after["cells"]] == ["one", "", "", ""]
    assert "id" not in after["cells"][0]


def test_an_untrusted_notebook_stays_untrusted(notebook: Notebook) -> None:
    """Only the cell that ran is trusted; a cell with outputs of others keeps the whole unsigned."""
    content = notebook.read()
    foreign = {"output_type": "display_data", "data": {"text/html": ["<i>x</i>"]}, "metadata": {}}
    content["cells"][1]["outputs"] = [foreign]
    notebook.write(content)
    notebook.run("first", "one")
    notebook.until_written("first", "one")
    after = nbformat.read(notebook.file, 4)
    assert not notary(notebook.server).check_signature(after)
    assert "trusted" not in after.cells[0].metadata


def test_a_file_that_cannot_be_written_is_told_once_and_written_later(notebook: Notebook) -> None:
    """A notebook that is gone for a while gets its outputs when it is there again."""
    away = notebook.file.with_suffix(".away")
    notebook.file.rename(away)
    notebook.run("first", "one")
    log = notebook.server.log
    until(lambda: "wait: HTTP 404" in log.read_text(), "the server tells it", 20)
    away.rename(notebook.file)
    notebook.until_written("first", "one")


# The end of the server ----------------------------------------------------------------------------
def test_a_server_that_stops_writes_what_no_page_took(
    server_home: ServerHome, new_notebook: Callable[..., Notebook], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of a cell that runs on; a page that is still open keeps its document to itself."""
    program = PROGRAM.replace("LOOK_SECONDS = 0.3", "LOOK_SECONDS = 1000.0")
    with running_jupyter(server_home, {"IVY_CHAT_ID": "stops"}, program=program) as server:
        monkeypatch.setenv("JUPYTER_DATA_DIR", str(server_home.data))
        alone, looked_at = new_notebook("a.ipynb", 5, server), new_notebook("b.ipynb", 5, server)
        for notebook in (alone, looked_at):
            notebook.run("first", "ended\n")
            notebook.run("second", "so far", ended=False)
        assert text_of(alone.cell("first")) == ""
        with looked_at.page():
            assert server.stop() == 0
    assert text_of(alone.cell("first")) == "ended\n"
    assert text_of(alone.cell("second")) == "so far"
    assert text_of(looked_at.cell("first")) == ""
    assert "did not end in order" not in server.log.read_text()


# REST ---------------------------------------------------------------------------------------------
def test_a_page_gets_each_cell_once_and_then_what_is_new(notebook: Notebook) -> None:
    """With all that it needs to know whose outputs they are."""
    notebook.run("first", "one")
    notebook.run("second", "so far", ended=False)
    answer = notebook.get()
    assert set(answer["cells"]) == {"first", "second"}
    first = answer["cells"]["first"]
    assert first["code"] == digest(SOURCES["first"])
    assert (first["run"], first["number"], first["fate"]) == ("run-first", 7, "succeeded")
    assert first["outputs"] == [{"output_type": "stream", "name": "stdout", "text": "one"}]
    assert first["is_running"] is False
    assert answer["cells"]["second"]["is_running"] is True
    again = notebook.get(answer["offset"])
    assert again == {"offset": answer["offset"], "cells": {}}
    notebook.say("second", " and more")
    later = notebook.get(answer["offset"])
    assert set(later["cells"]) == {"second"}
    assert text_of(later["cells"]["second"]) == "so far and more"


def test_an_earlier_kernel_of_the_notebook_is_asked_too(notebook: Notebook) -> None:
    """For what the document was not saved since; the newest run of each cell counts."""
    for name, path in (("gone", notebook.file), ("of another", notebook.file.with_name("x.ipynb"))):
        journal = OutputJournal(name, str(path))
        for cell in ("first", "second", "third"):
            journal.begin(f"{name}-{cell}", cell, digest(SOURCES[cell]), 1)
            journal.message(f"{name}-{cell}", "stream", {"name": "stdout", "text": name})
            if cell != "third":
                journal.end(f"{name}-{cell}", "succeeded", 1)
        journal.close()
    answer = notebook.get()
    assert {run["run"] for run in answer["cells"].values()} == {
        *("gone-first", "gone-second", "gone-third"),
    }
    third = answer["cells"]["third"]
    assert (third["is_running"], third["fate"]) == (False, "unknown")
    assert answer["offset"] >= 1
    assert notebook.get(answer["offset"])["cells"] == {}
    notebook.run("first", "newer")
    assert notebook.get()["cells"]["first"]["run"] == "run-first"
    later = time.time() + 10
    os.utime(notebook.file, (later, later))
    assert set(notebook.get()["cells"]) == {"first"}


def test_a_request_that_makes_no_sense_is_told_so(notebook: Notebook) -> None:
    """One sentence that names what is wrong."""
    query = {"kernel_id": notebook.kernel_id, "path": notebook.path, "since": "0"}
    for changed, status, words in (
        ({"kernel_id": ""}, 400, "kernel_id"),
        ({"kernel_id": "no-such-kernel"}, 404, "no kernel with this kernel_id"),
        ({"kernel_id": "../../secret"}, 404, "no kernel with this kernel_id"),
        ({"path": "another.ipynb"}, 400, "another.ipynb is no notebook of the kernel"),
        ({"since": "-1"}, 400, "since='-1'"),
        ({"since": "many"}, 400, "since='many'"),
        ({"since": "9" * 30}, 400, "is no offset"),
    ):
        asked = urlencode({**query, **changed})
        code, _, body = notebook.server.call("GET", f"ivy/outputs?{asked}")
        assert (code, words in body["error"]["message"]) == (status, True), (changed, body)


def test_who_may_not_read_documents_gets_no_outputs(notebook: Notebook) -> None:
    """Both rights are needed, and the server's own token before them."""
    address = f"ivy/outputs?kernel_id={notebook.kernel_id}"
    own = {"Authorization": f"token {TOKEN}"}
    for refused in ("read ivy", "read contents"):
        headers = {**own, "X-Refuse": refused}
        assert notebook.server.call("GET", address, headers=headers)[0] == 403
    assert notebook.server.call("GET", address, headers={})[0] == 403
    assert notebook.server.call("GET", address, headers=own)[0] == 200


# With what the kernel itself journals -------------------------------------------------------------
def test_a_page_closed_during_a_cell_finds_its_outputs_in_the_document(
    new_notebook: Callable[..., Notebook],
) -> None:
    """A real cell in a real sandbox, sent by a page that goes away."""
    notebook = new_notebook("real.ipynb")
    source = "import time\nfor i in range(3):\n    print(i)\n    time.sleep(0.7)\n1 + 1"
    content = notebook.read()
    content["cells"][0]["source"] = source.splitlines(keepends=True)
    notebook.write(content)
    with notebook.page() as page:
        page.send(json.dumps(execute_request(source, "first")))
        while "stream" not in page.recv():
            pass
    until(lambda: notebook.read()["cells"][0]["execution_count"] == 1, "it was written", 60)
    cell = notebook.read()["cells"][0]
    assert text_of(cell) == "0\n1\n2\n"
    assert cell["outputs"][-1]["data"] == {"text/plain": ["2"]}
    assert cell["metadata"]["ivy"]["run"] == "request-of-the-page"
    answer = notebook.get()["cells"]["first"]
    assert (answer["is_running"], answer["code"]) == (False, digest(source))


def execute_request(code: str, cell_id: str) -> Json:
    """A request to run a cell, as JupyterLab sends it."""
    header = {"msg_id": "request-of-the-page", "msg_type": "execute_request", "version": "5.3"}
    content = {"code": code, "silent": False, "store_history": True, "user_expressions": {}}
    return {
        "channel": "shell",
        "header": {**header, "session": "page", "username": "", "date": "2026-01-01T00:00:00Z"},
        "parent_header": {},
        "metadata": {"cellId": cell_id},
        "content": {**content, "allow_stdin": False, "stop_on_error": True},
        "buffers": [],
    }
