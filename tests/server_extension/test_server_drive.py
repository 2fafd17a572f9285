"""The drive: a sandbox's files by Jupyter's contents API, downloads, and what is sent from here."""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import os
import socket
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from jupyter_server.services.contents.handlers import validate_model
from jupyter_server_driver import MARKED_KEY, TOKEN, Json, RunningJupyter
from sandbox_server import RunningSandbox, until
from test_server_routes import check_error

OWN = {"Authorization": f"token {TOKEN}"}
LIVE = "drive-tests"
"""The chat whose sandbox is active in all tests of this module."""

HOSTILE = [
    'double "quote".txt',
    "single 'quote'.txt",
    "new\nline.txt",
    "per%20cent%.txt",
    "semi;colon,comma=.txt",
    "back\\slash.txt",
    "question?#mark.txt",
    "ünïcödé 漢字 🚀.txt",
    "right\u202eto left.txt",
    "-rf",
    "a:b.txt",
    "$(touch evil)`id`.txt",
    "n" * 251 + ".txt",
    " leading and trailing ",
    "tab\tand\x1bescape.txt",
]


@dataclass
class Drive:
    """The drive of one sandbox, and the directory on this machine that its files are in."""

    jupyter: RunningJupyter
    chat_id: str
    root: Path

    def url(self, path: str = "", route: str = "contents") -> str:
        """The address of a path in the sandbox."""
        return f"ivy/{route}/{quote(self.chat_id, safe='')}" + "".join(
            f"/{quote(part, safe='')}" for part in path.split("/") if part
        )

    def call(self, method: str, path: str, body: Any = None, query: str = "") -> tuple[int, Any]:
        """A request to the contents API; status and body."""
        status, _, answer = self.jupyter.call(method, self.url(path) + query, body)
        return status, answer

    def get(self, path: str = "", query: str = "") -> Json:
        """A model, which must be one that front ends take."""
        status, model = self.call("GET", path, query=query)
        assert status == 200, (status, model)
        has_content = "content=0" not in query
        validate_model(model, expect_content=has_content, expect_hash="hash=1" in query)
        found: Json = model
        return found

    def names(self, path: str = "") -> set[str]:
        """The names in a directory."""
        return {child["name"] for child in self.get(path, "?fresh=1")["content"]}

    def save(self, path: str, data: bytes, **more: Any) -> tuple[int, Any]:
        """Save bytes, or a chunk of them."""
        content = base64.b64encode(data).decode()
        body = {"type": "file", "format": "base64", "content": content, **more}
        return self.call("PUT", path, body)

    def download(self, path: str, query: str = "", method: str = "GET") -> tuple[int, Any, bytes]:
        """A request to the download route; status, headers and the bytes."""
        address = self.jupyter.url + self.url(path, "files") + query
        request = urllib.request.Request(address, headers=OWN, method=method)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=60) as answer:
                return answer.status, answer.headers, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers, error.read()

    def leftovers(self, directory: str) -> list[str]:
        """Files of transfers that did not come to their end."""
        return [path.name for path in (self.root / directory).glob(".ivy-*")]


@pytest.fixture
def drive(shared_jupyter: RunningJupyter, platform: RunningSandbox) -> Iterator[Drive]:
    """The drive of a sandbox that is active."""
    platform.ready(LIVE)
    shared_jupyter.home.configure({"chat_id": LIVE, "campaign_id": f"campaign-of-{LIVE}"})
    until(lambda: shared_jupyter.default()["chat_id"] == LIVE, "the settings were read again")
    until(lambda: shared_jupyter.default()["status"]["state"] == "active", "it is active", 20)
    yield Drive(shared_jupyter, LIVE, platform.root / LIVE)
    shared_jupyter.home.configure(None)


@pytest.fixture
def place(drive: Drive, request: pytest.FixtureRequest) -> tuple[str, Path]:  # type: ignore[no-redef]
    """A new directory in the sandbox: its path there, and on this machine."""
    name = hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:12]
    (drive.root / name).mkdir()
    return name, drive.root / name


# Looking ------------------------------------------------------------------------------------------
def test_the_root_lists_the_sandboxes(drive: Drive) -> None:
    """The drive's top is a directory that has one for each sandbox in use, with its state."""
    status, _, model = drive.jupyter.call("GET", "ivy/contents/")
    assert status == 200
    validate_model(model, expect_content=True)
    child = model["content"][0]
    validate_model(child)
    assert (child["name"], child["path"], child["type"]) == (LIVE, LIVE, "directory")
    assert child["ivy"]["id"] == drive.jupyter.default()["id"]
    assert child["ivy"]["state"] == "active"
    assert child["ivy"]["message"] is None


def test_a_directory_lists_its_files(drive: Drive, place: tuple[str, Path]) -> None:
    """Each child is a model without content; pipes, and parts of transfers, are left out."""
    name, here = place
    (here / "table.csv").write_text("a,b\n1,2\n")
    (here / "sub").mkdir()
    (here / "book.ipynb").write_text("{}")
    (here / "link").symlink_to("/etc/passwd")
    os.mkfifo(here / "pipe")
    (here / f".ivy-{'0' * 32}.part").write_text("part")
    os.close(os.open(os.fsencode(here) + b"/no-utf8-\xff", os.O_CREAT))
    model = drive.get(name)
    children = {child["name"]: child for child in model["content"]}
    assert set(children) == {"table.csv", "sub", "book.ipynb", "link"}
    for child in children.values():
        validate_model(child)
        assert child["path"] == f"{LIVE}/{name}/{child['name']}"
    assert {each: child["type"] for each, child in children.items()} == {
        "table.csv": "file",
        "sub": "directory",
        "book.ipynb": "notebook",
        "link": "file",
    }
    assert children["table.csv"]["size"] == 8
    assert children["table.csv"]["mimetype"] == "text/csv"
    assert children["table.csv"]["writable"] is True
    assert children["link"]["writable"] is False
    assert model["ivy"]["unlisted"] == 2


def test_a_large_directory_is_listed_whole(drive: Drive, place: tuple[str, Path]) -> None:
    """10,000 files are one answer."""
    name, here = place
    for number in range(10_000):
        (here / f"{number}.txt").touch()
    model = drive.get(name)
    assert len(model["content"]) == 10_000
    assert model["ivy"]["is_truncated"] is False


def test_any_name_can_be_used(drive: Drive, place: tuple[str, Path]) -> None:
    """Files of any names are saved, listed, read, downloaded, renamed and deleted."""
    directory, here = place
    for hostile in HOSTILE:
        status, model = drive.save(f"{directory}/{hostile}", hostile.encode())
        assert (status, model["name"]) == (200, hostile)
        assert (here / hostile).read_bytes() == hostile.encode()
    assert drive.names(directory) == set(HOSTILE)
    for hostile in HOSTILE:
        status, headers, data = drive.download(f"{directory}/{hostile}")
        assert (status, data) == (200, hostile.encode())
        name = headers["Content-Disposition"].removeprefix("attachment; filename*=utf-8''")
        assert name == quote(hostile)
    hostile = HOSTILE[2]
    assert drive.get(f"{directory}/{hostile}")["content"] == hostile
    status, model = drive.call(
        "PATCH", f"{directory}/{hostile}", {"path": f"{LIVE}/{directory}/{HOSTILE[2]}\r\n"}
    )
    assert (status, model["name"]) == (200, f"{HOSTILE[2]}\r\n")
    assert drive.call("DELETE", f"{directory}/{HOSTILE[2]}\r\n")[0] == 204
    assert {path.name for path in here.iterdir()} == set(HOSTILE) - {hostile}


@pytest.mark.parametrize(
    "path", ["..", "../other", "a/../../other", "%2e%2e/other", "a//../..//other", "nul\0byte"]
)
def test_no_path_leads_out(drive: Drive, platform: RunningSandbox, path: str) -> None:
    """Paths out of the sandbox's directory are refused in words, for reading and writing."""
    secret = platform.root / "other"
    secret.write_text("secret")
    address = f"ivy/contents/{LIVE}/" + quote(path, safe="/%.")
    body = {"type": "file", "format": "text", "content": "overwritten"}
    for method in ("GET", "PUT", "DELETE"):
        status, _, answer = drive.jupyter.call(method, address, body)
        assert status in (400, 404), answer
        assert "secret" not in json.dumps(answer)
    assert drive.download(path)[0] in (400, 404)
    assert secret.read_text() == "secret"


def test_a_link_is_shown_but_not_followed(drive: Drive, place: tuple[str, Path]) -> None:
    """A link in the sandbox cannot make the server read or write what it leads to."""
    name, here = place
    outside = drive.root.parent / f"outside-{name}"
    outside.write_text("secret")
    (here / "link").symlink_to(outside)
    for method in ("GET", "PUT"):
        body = {"type": "file", "format": "text", "content": "overwritten"}
        status, answer = drive.call(method, f"{name}/link", body)
        assert status == 400, answer
        assert "link" in answer["error"]["message"]
    assert drive.download(f"{name}/link")[0] == 400
    assert outside.read_text() == "secret"


# Reading ------------------------------------------------------------------------------------------
def test_content_comes_in_the_format_that_is_asked_for(
    drive: Drive, place: tuple[str, Path]
) -> None:
    """Text, base64, neither, and the hash are as from Jupyter's own files."""
    name, here = place
    (here / "text").write_text("grüße")
    binary = bytes(range(256))
    (here / "binary.png").write_bytes(binary)
    model = drive.get(f"{name}/text", "?hash=1")
    assert (model["content"], model["format"], model["mimetype"]) == ("grüße", "text", "text/plain")
    assert model["hash"] == hashlib.sha256("grüße".encode()).hexdigest()
    model = drive.get(f"{name}/binary.png")
    assert (base64.b64decode(model["content"]), model["format"]) == (binary, "base64")
    assert model["mimetype"] == "image/png"
    long = 'ü\n"\\' * 300_000  # longer than what is sent at once
    (here / "long").write_text(long)
    model = drive.get(f"{name}/long", "?hash=1")
    assert (model["content"] == long, model["format"]) == (True, "text")
    assert model["hash"] == hashlib.sha256(long.encode()).hexdigest()
    model = drive.get(f"{name}/text", "?format=base64")
    assert base64.b64decode(model["content"]).decode() == "grüße"
    model = drive.get(f"{name}/text", "?content=0&hash=1")
    assert model["content"] is None
    assert model["hash"] == hashlib.sha256("grüße".encode()).hexdigest()


@pytest.mark.parametrize(
    ("path", "query", "expected", "words"),
    [
        ("binary", "?format=text", 400, "not UTF-8"),
        ("binary", "?type=directory", 400, "not a directory"),
        ("binary", "?type=notebook", 400, "no notebook"),
        ("", "?type=file", 400, "is a directory"),
        ("binary", "?content=2", 400, "invalid"),
        ("nothing", "", 404, "nothing"),
    ],
)
def test_what_cannot_be_read_is_told(
    drive: Drive, place: tuple[str, Path], path: str, query: str, expected: int, words: str
) -> None:
    """A wrong request has a fitting status, one shape, and the words that JupyterLab shows."""
    name, here = place
    (here / "binary").write_bytes(b"\xff\xfe")
    status, answer = drive.call("GET", f"{name}/{path}", query=query)
    assert status == expected
    assert words in answer["message"]
    assert answer["error"]["message"] == answer["message"]


def test_a_file_that_is_too_large_for_a_page_names_the_download(
    drive: Drive, place: tuple[str, Path]
) -> None:
    """The size is looked at before anything is read, and downloads have no such limit."""
    name, here = place
    with (here / "large").open("wb") as file:
        file.truncate(65_000_000)
    status, answer = drive.call("GET", f"{name}/large")
    assert status == 400
    assert "65 MB" in answer["message"]
    assert "Download" in answer["message"]


# Changing -----------------------------------------------------------------------------------------
def test_a_notebook_is_saved_as_jupyterlab_does_it(drive: Drive, place: tuple[str, Path]) -> None:
    """New, rename, save, checkpoint and read again: every answer is one that JupyterLab takes."""
    name, here = place
    status, model = drive.call("POST", name, {"type": "notebook"})
    assert (status, model["name"], model["type"]) == (201, "Untitled.ipynb", "notebook")
    validate_model(model)
    status, _ = drive.call("PATCH", f"{name}/Untitled.ipynb", {"path": f"{LIVE}/{name}/mine.ipynb"})
    assert status == 200
    notebook = drive.get(f"{name}/mine.ipynb", "?type=notebook&hash=1")
    cell = {"cell_type": "markdown", "id": "a", "metadata": {}, "source": "# hello"}
    notebook["content"]["cells"].append(cell)
    body = {"type": "notebook", "format": "json", "content": notebook["content"]}
    status, saved = drive.call("PUT", f"{name}/mine.ipynb", body)
    assert status == 200
    validate_model(saved)
    before = drive.get(f"{name}/mine.ipynb", "?content=0&hash=1")
    written = (here / "mine.ipynb").read_bytes()
    assert before["hash"] == hashlib.sha256(written).hexdigest()
    assert json.loads(written)["cells"][0]["source"] == ["# hello"]
    assert drive.call("GET", f"{name}/mine.ipynb/checkpoints") == (200, [])
    status, checkpoint = drive.call("POST", f"{name}/mine.ipynb/checkpoints")
    assert (status, sorted(checkpoint)) == (201, ["id", "last_modified"])
    assert drive.call("DELETE", f"{name}/mine.ipynb/checkpoints/none")[0] == 204
    status, answer = drive.call("POST", f"{name}/mine.ipynb/checkpoints/none")
    assert (status, answer["error"]["kind"]) == (400, "UsageError")


def test_names_are_made_up_without_replacing_anything(
    drive: Drive, place: tuple[str, Path]
) -> None:
    """Untitled files, folders and copies get the next free name."""
    name, here = place
    for expected in ("untitled.txt", "untitled1.txt"):
        status, model = drive.call("POST", name, {"type": "file", "ext": ".txt"})
        assert (status, model["name"]) == (201, expected)
    for expected in ("Untitled Folder", "Untitled Folder 1"):
        status, model = drive.call("POST", name, {"type": "directory"})
        assert (status, model["name"], model["type"]) == (201, expected, "directory")
    (here / "data.tar.gz").write_bytes(b"data")
    for expected in ("data-Copy1.tar.gz", "data-Copy2.tar.gz"):
        body = {"copy_from": f"{LIVE}/{name}/data.tar.gz"}
        status, model = drive.call("POST", name, body)
        assert (status, model["name"]) == (201, expected)
        assert (here / expected).read_bytes() == b"data"


def test_a_directory_is_deleted_with_what_is_in_it(drive: Drive, place: tuple[str, Path]) -> None:
    """As Jupyter's own files do; the folder of a sandbox itself cannot be deleted or renamed."""
    name, here = place
    (here / "sub" / "deeper").mkdir(parents=True)
    (here / "sub" / "deeper" / "file").touch()
    assert drive.call("DELETE", f"{name}/sub")[0] == 204
    assert list(here.iterdir()) == []
    for method, body in (("DELETE", None), ("PATCH", {"path": "another"})):
        status, answer = drive.call(method, "", body)
        assert (status, answer["error"]["kind"]) == (400, "UsageError")
    assert here.exists()


def test_a_rename_replaces_nothing(drive: Drive, place: tuple[str, Path]) -> None:
    """A name that is taken gives a conflict, and both files stay."""
    name, here = place
    (here / "one").write_text("1")
    (here / "two").write_text("2")
    status, answer = drive.call("PATCH", f"{name}/one", {"path": f"{LIVE}/{name}/two"})
    assert (status, answer["error"]["kind"]) == (409, "FileExistsInSandboxError")
    assert [(here / each).read_text() for each in ("one", "two")] == ["1", "2"]


# Uploads in chunks --------------------------------------------------------------------------------
def test_an_upload_in_chunks_has_its_name_after_the_last_one(
    drive: Drive, place: tuple[str, Path]
) -> None:
    """Before, nothing is under the final name and nothing is listed; then it is whole."""
    name, here = place
    data = os.urandom(5_500_000)
    chunks = [data[at : at + 1_000_000] for at in range(0, len(data), 1_000_000)]
    for number, chunk in enumerate(chunks[:-1], 1):
        status, model = drive.save(f"{name}/big.bin", chunk, chunk=number)
        assert status == 200, model
        validate_model(model)
        assert not (here / "big.bin").exists()
    assert drive.names(name) == set()
    status, model = drive.save(f"{name}/big.bin", chunks[-1], chunk=-1)
    assert status == 200
    assert model["size"] == len(data)
    assert (here / "big.bin").read_bytes() == data
    assert drive.names(name) == {"big.bin"}
    assert drive.leftovers(name) == []


def test_an_upload_that_is_broken_off_leaves_what_was_there(
    drive: Drive, place: tuple[str, Path]
) -> None:
    """A chunk out of order ends the upload: the old file stays, and no part of the new one."""
    name, here = place
    (here / "file").write_text("old")
    assert drive.save(f"{name}/file", b"new", chunk=1)[0] == 200
    status, answer = drive.save(f"{name}/file", b"new", chunk=3)
    assert (status, answer["error"]["kind"]) == (400, "UsageError")
    assert drive.leftovers(name) == []
    for chunk in (2, -1):
        status, answer = drive.save(f"{name}/file", b"new", chunk=chunk)
        assert status == 400
        assert "again" in answer["message"]
    assert (here / "file").read_text() == "old"
    assert drive.save(f"{name}/file", b"whole ", chunk=1)[0] == 200
    assert drive.save(f"{name}/file", b"again ", chunk=1)[0] == 200  # a page that reloaded
    assert drive.save(f"{name}/file", b"new", chunk=-1)[0] == 200
    assert (here / "file").read_text() == "again new"
    assert drive.leftovers(name) == []


# Downloads ----------------------------------------------------------------------------------------
def test_a_download_is_the_file_and_nothing_that_a_browser_runs(
    drive: Drive, place: tuple[str, Path]
) -> None:
    """Its length is told first; what is shown inline is confined to an origin of its own."""
    name, here = place
    data = os.urandom(3_000_001)
    (here / "page.html").write_bytes(data)
    status, headers, got = drive.download(f"{name}/page.html")
    assert (status, got == data) == (200, True)
    assert headers["Content-Length"] == str(len(data))
    assert headers["Content-Disposition"].startswith("attachment;")
    assert headers["X-Content-Type-Options"] == "nosniff"
    status, headers, got = drive.download(f"{name}/page.html", "?inline=1")
    assert (status, got == data) == (200, True)
    assert headers["Content-Disposition"].startswith("inline;")
    assert headers["Content-Type"] == "text/html"
    assert "sandbox allow-scripts" in headers["Content-Security-Policy"]
    status, headers, got = drive.download(f"{name}/page.html", method="HEAD")
    assert (status, headers["Content-Length"], got) == (200, str(len(data)), b"")
    (here / "empty").touch()
    status, headers, got = drive.download(f"{name}/empty")
    assert (status, headers["Content-Length"], got) == (200, "0", b"")
    status, headers, got = drive.download(f"{name}/nothing")
    assert status == 404
    assert json.loads(got)["error"]["kind"] == "NoSuchFileError"


def test_a_file_that_changes_breaks_its_download_off(drive: Drive, place: tuple[str, Path]) -> None:
    """What arrived is shorter than what was announced, so that no browser takes it for the file."""
    name, here = place
    large = here / "large"
    large.write_bytes(os.urandom(120_000_000))
    parts = urlsplit(drive.jupyter.url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
    try:
        connection.connect()
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        connection.request("GET", parts.path + drive.url(f"{name}/large", "files"), headers=OWN)
        answer = connection.getresponse()
        assert answer.status == 200
        answer.read(1000)
        large.write_bytes(b"another")
        with pytest.raises((http.client.IncompleteRead, ConnectionResetError)):
            answer.read()
    finally:
        connection.close()
        large.unlink()


# The manifest -------------------------------------------------------------------------------------
def test_listings_show_what_the_manifest_says(
    drive: Drive, place: tuple[str, Path], platform: RunningSandbox
) -> None:
    """A registered file has its kind beside its model, and is in the manifest."""
    name, here = place
    (here / "result.csv").write_text("a\n")
    (here / "other.csv").write_text("a\n")
    platform.tool(LIVE, "sandbox_export", path=f"{name}/result.csv")
    status, _, manifest = drive.jupyter.call("GET", f"ivy/manifest/{LIVE}")
    assert status == 200
    entry = next(each for each in manifest["entries"] if each["path"] == f"{name}/result.csv")
    assert sorted(entry) == ["created", "kind", "name", "origin", "path", "size_bytes"]
    assert entry["kind"]
    children = {child["name"]: child for child in drive.get(name)["content"]}
    assert children["result.csv"]["ivy"]["kind"] == entry["kind"]
    assert "ivy" not in children["other.csv"]


# A sandbox that is not active ---------------------------------------------------------------------
def test_the_drive_of_a_sandbox_that_sleeps_says_so_and_sends_nothing(
    jupyter: RunningJupyter, platform: RunningSandbox, chat_id: str, changed: Callable[..., None]
) -> None:
    """Every request gets a conflict in words; the platform hears of none, and nothing starts."""
    platform.ready(chat_id)
    changed(hibernate_seconds=0.5)
    until(lambda: platform.status(chat_id)["status"] != "active", "it sleeps", 30)
    jupyter.home.configure(
        {
            "chat_id": chat_id,
            "recoup_session_id": f"session-of-{chat_id}",
            "recoup_api_key": MARKED_KEY,
            "recoup_api_url": platform.url.removesuffix("/api"),
        }
    )
    until(lambda: jupyter.default()["status"]["state"] == "hibernated", "that is known", 30)
    asleep = Drive(jupyter, chat_id, platform.root / chat_id)
    before = asked(platform)
    text = {"type": "file", "format": "text", "content": "x"}
    for method, path, body in (
        ("GET", "", None),
        ("GET", "file", None),
        ("PUT", "file", text),
        ("PUT", "file", {**text, "chunk": 1}),
        ("POST", "", {"type": "file"}),
        ("PATCH", "file", {"path": f"{chat_id}/other"}),
        ("DELETE", "file", None),
    ):
        status, answer = asleep.call(method, path, body)
        assert (status, answer["error"]["kind"]) == (409, "NoSandboxError"), (method, answer)
        assert "sleeps; its files are kept" in answer["message"]
    assert asleep.download("file")[0] == 409
    status, _, answer = jupyter.call("GET", f"ivy/manifest/{chat_id}")
    assert (status, check_error(answer, "NoSandboxError")[:5]) == (409, "Chat ")
    status, _, root = jupyter.call("GET", "ivy/contents/")
    assert root["content"][0]["ivy"]["state"] == "hibernated"
    assert root["content"][0]["ivy"]["message"] == asleep.call("GET", "")[1]["message"]
    assert asked(platform) == before
    assert platform.status(chat_id)["status"] != "active"


def asked(platform: RunningSandbox) -> Json:
    """How often the platform was asked for what, but for the question itself."""
    requests: Json = platform.counters()["requests"]
    return {route: count for route, count in requests.items() if "_control" not in route}


@pytest.mark.parametrize("content", ["!!!!", "ab", "YQ==YQ", "ü"])
def test_content_that_is_no_base64_replaces_nothing(
    drive: Drive, place: tuple[str, Path], content: str
) -> None:
    """Python's decoder would pass over what it does not know; line ends are allowed."""
    name, here = place
    (here / "a.bin").write_bytes(b"mine")
    body = {"type": "file", "format": "base64", "content": content}
    status, answer = drive.call("PUT", f"{name}/a.bin", body)
    assert status == 400
    assert "base64" in answer["message"]
    assert (here / "a.bin").read_bytes() == b"mine"
    assert drive.call("PUT", f"{name}/a.bin", {**body, "content": "Y\nQ==\n"})[0] == 200
    assert (here / "a.bin").read_bytes() == b"a"


# Sending ------------------------------------------------------------------------------------------
def test_files_of_the_server_are_sent_into_the_sandbox(
    drive: Drive, place: tuple[str, Path]
) -> None:
    """A file and a directory arrive whole; what is there is replaced only on request."""
    name, here = place
    work = drive.jupyter.home.work
    (work / "folder" / "sub").mkdir(parents=True)
    (work / "folder" / "sub" / "a.txt").write_text("a")
    data = os.urandom(3_000_000)
    (work / "big file.bin").write_bytes(data)

    def send(path: str, **more: Any) -> tuple[int, Any]:
        body = {"path": path, "to": f"{LIVE}/{name}", **more}
        status, _, answer = drive.jupyter.call("POST", "ivy/send", body)
        return status, answer

    assert send("big file.bin") == (200, {"files": 1, "bytes": 3_000_000})
    assert (here / "big file.bin").read_bytes() == data
    assert send("folder") == (200, {"files": 1, "bytes": 1})
    assert (here / "folder" / "sub" / "a.txt").read_text() == "a"
    (work / "folder" / "sub" / "a.txt").write_text("b")
    status, answer = send("folder")
    assert status == 409
    assert "--" not in check_error(answer, "FileExistsInSandboxError"), "a page has no options"
    assert (here / "folder" / "sub" / "a.txt").read_text() == "a"
    assert send("folder", overwrite=True) == (200, {"files": 1, "bytes": 1})
    assert (here / "folder" / "sub" / "a.txt").read_text() == "b"
    _, _, listed = drive.jupyter.call("GET", "ivy/transfers")
    shown = {(each["name"], each["state"]) for each in listed["transfers"]}
    assert shown >= {("big file.bin", "done"), ("folder", "done"), ("folder", "failed")}


@pytest.mark.parametrize(
    "path", ["../secret", "/etc/passwd", "nothing", ".hidden", "a/../../secret"]
)
def test_only_what_the_server_shows_can_be_sent(drive: Drive, path: str) -> None:
    """Paths out of the server's root, and files that it hides, are not found."""
    work = drive.jupyter.home.work
    (work.parent / "secret").write_text("secret")
    (work / ".hidden").write_text("hidden")
    body = {"path": path, "to": LIVE}
    status, _, answer = drive.jupyter.call("POST", "ivy/send", body)
    assert status == 404
    check_error(answer, "NoSuchFileError")


def test_a_folder_is_sent_without_what_the_server_hides(
    drive: Drive, place: tuple[str, Path]
) -> None:
    """Hidden files and directories of a folder stay here, as its own listing leaves them out."""
    name, there = place
    top = drive.jupyter.home.work / "shown"
    for path in ("a.txt", "sub/b.txt", ".secret", ".keys/id", "sub/.secret"):
        (top / path).parent.mkdir(parents=True, exist_ok=True)
        (top / path).write_text("x")
    (top / "empty").mkdir()
    body = {"path": "shown", "to": f"{LIVE}/{name}"}
    status, _, answer = drive.jupyter.call("POST", "ivy/send", body)
    assert (status, answer) == (200, {"files": 2, "bytes": 2})
    found = {str(path.relative_to(there)) for path in there.rglob("*")}
    assert found == {"shown", "shown/a.txt", "shown/sub", "shown/sub/b.txt", "shown/empty"}


# Who may do what ----------------------------------------------------------------------------------
def test_the_drive_needs_both_rights_and_changes_none_of_jupyters(
    local_jupyter: RunningJupyter,
) -> None:
    """A drive needs "ivy" and "contents"; the server's own files need "contents" as before."""

    def status(path: str, refused: str) -> int:
        headers = {**OWN, "X-Refuse": refused}
        return local_jupyter.call("GET", path, headers=headers)[0]

    assert status("ivy/contents/", "nothing") == 200
    assert status("ivy/contents/", "read ivy") == 403
    assert status("ivy/contents/", "read contents") == 403
    assert status("api/contents/", "read ivy") == 200
    assert status("api/contents/", "read contents") == 403
    headers = {**OWN, "X-Refuse": "read contents"}
    body = {"path": "file", "to": "chat-of-a-flag"}
    assert local_jupyter.call("POST", "ivy/send", body, headers=headers)[0] == 403


def test_a_drive_that_is_looked_at_does_not_keep_an_idle_server_alive(drive: Drive) -> None:
    """Reading is no activity by which hubs and timeouts judge; saving is."""

    def last_activity() -> str:
        return str(drive.jupyter.call("GET", "api/status")[2]["last_activity"])

    before = last_activity()
    drive.get("")
    assert last_activity() == before
    drive.save("activity.txt", b"x")
    assert last_activity() > before
