"""The commands about files, as cells and terminals run them: paths, words, what is refused."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import shlex
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kernel_driver import sandbox_variables
from sandbox_server import RunningSandbox
from waiting import eventually

from ivy_kernel.errors import (
    FileExistsInSandboxError,
    IvyError,
    NoSandboxError,
    NoSuchFileError,
    UsageError,
)
from ivy_kernel.magics import files as commands
from ivy_kernel.magics.commands import COMMANDS
from ivy_kernel.magics.options import FILE_ARGUMENTS, HelpAskedError, file_parser
from ivy_kernel.models import Message
from ivy_kernel.session import mirror, transfer
from ivy_kernel.session.open import open_session
from ivy_kernel.settings.live import LiveSettings


class Desk:
    """A caller of the commands: a directory here, a sandbox there, and what was shown.

    Parameters
    ----------
    directory
        What local paths are relative to.
    there
        The sandbox's working directory, which the tests may look into.
    """

    prefix = "%ivy"

    def __init__(self, directory: Path, there: Path) -> None:
        self.directory = directory
        self.there = there
        self.session = open_session(LiveSettings())
        self.stays_inside = False
        self.answer = True
        self.shown: list[str] = []
        self.warned: list[str] = []
        self.questions: list[str] = []
        self.progressed: list[tuple[str, float | None]] = []
        self.threads: set[str] = set()
        self.messages: list[Message] = []
        self.open_files = self.session.files

    async def prepare(self) -> None:
        """As a cell does."""
        await self.session.prepare(self.messages.append)

    async def confirm(self, question: str) -> bool:
        """Note the question."""
        self.questions.append(question)
        return self.answer

    def show(self, words: str, fraction: float | None = 2.0) -> None:
        """What stays, and as a view: progress."""
        if fraction == 2.0:
            self.shown.append(words)
        else:
            self.progressed.append((words, fraction))
            self.threads.add(threading.current_thread().name)

    def warn(self, text: str) -> None:
        """Note it."""
        self.warned.append(text)

    def progress(self) -> Desk:
        """The desk is its own view."""
        return self

    def clear(self) -> None:
        """Called when the progress is over."""

    async def run(self, line: str) -> str:
        """Run a line, and return what it has shown."""
        name, *words = shlex.split(line)
        options = file_parser(self.prefix, name, "").parse_line(words)
        self.shown.clear()
        self.warned.clear()
        await commands.run_file_command(options, self)
        return "\n".join(self.shown)

    def here(self, name: str, content: bytes | str = b"") -> Path:
        """Make a file on this machine."""
        return made(self.directory / name, content)

    def far(self, name: str, content: bytes | str = b"") -> Path:
        """Make a file in the sandbox."""
        return made(self.there / name, content)

    def names_there(self, name: str = "") -> set[str]:
        """All files of the sandbox below a directory, but the record of ``sync``."""
        top = self.there / name
        found = {str(one.relative_to(top)) for one in top.rglob("*") if not one.is_dir()}
        return found - {mirror.RECORD}


def made(path: Path, content: bytes | str) -> Path:
    """Make a file, with the directories above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.fixture(scope="module")
def chat(server: RunningSandbox, new_chat: Callable[[], str]) -> str:
    """A chat whose sandbox runs."""
    chat_id = new_chat()
    server.ready(chat_id)
    return chat_id


@pytest.fixture
async def desk(
    server: RunningSandbox, chat: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Desk]:
    """An empty directory here, and the sandbox with an empty working directory."""
    for name, value in sandbox_variables(server, chat).items():
        monkeypatch.setenv(name, value)
    there = server.root / chat
    for entry in sorted(there.rglob("*"), reverse=True):
        entry.rmdir() if entry.is_dir() and not entry.is_symlink() else entry.unlink()
    work = tmp_path / "work [1]"  # no pattern, though it looks like one
    work.mkdir()
    made = Desk(work, there)
    yield made
    await made.session.aclose()


# Listing ----------------------------------------------------------------------------------------
async def test_ls_lists_the_working_directory_a_path_and_a_pattern(desk: Desk) -> None:
    """Directories have a slash; -l adds size and time; -R goes below; --json is for scripts."""
    desk.far("a.csv", b"x" * 1500)
    desk.far("results/b.csv")
    desk.far("results/deep/c.csv")

    assert await desk.run("ls") == "a.csv\nresults/"
    assert await desk.run("ls results") == "b.csv\ndeep/"
    assert await desk.run("ls -R results") == "b.csv\ndeep/\ndeep/c.csv"
    assert await desk.run("ls '**/*.csv'") == "a.csv\nresults/b.csv\nresults/deep/c.csv"
    assert await desk.run("ls a.csv results") == "a.csv:\na.csv\nresults:\nb.csv\ndeep/"
    long = await desk.run("ls -l a.csv")
    assert re.fullmatch(r"   1\.5 kB  \d{4}-\d\d-\d\d \d\d:\d\d  a\.csv", long), long


async def test_names_that_a_terminal_would_obey_are_shown_harmlessly(desk: Desk) -> None:
    """Escapes and line ends in a name are made visible, by each command and in its question."""
    desk.far("a\x1b[31m\nb")
    desk.far("d\x1b[31m/c")
    assert await desk.run("ls") == "a\\x1b[31m\\x0ab\nd\\x1b[31m/"
    told = [await desk.run(line) for line in ("get 'a*'", "get -r 'd*'", "get -r '*' x/")]
    told += [await desk.run("put -r 'd*' e"), await desk.run("export 'd\x1b[31m/c'")]
    with pytest.raises(UsageError) as caught:
        await desk.run("rm 'd*'")
    desk.answer = False
    told += [str(caught.value), await desk.run("rm -r 'd*'"), *desk.questions, *desk.warned]
    assert "\x1b" not in "".join(told)
    assert "\n" not in "".join(told)


async def test_what_is_not_there_is_named_with_a_way_to_look(desk: Desk) -> None:
    """A path and a pattern."""
    for word in ("nowhere.csv", "*.nothing"):
        with pytest.raises(NoSuchFileError, match=re.escape(f"{word!r} in the sandbox; %ivy ls")):
            await desk.run(f"ls '{word}'")


# Getting ----------------------------------------------------------------------------------------
async def test_get_copies_as_cp_does(desk: Desk) -> None:
    """To its own name, to another one, into a directory, by a pattern, and with -r all below."""
    content = os.urandom(3000)
    desk.far("results/a.csv", content)
    desk.far("results/b.csv", "b")
    desk.far("results/deep/c.txt", "c")

    told = await desk.run("get results/a.csv")
    assert (desk.directory / "a.csv").read_bytes() == content
    assert told.startswith("Got results/a.csv → a.csv: 3.0 kB in ")
    assert hashlib.sha256(content).hexdigest() in told
    await desk.run("get results/a.csv other.csv")
    assert (desk.directory / "other.csv").read_bytes() == content
    told = await desk.run("get 'results/*.csv' data/")
    assert {one.name for one in (desk.directory / "data").iterdir()} == {"a.csv", "b.csv"}
    assert told.startswith("Got 2 files → data/: 3.0 kB in ")
    await desk.run("get -r results")
    assert (desk.directory / "results/deep/c.txt").read_text() == "c"
    await desk.run("get -r results")
    assert not (desk.directory / "results/results").exists(), "as one that goes on"
    with pytest.raises(UsageError, match="results is no file: add -r"):
        await desk.run("get results")
    (desk.there / "results/link").symlink_to("a.csv")
    await desk.run("get --force 'results/*' flat/")
    assert {one.name for one in (desk.directory / "flat").iterdir()} == {"a.csv", "b.csv"}


async def test_get_overwrites_only_with_force(desk: Desk) -> None:
    """An equal file is no obstacle; another one is, and stays as it is."""
    desk.far("a.csv", "new")
    desk.here("a.csv", "old")
    with pytest.raises(FileExistsInSandboxError, match="--force"):
        await desk.run("get a.csv")
    assert (desk.directory / "a.csv").read_text() == "old"
    await desk.run("get --force a.csv")
    assert (desk.directory / "a.csv").read_text() == "new"
    assert "equal already, nothing moved" in await desk.run("get a.csv")


async def test_two_sources_of_one_name_are_refused_before_anything_moves(desk: Desk) -> None:
    """The second would overwrite the first."""
    desk.far("one/a.csv", "1")
    desk.far("two/a.csv", "2")
    with pytest.raises(UsageError, match=r"called a\.csv"):
        await desk.run("get one/a.csv two/a.csv data/")
    assert not (desk.directory / "data/a.csv").exists()


# Putting ----------------------------------------------------------------------------------------
async def test_put_copies_as_cp_does(desk: Desk) -> None:
    """Several files and patterns into a directory, one to its name or another, -r for folders."""
    desk.here("a.csv", "a")
    desk.here("b.csv", "bb")
    desk.here("pkg/__init__.py", "")
    desk.here("pkg/sub/m.py", "x = 1")

    told = await desk.run("put a.csv")
    assert told.startswith("Put a.csv → a.csv: 1 B in ")
    assert "SHA-256" in told
    await desk.run("put a.csv other.csv")
    await desk.run("put a.csv b.csv inputs/")
    await desk.run("put '*.csv' more/")
    await desk.run("put -r pkg")
    await desk.run("put -r pkg")
    assert desk.names_there() == {
        *("a.csv", "other.csv", "inputs/a.csv", "inputs/b.csv", "more/a.csv", "more/b.csv"),
        *("pkg/__init__.py", "pkg/sub/m.py"),
    }
    assert (desk.there / "inputs/b.csv").read_text() == "bb"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("put nowhere.csv", "no file nowhere.csv"),
        ("put '*.nothing'", r"no file \*\.nothing"),
        ("put folder", "folder is a directory: add -r"),
        ("put a.csv b.csv taken", r"taken is no directory in the sandbox; taken/ makes it one"),
        ("put a.csv folder/a.csv data/", "Two sources are called a.csv"),
        ("put a.csv ../x", "leads out"),
        ("put a.csv /etc/x", "outside of the sandbox"),
        ("put pipe", "no regular file"),
        (f"put {'x' * 300}", "File name too long"),
        ("get a.csv", "There is no 'a.csv'"),
        ("rm .", "itself"),
        ("sync nowhere", "no folder nowhere"),
        ("sync a b c", "'c'"),
    ],
)
async def test_what_cannot_be_done_is_named_and_nothing_is_moved(
    desk: Desk, line: str, words: str
) -> None:
    """One sentence with the value and the fix."""
    for name in ("a.csv", "b.csv", "folder/a.csv"):
        desk.here(name, name)
    os.mkfifo(desk.directory / "pipe")
    desk.far("taken", "mine")
    with pytest.raises(IvyError, match=f"(?i){words}"):
        await desk.run(line)
    assert desk.names_there() == {"taken"}
    assert (desk.there / "taken").read_text() == "mine"


async def test_put_overwrites_only_with_force_and_tells_what_had_arrived(desk: Desk) -> None:
    """What came before the obstacle is there, and the same command skips it."""
    desk.here("a.csv", "new a")
    desk.here("b.csv", "new b")
    desk.far("b.csv", "old b")
    with pytest.raises(FileExistsInSandboxError, match="--force"):
        await desk.run("put a.csv b.csv ./")
    assert desk.warned == ["What arrived before that stays; the same command skips it."]
    assert (desk.there / "a.csv").read_text() == "new a"
    assert (desk.there / "b.csv").read_text() == "old b"
    await desk.run("put --force a.csv b.csv ./")
    assert (desk.there / "b.csv").read_text() == "new b"


async def test_a_cell_may_be_kept_inside_of_its_folder(desk: Desk) -> None:
    """With ``allow_local`` off nothing else here is read or written, by links neither."""
    made(desk.directory.parent / "secret.txt", "secret")
    (desk.directory / "link").symlink_to(desk.directory.parent)
    desk.far("a.csv", "a")
    desk.stays_inside = True
    for line in (
        *("put ../secret.txt", "put '../*.txt'", "put link/secret.txt", "sync .."),
        *("get a.csv ../", "get a.csv link/", "put ~/.bashrc"),
    ):
        with pytest.raises(UsageError, match="allow_local"):
            await desk.run(line)
    assert desk.names_there() == {"a.csv"}
    assert not (desk.directory.parent / "a.csv").exists()
    await desk.run("get a.csv")


async def test_files_of_one_directory_travel_together(desk: Desk, server: RunningSandbox) -> None:
    """A pattern with many small matches costs few calls, in both directions; -r takes the rest."""
    for number in range(40):
        desk.here(f"in/{number}.txt", str(number))
    desk.here("in/deep/x.txt", "x")
    (desk.directory / "in/link.txt").symlink_to("0.txt")
    before = server.counters()["calls"]["sandbox_python"]
    await desk.run("put -r 'in/*' data/")
    await desk.run("get -r 'data/*' out/")
    assert server.counters()["calls"]["sandbox_python"] - before < 30
    names = {*(f"{number}.txt" for number in range(40)), "deep/x.txt", "link.txt"}
    assert desk.names_there("data") == names
    out = desk.directory / "out"
    assert {str(one.relative_to(out)) for one in out.rglob("*") if one.is_file()} == names
    assert (out / "39.txt").read_text() == "39"
    assert not (desk.there / "data/link.txt").is_symlink()


# Progress and interrupts ------------------------------------------------------------------------
async def test_size_and_progress_are_told_and_an_interrupt_goes_on(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The size at once, then done, speed and time left; the command that is told goes on."""
    monkeypatch.setattr(commands, "LARGE_BYTES", 1_000_000)
    monkeypatch.setattr(commands, "QUIET_SECONDS", 0.0)
    content = os.urandom(40_000_000)
    desk.here("big data.bin", content)
    task = asyncio.ensure_future(desk.run("put 'big data.bin'"))

    def is_under_way() -> bool:
        return any(fraction and "/s" in words for words, fraction in desk.progressed)

    await eventually(is_under_way, "progress")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert desk.progressed[0][0].startswith("put big data.bin, 40.0 MB; the time")
    words = next(words for words, fraction in desk.progressed if fraction and "/s" in words)
    assert re.search(r"put big data.bin, .* of 40\.0 MB, .*/s, about .* left", words), words
    (warning,) = desk.warned
    match = re.search(r"^Interrupted at .* of 40\.0 MB\..*: %ivy (put 'big data\.bin')$", warning)
    assert match, warning
    assert "big data.bin" not in desk.names_there(), "no part under the final name"
    told = await desk.run(match[1])
    assert "; resumed at " in told, told
    assert (desk.there / "big data.bin").read_bytes() == content
    assert desk.names_there() == {"big data.bin"}, "the part is gone"


async def test_progress_is_shown_in_the_loops_own_thread(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cell's output belongs to the loop, though small files are written in other threads."""
    monkeypatch.setattr(commands, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(transfer, "PROGRESS_SECONDS", 0.0)
    for name in ("in/a.csv", "in/b.csv", "in/c.csv"):
        desk.far(name, name)
    await desk.run("get 'in/*'")
    assert desk.progressed
    assert desk.threads == {threading.current_thread().name}


async def test_small_transfers_show_no_progress(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A display that comes and goes at once would only flicker."""
    monkeypatch.setattr(commands, "QUIET_SECONDS", 60.0)
    desk.here("a.csv", "a")
    await desk.run("put a.csv")
    assert desk.progressed == []


# Removing and registering -----------------------------------------------------------------------
async def test_rm_asks_before_it_removes_a_directory(desk: Desk) -> None:
    """Files by pattern at once; a directory with -r, after a yes, or with --yes."""
    for name in ("a.tmp", "b.tmp", "c.csv", "d/e.csv", "d/f/g.csv"):
        desk.far(name)
    assert await desk.run("rm '*.tmp'") == "Removed 2 files from the sandbox."
    assert desk.questions == []
    with pytest.raises(UsageError, match="d is a directory: add -r"):
        await desk.run("rm d c.csv")
    desk.answer = False
    assert await desk.run("rm -r d") == "Nothing was removed."
    assert desk.questions == ["Remove the directory d with 2 files from the sandbox?"]
    assert desk.names_there() == {"c.csv", "d/e.csv", "d/f/g.csv"}
    assert await desk.run("rm -r --yes d") == "Removed 2 files from the sandbox."
    assert desk.names_there() == {"c.csv"}


async def test_export_registers_a_file(desk: Desk, server: RunningSandbox, chat: str) -> None:
    """It is in the manifest, under the name that was given."""
    desk.far("out/table.csv", "1")
    told = await desk.run("export out/table.csv --name result.csv")
    assert told.startswith("Registered out/table.csv for the chat as result.csv")
    _, _, manifest = server.call("GET", f"/v1/sandbox/{chat}/manifest")
    assert "result.csv" in {entry["name"] for entry in manifest["files"]}


# What is started --------------------------------------------------------------------------------
async def test_only_put_and_sync_start_a_sandbox(
    desk: Desk, server: RunningSandbox, new_chat: Callable[[], str], monkeypatch: Any
) -> None:
    """The others name the command that does; and a name that is mistyped starts nothing."""
    chat_id = new_chat()
    monkeypatch.setenv("IVY_CHAT_ID", chat_id)
    other = Desk(desk.directory, server.root / chat_id)
    other.here("a.csv", "a")
    for line in ("ls", "get a.csv", "rm a.csv", "export a.csv"):
        with pytest.raises(NoSandboxError, match="%ivy create"):
            await other.run(line)
    with pytest.raises(UsageError):
        await other.run("put nowhere.csv")
    assert server.status(chat_id)["status"] == "none"
    await other.run("put a.csv")
    assert other.names_there() == {"a.csv"}
    await other.session.aclose()


async def test_put_honours_auto_create(
    desk: Desk, server: RunningSandbox, new_chat: Callable[[], str], monkeypatch: Any
) -> None:
    """Where it is off, nothing is started."""
    chat_id = new_chat()
    monkeypatch.setenv("IVY_CHAT_ID", chat_id)
    monkeypatch.setenv("IVY_AUTO_CREATE", "false")
    other = Desk(desk.directory, server.root / chat_id)
    other.here("a.csv", "a")
    with pytest.raises(NoSandboxError, match="auto_create"):
        await other.run("put a.csv")
    assert server.status(chat_id)["status"] == "none"
    await other.session.aclose()


# A folder that is mirrored ----------------------------------------------------------------------
async def test_sync_sends_what_has_changed_and_removes_what_it_has_put(desk: Desk) -> None:
    """One line tells it; a file of others stays, and so does what was changed there."""
    for name in ("src/a.py", "src/b.py", "src/sub/c.py", "src/.git/x", "src/__pycache__/y"):
        desk.here(name, name)
    told = await desk.run("sync src")
    assert told.startswith("Synced src → src: 3 added, 0 changed, 0 removed, 0 unchanged; "), told
    assert told.endswith("; left out: .git, __pycache__")
    assert desk.names_there("src") == {"a.py", "b.py", "sub/c.py"}
    assert "0 added, 0 changed, 0 removed, 3 unchanged" in await desk.run("sync src")

    desk.here("src/a.py", "changed")
    (desk.directory / "src/sub/c.py").unlink()
    desk.far("src/others.txt", "not ours")
    told = await desk.run("sync src")
    assert "0 added, 1 changed, 1 removed, 1 unchanged" in told
    assert desk.names_there("src") == {"a.py", "b.py", "others.txt"}
    assert not (desk.there / "src/sub").exists(), "an empty one can be imported"
    assert (desk.there / "src/a.py").read_text() == "changed"


async def test_sync_loses_no_work_that_was_done_in_the_sandbox(desk: Desk) -> None:
    """What was changed there, or is there already, stays and is named; --force replaces it."""
    desk.here("src/a.py", "1")
    desk.here("src/gone.py", "1")
    desk.far("src/b.py", "theirs")
    await desk.run("sync src")
    desk.far("src/a.py", "edited there")
    desk.far("src/gone.py", "edited there")
    desk.here("src/a.py", "2")
    desk.here("src/b.py", "ours")
    (desk.directory / "src/gone.py").unlink()
    told = await desk.run("sync src")
    assert "0 added, 0 changed, 0 removed, 0 unchanged" in told
    assert "a.py, b.py, gone.py; --force replaces them" in told
    assert (desk.there / "src/a.py").read_text() == "edited there"
    assert (desk.there / "src/b.py").read_text() == "theirs"
    assert "2 changed, 1 removed" in await desk.run("sync --force src")
    assert desk.names_there("src") == {"a.py", "b.py"}
    assert (desk.there / "src/b.py").read_text() == "ours"


async def test_sync_needs_no_record_and_no_times(desk: Desk) -> None:
    """A lost or forged record costs a comparison; times that a resume has changed, too."""
    desk.here("src/a.py", "1")
    await desk.run("sync src")
    path = desk.there / "src" / mirror.RECORD
    (key,) = json.loads(path.read_text())
    forged = [f'{{"{key}": {{"a.py": [{size}, "", 1]}}}}' for size in ("Infinity", "1e999", "{}")]
    for record in (None, "[1]", "{", '{"x": 3}', "[" * 100_000, *forged):
        path.unlink() if record is None else path.write_text(record)
        assert "1 unchanged" in await desk.run("sync src")
    os.utime(desk.there / "src/a.py", (1, 1))
    desk.here("src/a.py", "2")
    assert "1 changed" in await desk.run("sync src")


async def test_sync_takes_no_directory_for_a_file_that_it_has_put(desk: Desk) -> None:
    """Where code in the sandbox has made one of that name, it stays when the file goes here."""
    file = desk.here("src/a", "1")
    desk.here("src/b", "1")
    await desk.run("sync src")
    file.unlink()
    (desk.there / "src/a").unlink()
    desk.far("src/a/inside", "mine")
    assert "stayed 1 file" in await desk.run("sync src")
    assert "stayed 1 file" in await desk.run("sync --force src")
    assert (desk.there / "src/a/inside").read_text() == "mine"


async def test_a_directory_that_cannot_be_read_is_told_and_its_mirror_stays(desk: Desk) -> None:
    """``sync`` would remove there what it does not see here; ``put`` says what it leaves out."""
    desk.here("src/a", "1")
    desk.here("src/sub/b", "1")
    await desk.run("sync src")
    with unreadable(desk.directory / "src/sub"):
        with pytest.raises(UsageError, match=r"src/sub cannot be read: Permission denied"):
            await desk.run("sync src")
        assert "left out: sub: Permission denied" in await desk.run("put -r src other")
    assert desk.names_there("src") == {"a", "sub/b"}
    assert desk.names_there("other") == {"a"}


@contextmanager
def unreadable(path: Path) -> Iterator[None]:
    """Take the right to read a directory, from root too."""
    user, mode = os.geteuid(), path.stat().st_mode
    path.chmod(0)
    if user == 0:
        for one in (path.parent, *path.parent.parents):
            if one.stat().st_mode & 0o055 != 0o055:
                one.chmod(one.stat().st_mode | 0o055)
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)
        path.chmod(mode)


async def test_two_folders_into_one_directory_leave_each_others_files(desk: Desk) -> None:
    """What the other has put there is not what this one removes."""
    desk.here("one/a.py", "1")
    desk.here("two/b.py", "1")
    await desk.run("sync one lib")
    await desk.run("sync two lib")
    assert "1 unchanged" in await desk.run("sync one lib")
    assert desk.names_there("lib") == {"a.py", "b.py"}


async def test_sync_follows_no_link_and_reads_no_pipe(desk: Desk) -> None:
    """They are named as left out."""
    made(desk.directory / "secret.txt", "secret")
    desk.here("src/a.py", "1")
    (desk.directory / "src/out").symlink_to("../secret.txt")
    (desk.directory / "src/up").symlink_to("..")
    os.mkfifo(desk.directory / "src/pipe")
    told = await desk.run("sync src")
    assert desk.names_there("src") == {"a.py"}
    for name in ("out (a link)", "up (a link)", "pipe (no regular file)"):
        assert name in told, told


async def test_sync_refuses_a_large_folder_without_force(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be compared at each run; the sentence says the limit and two ways."""
    monkeypatch.setattr(mirror, "LIMIT_FILES", 2)
    for name in ("src/a", "src/b", "src/c"):
        desk.here(name, name)
    with pytest.raises(UsageError, match=r"more than 2 files or 100 MB.*put -r.*--force"):
        await desk.run("sync src")
    assert desk.names_there() == set()
    assert "3 added" in await desk.run("sync --force src")


# Words ------------------------------------------------------------------------------------------
def test_every_command_is_in_both_tables() -> None:
    """A command without a row would be found by one of cell and terminal only."""
    assert set(FILE_ARGUMENTS) <= set(COMMANDS)
    for name in FILE_ARGUMENTS:
        with pytest.raises(HelpAskedError, match=f"usage: %ivy {name} "):
            COMMANDS[name].parser(name).parse_line(["--help"])
