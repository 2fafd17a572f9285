"""The sandbox's files: looked at, read, written and moved about, whatever they are called."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sandbox_files import files_of
from sandbox_server import RunningSandbox

from ivy_kernel.errors import (
    FileExistsInSandboxError,
    IvyError,
    NoSandboxError,
    NoSuchFileError,
    RefusedPathError,
    SandboxFileError,
    UsageError,
)
from ivy_kernel.session.files import SandboxFiles
from ivy_kernel.session.local_files import LocalDirectory

CHAT = "files"


def names_in(place: Path) -> list[str]:
    """The names in a directory, odd ones too."""
    return [path.name for path in place.iterdir()]


@pytest.fixture(scope="module")
def workspace(server: RunningSandbox) -> Path:
    """The directory of the chat that this module uses."""
    server.ready(CHAT)
    return server.root / CHAT


@pytest.fixture
async def files(server: RunningSandbox, workspace: Path) -> AsyncIterator[SandboxFiles]:
    """The files of that chat."""
    opened = files_of(server, CHAT)
    yield opened
    await opened.aclose()


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Path]:
    """A directory that nothing may touch; it is compared at the end."""
    place = tmp_path / "outside"
    place.mkdir()
    (place / "secret").write_text("secret")
    yield place
    assert sorted(names_in(place)) == ["secret"]
    assert (place / "secret").read_text() == "secret"


async def test_a_written_file_is_read_listed_and_found(
    files: SandboxFiles, workspace: Path
) -> None:
    """What was written is there under its name, with its size, and comes back byte by byte."""
    data = bytes(range(256)) * 5
    entry = await files.write("dir/sub/data.bin", data)
    assert (entry.path, entry.kind, entry.size_bytes) == ("dir/sub/data.bin", "file", 1280)
    assert (workspace / "dir/sub/data.bin").read_bytes() == data
    assert await files.read("dir/sub/data.bin") == data
    assert await files.read("dir/sub/data.bin", offset_bytes=10, limit_bytes=5) == data[10:15]
    listing = await files.list("dir")
    assert [(each.path, each.kind) for each in listing.entries] == [("dir/sub", "directory")]
    assert [each.path for each in (await files.glob("dir/**/*.bin")).entries] == [entry.path]
    assert "Python" in files.method


async def test_nothing_is_overwritten_unless_told(files: SandboxFiles, workspace: Path) -> None:
    """A name that is taken is an error that names it, and the content stays."""
    await files.write("taken", b"first")
    with pytest.raises(FileExistsInSandboxError, match=r"taken.*--force"):
        await files.write("taken", b"second")
    assert (workspace / "taken").read_bytes() == b"first"
    (workspace / "taken").chmod(0o640)
    await files.write("taken", b"third", overwrite=True)
    assert (workspace / "taken").read_bytes() == b"third"
    assert (workspace / "taken").stat().st_mode & 0o777 == 0o640


async def test_files_are_renamed_copied_and_removed(files: SandboxFiles, workspace: Path) -> None:
    """Each does what it says, and none of them takes the place of another file."""
    await files.make_directory("moves/deep")
    await files.write("moves/a", b"a")
    await files.write("moves/b", b"b")
    with pytest.raises(FileExistsInSandboxError):
        await files.rename("moves/a", "moves/b")
    with pytest.raises(FileExistsInSandboxError):
        await files.copy("moves/a", "moves/b")
    assert (workspace / "moves/b").read_bytes() == b"b"
    assert (await files.copy("moves/a", "moves/c")).size_bytes == 1
    assert (await files.rename("moves/a", "moves/deep/d")).path == "moves/deep/d"
    with pytest.raises(SandboxFileError, match="not empty"):
        await files.remove("moves")
    with pytest.raises(RefusedPathError, match="into itself"):
        await files.rename("moves", "moves/deep/moves")
    assert await files.remove("moves", recursive=True) == 3
    with pytest.raises(NoSuchFileError, match="moves"):
        await files.stat("moves")


async def test_the_platforms_list_names_what_was_exported(files: SandboxFiles) -> None:
    """An exported file is in the manifest, with kind, size and time."""
    await files.write("result.csv", b"a,b\n")
    await files.export("result.csv", "The result")
    (entry,) = [each for each in await files.manifest() if each.path == "result.csv"]
    assert (entry.name, entry.kind, entry.size_bytes) == ("The result", "export", 4)
    assert entry.created is not None


async def test_no_sandbox_is_started_or_woken(server: RunningSandbox) -> None:
    """Without an active sandbox every call is refused with what to do, and none is made."""
    files = files_of(server, "never-created")
    with pytest.raises(NoSandboxError, match="%ivy create"):
        await files.list()
    assert server.status("never-created")["status"] == "none"
    await files.aclose()


# The hostile names and paths: what a name is, and what becomes of it.
OUTSIDE = [
    "../outside",
    "a/../../outside",
    "..",
    "/etc/passwd",
    "/",
    "//etc/passwd",
    "/proc/self/environ",
    "./../x",
    "a/b/../../../x",
    "nul\0byte",
    "\ud800surrogate",
    "n" * 256,
    "deep/" + "ä" * 128,
    "",
    ".",
]
INSIDE = [
    "new\nline",
    "tab\tand\rreturn",
    "caf\u00e9",  # NFC
    "cafe\u0301",  # NFD
    "Case",
    "case",
    "n" * 255,
    "ä" * 127,
    " leading and trailing ",
    "-rf",
    "--",
    "*",
    "$(touch pwned)",
    "`touch pwned`",
    "; touch pwned",
    "'quote\"s'",
    "back\\slash",
    "percent%s%d{}",
    "...",
    ".hidden",
    "\u202eright-to-left",
    "\x1b[31mred",
    "emoji \U0001f9ec",
    "odd\udcffbyte",
    "CON",
    "a:b",
]


@pytest.mark.parametrize("path", OUTSIDE, ids=ascii)
async def test_a_path_that_leads_out_is_refused(
    path: str, files: SandboxFiles, tmp_path: Path
) -> None:
    """No operation takes it, and nothing is made anywhere."""
    source = tmp_path / "source"
    source.write_bytes(b"x")
    tries: list[Callable[[], object]] = [
        lambda: files.write(path, b"x"),
        lambda: files.read(path),
        lambda: files.rename("nothing", path),
        lambda: files.remove(path, recursive=True),
    ]
    if path not in ("", "."):  # there the file goes below the root, by its own name
        tries += [lambda: files.stat(path), lambda: files.put(source, path)] * (path != "/")
    for work in tries:
        with pytest.raises(RefusedPathError):
            await work()  # type: ignore[misc]  # each is a coroutine


async def test_names_of_all_kinds_travel_there_and_back(
    files: SandboxFiles, workspace: Path, tmp_path: Path
) -> None:
    """Odd names are kept byte by byte in both directions, and are never taken for commands."""
    there, source, back = workspace / "odd", tmp_path / "source", tmp_path / "back"
    source.mkdir()
    for number, name in enumerate(INSIDE):
        (source / name).write_bytes(b"%d" % number)
    result = await files.put(source, "odd", recursive=True)
    assert result.files == len(INSIDE)
    assert {name: (there / name).read_bytes() for name in names_in(there)} == {
        name: b"%d" % number for number, name in enumerate(INSIDE)
    }
    listing = await files.list("odd")
    assert sorted(each.name for each in listing.entries) == sorted(INSIDE)
    await files.get("odd", back, recursive=True)
    assert {name: (back / name).read_bytes() for name in names_in(back)} == {
        name: b"%d" % number for number, name in enumerate(INSIDE)
    }
    for name in INSIDE:
        assert await files.read(f"odd/{name}") == (source / name).read_bytes()
    assert await files.remove("odd", recursive=True) == len(INSIDE)
    assert not (workspace / "pwned").exists()


def special_files(place: Path, outside: Path) -> list[str]:
    """Make what is no regular file; return the names."""
    (place / "link").symlink_to(outside / "secret")
    (place / "linkdir").symlink_to(outside)
    (place / "up").symlink_to("..")
    (place / "loop").symlink_to("loop")
    (place / "dangling").symlink_to(outside / "new")
    os.mkfifo(place / "fifo")
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as bound:
        here = Path.cwd()
        os.chdir(place)  # the name of a socket has little room
        try:
            bound.bind("socket")
        finally:
            os.chdir(here)
    return ["link", "linkdir", "up", "loop", "dangling", "fifo", "socket"]


async def test_links_pipes_and_sockets_in_the_sandbox_are_left_alone(
    files: SandboxFiles, workspace: Path, tmp_path: Path, outside: Path
) -> None:
    """They are listed as what they are; none is read, written, followed, or waited for."""
    place = workspace / "special"
    place.mkdir()
    names = special_files(place, outside)
    (place / "real").write_text("real")
    kinds = {each.name: each.kind for each in (await files.list("special")).entries}
    assert kinds == {
        **dict.fromkeys(names[:5], "link"),
        **dict.fromkeys(names[5:], "other"),
        "real": "file",
    }
    for name in names:
        for work in (
            files.read(f"special/{name}"),
            files.get(f"special/{name}", tmp_path / "got"),
            files.write(f"special/{name}", b"x", overwrite=True),
        ):
            with pytest.raises(IvyError, match=name):
                await work
    for path in ("special/linkdir/secret", "special/linkdir/new", "special/up/x"):
        for work in (files.read(path), files.write(path, b"x", overwrite=True), files.stat(path)):
            with pytest.raises(RefusedPathError, match="symbolic link"):
                await work
    result = await files.get("special", tmp_path / "got", recursive=True)
    assert names_in(tmp_path / "got") == ["real"]
    assert len(result.left_out) == len(names)
    assert await files.remove("special", recursive=True) == len(names) + 1


async def test_links_pipes_and_sockets_here_are_not_sent(
    files: SandboxFiles, workspace: Path, tmp_path: Path, outside: Path
) -> None:
    """A directory goes without them, which is told; a device or pipe by itself is refused."""
    source = tmp_path / "source"
    source.mkdir()
    names = special_files(source, outside)
    (source / "real").write_text("real")
    result = await files.put(source, "sent", recursive=True)
    assert names_in(workspace / "sent") == ["real"]
    assert len(result.left_out) == len(names)
    for path in (source / "fifo", Path("/dev/zero"), source / "absent"):
        with pytest.raises(UsageError, match=path.name):
            await files.put(path, "sent/device")


async def test_links_on_the_way_here_are_not_followed(
    files: SandboxFiles, tmp_path: Path, outside: Path
) -> None:
    """What the sandbox names goes below the chosen directory, or nowhere."""
    await files.write("tree/sub/secret", b"new")
    await files.write("tree/link", b"new")
    target = tmp_path / "target"
    target.mkdir()
    (target / "sub").symlink_to(outside)
    with pytest.raises(RefusedPathError, match="sub"):
        await files.get("tree", target, recursive=True, overwrite=True)
    (target / "sub").unlink()
    (target / "link").symlink_to(outside / "secret")
    with pytest.raises(RefusedPathError, match="link"):
        await files.get("tree", target, recursive=True, overwrite=True)


async def test_a_thousand_small_files_take_few_calls(
    files: SandboxFiles, server: RunningSandbox, tmp_path: Path
) -> None:
    """They travel packed, in both directions, and a second time nothing is moved."""
    source = tmp_path / "many"
    for number in range(1000):
        path = source / f"d{number % 7}" / str(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(number) * 30)
    before = server.counters()["calls"]["sandbox_python"]
    first = await files.put(source, "many", recursive=True)
    again = await files.put(source, "many", recursive=True)
    back = await files.get("many", tmp_path / "back", recursive=True)
    assert (first.files, first.skipped) == (again.files, back.files - 1000) == (1000, 0)
    assert (again.skipped, again.sent_bytes) == (1000, 0)
    for path in source.rglob("*"):
        if path.is_file():
            assert (tmp_path / "back" / path.relative_to(source)).read_bytes() == path.read_bytes()
    assert server.counters()["calls"]["sandbox_python"] - before < 30


async def test_a_listing_of_ten_thousand_entries_is_one_call(
    files: SandboxFiles, workspace: Path, server: RunningSandbox
) -> None:
    """More than were asked for are told as such."""
    place = workspace / "crowd"
    place.mkdir()
    for number in range(10_001):
        (place / f"{number:05}").touch()
    before = server.counters()["calls"]["sandbox_python"]
    listing = await files.list("crowd")
    assert len(listing.entries) == 10_000
    assert listing.is_truncated
    assert not (await files.list("crowd", limit=10_001)).is_truncated
    assert server.counters()["calls"]["sandbox_python"] - before <= 3


async def test_pieces_in_any_order_become_one_file(files: SandboxFiles, workspace: Path) -> None:
    """The name is given when all has arrived; what is given up leaves nothing."""
    handle = await files.open_upload("pieces", 30)
    await handle.write_at(10, b"b" * 20)
    await handle.write_at(0, b"a" * 10)
    assert not (workspace / "pieces").exists()
    assert (await handle.finish()).size_bytes == 30
    assert (workspace / "pieces").read_bytes() == b"a" * 10 + b"b" * 20
    gone = await files.open_upload("given-up", None)
    await gone.write_at(0, b"x")
    await gone.abandon()
    assert [each for each in names_in(workspace) if "part" in each or "given" in each] == []


async def test_two_uploads_at_once_leave_one_whole_file(
    files: SandboxFiles, workspace: Path
) -> None:
    """Of many that write one name, one wins and the others are told; nothing is mixed."""
    ends = await asyncio.gather(
        *(files.write("race", bytes([65 + each]) * 1000) for each in range(6)),
        return_exceptions=True,
    )
    refused = [end for end in ends if isinstance(end, FileExistsInSandboxError)]
    assert len(refused) == 5
    assert len(set((workspace / "race").read_bytes())) == 1


async def test_names_that_are_one_here_are_refused(
    files: SandboxFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the file system takes two names for one, that is said, and nothing is brought."""
    for name in ("README", "readme"):
        await files.write(f"twins/{name}", name.encode())
    both = await files.get("twins", tmp_path / "both", recursive=True)
    assert both.files == 2
    # This machine's file system tells them apart: as one that does not, any name is there.
    monkeypatch.setattr("os.stat", lambda *_, **__: None)
    sentence = r"README.*readme.*rename"
    with LocalDirectory(tmp_path / "1") as place, pytest.raises(RefusedPathError, match=sentence):
        place.refuse_twins(["a", "README", "readme"])


async def test_a_full_disk_in_the_sandbox_is_told(
    files: SandboxFiles, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What does not fit is not begun, and the sentence says what to do."""
    source = tmp_path / "large"
    source.write_bytes(b"x" * 1_000_000)
    access = (await files._ready()).access
    begin = access.begin

    async def nearly_full(*arguments: object, **more: object) -> object:
        return replace(await begin(*arguments, **more), free_bytes=1000)  # type: ignore[arg-type]  # as given

    monkeypatch.setattr(access, "begin", nearly_full)
    with pytest.raises(SandboxFileError, match=r"room for 1000 bytes.*remove files"):
        await files.put(source, "does-not-fit")
    assert not [name for name in names_in(workspace) if "fit" in name or name.endswith(".part")]


def test_a_file_gets_the_mode_of_new_ones_while_other_threads_make_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process's umask is read, not set for a moment: two threads at once would leave it so."""
    if not Path("/proc/self/status").exists():
        pytest.skip("only there can it be read")
    beside = tmp_path / "beside"
    beside.touch()
    monkeypatch.setattr(os, "umask", lambda mask: pytest.fail("it was set"))
    with LocalDirectory(tmp_path) as place, place.target((), "a") as here:
        os.close(here.open_part("part"))
        here.finish("part", overwrite=False)
    assert (tmp_path / "a").stat().st_mode == beside.stat().st_mode


def test_a_name_is_free_again_where_a_file_could_not_be_given_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without hard links the name is reserved first; no empty file stays under it."""

    def fails(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "link", fails)
    monkeypatch.setattr(os, "rename", fails)
    with LocalDirectory(tmp_path) as place, place.target((), "a") as here:
        os.close(here.open_part("part"))
        with pytest.raises(SandboxFileError, match="Input/output error"):
            here.finish("part", overwrite=False)
    assert [path.name for path in tmp_path.iterdir()] == ["part"]
