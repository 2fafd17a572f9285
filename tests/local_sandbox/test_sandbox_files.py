"""The tools that work on files, and the manifest."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest
from sandbox_server import Json, RunningSandbox, running_sandbox, until

_PATH_TOOLS: list[tuple[str, Json]] = [
    ("sandbox_read", {}),
    ("sandbox_files", {}),
    ("sandbox_write", {"content": "x"}),
    ("sandbox_edit", {"old_string": "a", "new_string": "b"}),
    ("sandbox_grep", {"pattern": "a"}),
    ("sandbox_glob", {"pattern": "*"}),
    ("sandbox_export", {}),
]


@pytest.fixture(scope="module")
def files() -> tuple[RunningSandbox, Path]:
    """A server with a chat ``c`` that has some files, and the chat's directory."""
    with running_sandbox() as server:
        server.ready("c")
        directory = server.root / "c"
        (directory / "data").mkdir()
        (directory / "data" / "genes.txt").write_text("BRCA1\nTP53\nbrca2\n")
        (directory / "data" / "raw.bin").write_bytes(b"\0\xff\xfe BRCA1\n")
        (directory / "top.py").write_text("x = 1\nx = 2\n")
        (directory / "out").symlink_to("/etc")
        (directory / "data" / "link.txt").symlink_to("genes.txt")
        yield server, directory


def _call(server: RunningSandbox, tool: str, body: Json) -> tuple[int, Json]:
    status, _, answer = server.call("POST", f"/v1/sandbox/c/tool/{tool}", body)
    return status, answer


@pytest.mark.parametrize(("tool", "more"), _PATH_TOOLS)
@pytest.mark.parametrize(
    "path",
    [
        "../c/top.py",
        "data/../../x",
        "..",
        "/etc/passwd",
        "//etc/passwd",
        "out/passwd",
        "out",
        "data/link.txt",
        "a\0b",
        "\ud800",
    ],
)
def test_paths_that_lead_outside_are_400(
    files: tuple[RunningSandbox, Path], tool: str, more: Json, path: str
) -> None:
    """Parents, other absolute paths and symbolic links are refused by every tool."""
    status, answer = _call(files[0], tool, {**more, "path": path})
    assert (status, answer["code"]) == (400, "PATH_REFUSED")


@pytest.mark.parametrize(("tool", "more"), _PATH_TOOLS)
def test_a_path_must_be_a_string(files: tuple[RunningSandbox, Path], tool: str, more: Json) -> None:
    """Another type is 400 and names the parameter."""
    status, answer = _call(files[0], tool, {**more, "path": 7})
    assert (status, answer["code"]) == (400, "BAD_PARAMETERS")
    assert "'path'" in answer["error"]


@pytest.mark.parametrize(
    ("tool", "more"),
    [pair for pair in _PATH_TOOLS if pair[0] in ("sandbox_read", "sandbox_edit", "sandbox_export")],
)
def test_a_missing_file_is_a_tool_error(
    files: tuple[RunningSandbox, Path], tool: str, more: Json
) -> None:
    """It is a result with success false, not a status that would tell of a lost sandbox."""
    status, answer = _call(files[0], tool, {**more, "path": "data/nothing.txt"})
    assert (status, answer["success"], answer["code"]) == (200, False, "FILE_NOT_FOUND")


@pytest.mark.parametrize(
    ("tool", "more"),
    [
        pair
        for pair in _PATH_TOOLS
        if pair[0] not in ("sandbox_files", "sandbox_glob", "sandbox_grep")
    ],
)
@pytest.mark.parametrize("path", ["data", "", "pipe"])
def test_what_is_no_file_is_a_tool_error(
    files: tuple[RunningSandbox, Path], tool: str, more: Json, path: str
) -> None:
    """Directories and named pipes are neither read nor written, and nothing hangs."""
    server, directory = files
    if not (directory / "pipe").exists():
        os.mkfifo(directory / "pipe")
    status, answer = _call(server, tool, {**more, "path": path})
    assert (status, answer["success"]) == (200, False)


def test_text_is_read_in_parts(files: tuple[RunningSandbox, Path]) -> None:
    """Offset and limit count bytes, and truncated tells whether there is more."""
    server, _ = files
    whole = server.tool("c", "sandbox_read", path="data/genes.txt")
    assert whole["content"] == "BRCA1\nTP53\nbrca2\n"
    assert (whole["size"], whole["truncated"], whole["encoding"]) == (17, False, "utf-8")
    part = server.tool("c", "sandbox_read", path="data/genes.txt", offset=6, limit=4)
    assert (part["content"], part["truncated"]) == ("TP53", True)


def test_bytes_come_as_base64(files: tuple[RunningSandbox, Path]) -> None:
    """What is no text is read whole and unharmed."""
    server, directory = files
    result = server.tool("c", "sandbox_read", path="data/raw.bin")
    assert result["encoding"] == "base64"
    assert base64.b64decode(result["content"]) == (directory / "data" / "raw.bin").read_bytes()


def test_absolute_paths_inside_are_accepted(files: tuple[RunningSandbox, Path]) -> None:
    """A path that the code itself printed can be read."""
    server, directory = files
    result = server.tool("c", "sandbox_read", path=str(directory / "top.py"))
    assert result["content"] == "x = 1\nx = 2\n"


def test_writing_makes_directories_and_replaces_whole(
    files: tuple[RunningSandbox, Path],
) -> None:
    """New directories come into being, content is replaced or added to, modes are kept."""
    server, directory = files
    server.tool("c", "sandbox_write", path="new/deep/a.txt", content="one ä\n")
    target = directory / "new" / "deep" / "a.txt"
    target.chmod(0o750)
    server.tool("c", "sandbox_write", path="new/deep/a.txt", content="two\n")
    server.tool("c", "sandbox_write", path="new/deep/a.txt", content="three\n", append=True)
    assert target.read_text() == "two\nthree\n"
    assert target.stat().st_mode & 0o777 == 0o750
    data = base64.b64encode(b"\0\1").decode()
    server.tool("c", "sandbox_write", path="new/b.bin", content=data, encoding="base64")
    assert (directory / "new" / "b.bin").read_bytes() == b"\0\1"
    assert sorted(path.name for path in (directory / "new").iterdir()) == ["b.bin", "deep"]


@pytest.mark.parametrize(
    "body",
    [
        {"path": "x"},
        {"path": "x", "content": 1},
        {"path": "x", "content": "*", "encoding": "base64"},
        {"path": "x", "content": "a", "encoding": "latin-1"},
        {"path": "x", "content": "\ud800"},
        {"path": "x", "content": "a", "append": "yes"},
    ],
)
def test_wrong_parameters_of_write_are_400(files: tuple[RunningSandbox, Path], body: Json) -> None:
    """Nothing is written when a parameter is wrong."""
    server, directory = files
    status, answer = _call(server, "sandbox_write", body)
    assert (status, answer["code"]) == (400, "BAD_PARAMETERS")
    assert not (directory / "x").exists()


def test_editing_replaces_exactly_what_was_meant(files: tuple[RunningSandbox, Path]) -> None:
    """Once if it is there once, all if asked for, else an error and no change."""
    server, directory = files
    (directory / "edit.py").write_text("x = 1\ny = 2\ny = 2\n")
    edit = {"path": "edit.py", "old_string": "x = 1", "new_string": "x = 10"}
    assert server.tool("c", "sandbox_edit", edit)["replacements"] == 1
    ambiguous = {"path": "edit.py", "old_string": "y = 2", "new_string": "y = 3"}
    assert server.tool("c", "sandbox_edit", ambiguous)["code"] == "AMBIGUOUS"
    absent = {"path": "edit.py", "old_string": "z", "new_string": ""}
    assert server.tool("c", "sandbox_edit", absent)["code"] == "NOT_FOUND_IN_FILE"
    assert (directory / "edit.py").read_text() == "x = 10\ny = 2\ny = 2\n"
    both = server.tool("c", "sandbox_edit", {**ambiguous, "replace_all": True})
    assert both["replacements"] == 2
    assert (directory / "edit.py").read_text() == "x = 10\ny = 3\ny = 3\n"


def test_listing_tells_types_and_does_not_follow_links(
    files: tuple[RunningSandbox, Path],
) -> None:
    """Entries are sorted; a link is told as one and what it points to is not shown."""
    server, _ = files
    listed = server.tool("c", "sandbox_files", path="data")["files"]
    assert [(entry["path"], entry["type"]) for entry in listed] == [
        ("data/genes.txt", "file"),
        ("data/link.txt", "link"),
        ("data/raw.bin", "file"),
    ]
    everything = server.tool("c", "sandbox_files", recursive=True)["files"]
    paths = [entry["path"] for entry in everything]
    assert "data/genes.txt" in paths
    assert not any(path.startswith("out/") for path in paths)


def test_grep_finds_lines(files: tuple[RunningSandbox, Path]) -> None:
    """Regular expressions, a choice of files, case, a limit; binaries and links are left out."""
    server, _ = files
    found = server.tool("c", "sandbox_grep", pattern="^brca", path="data", ignore_case=True)
    assert [(m["path"], m["line"], m["text"]) for m in found["matches"]] == [
        ("data/genes.txt", 1, "BRCA1"),
        ("data/genes.txt", 3, "brca2"),
    ]
    chosen = server.tool("c", "sandbox_grep", pattern=".", glob="*.py", path="")
    assert {match["path"] for match in chosen["matches"]} >= {"top.py"}
    assert all(match["path"].endswith(".py") for match in chosen["matches"])
    limited = server.tool("c", "sandbox_grep", pattern=".", path="data/genes.txt", limit=2)
    assert (len(limited["matches"]), limited["truncated"]) == (2, True)
    assert server.tool("c", "sandbox_grep", pattern="(")["code"] == "BAD_PATTERN"


def test_a_pattern_that_takes_for_ever_is_504(files: tuple[RunningSandbox, Path]) -> None:
    """Catastrophic backtracking is killed when its time is up."""
    server, directory = files
    (directory / "slow.txt").write_text("a" * 60 + "\n")
    body = {"pattern": "(a+)+b", "path": "slow.txt", "timeout": 0.5}
    status, answer = _call(server, "sandbox_grep", body)
    assert (status, answer["code"]) == (504, "TOOL_TIMEOUT")


def test_glob_finds_paths(files: tuple[RunningSandbox, Path]) -> None:
    """One star stays in a directory, two go through all, links are left out."""
    server, directory = files
    (directory / "globs" / "a" / "b").mkdir(parents=True)
    for name in ("one.csv", "a/two.csv", "a/b/three.csv", "a/b/four[1].txt"):
        (directory / "globs" / name).touch()

    def glob(pattern: str, **more: object) -> list[str]:
        result = server.tool("c", "sandbox_glob", pattern=pattern, path="globs", **more)
        return [path.removeprefix("globs/") for path in result["paths"]]

    assert glob("*.csv") == ["one.csv"]
    assert glob("**/*.csv") == ["one.csv", "a/two.csv", "a/b/three.csv"]
    assert glob("a/*.csv") == ["a/two.csv"]
    assert glob("a/**") == ["a/two.csv", "a/b/four[1].txt", "a/b/three.csv"]
    assert glob("**/t?o.csv") == ["a/two.csv"]
    assert glob("**/[ot]*.csv") == ["one.csv", "a/two.csv", "a/b/three.csv"]
    assert glob("**/[!o]*.csv") == ["a/two.csv", "a/b/three.csv"]
    assert len(glob("**", limit=1)) == 1


def test_exported_files_are_in_the_manifest_oldest_first(server: RunningSandbox, chat: str) -> None:
    """Each entry says path, name, size, type and time; exporting again makes it the newest."""
    for name in ("a.csv", "b.png"):
        server.tool(chat, "sandbox_write", path=name, content="12345")
        server.tool(chat, "sandbox_export", path=name)
    server.tool(chat, "sandbox_export", path="a.csv", name="Table of genes")
    manifest = server.call("GET", f"/v1/sandbox/{chat}/manifest")[2]
    entries = manifest["files"]
    assert [(e["path"], e["name"]) for e in entries] == [
        ("b.png", "b.png"),
        ("a.csv", "Table of genes"),
    ]
    assert [(e["size"], e["mimeType"], e["source"]) for e in entries] == [
        (5, "image/png", "export"),
        (5, "text/csv", "export"),
    ]
    assert all(entry["createdAt"].endswith("Z") for entry in entries)


def test_a_chat_that_never_was_has_an_empty_manifest(server: RunningSandbox) -> None:
    """It is no error to ask."""
    status, _, body = server.call("GET", "/v1/sandbox/never-heard-of/manifest")
    assert (status, body) == (200, {"files": []})


def test_strange_chat_ids_get_directories_of_their_own(
    server: RunningSandbox, new_chat: Callable[[], str]
) -> None:
    """No id leads out of the root, and two ids never share a directory."""
    ids = ["../evil", "A", "a", "a b/c", ".state", "ä", "x" * 200]
    before = set(server.root.iterdir())
    for number, chat in enumerate(ids):
        server.create(chat, session_id=f"strange-{number}", campaign_id="k")
        path = f"/v1/sandbox/{quote(chat, safe='')}"

        def active(path: str = path) -> bool:
            return server.call("GET", f"{path}/status")[2]["status"] == "active"

        until(active, "it is active")
        body = {"path": "who.txt", "content": str(number)}
        assert server.call("POST", f"{path}/tool/sandbox_write", body)[0] == 200
        server.call("POST", f"{path}/terminate")
    made = set(server.root.iterdir()) - before
    contents = {(directory / "who.txt").read_text() for directory in made}
    assert contents == {str(number) for number in range(len(ids))}
