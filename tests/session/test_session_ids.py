"""The generated session id of each chat."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from ivy_kernel.session.open import session_id_for, session_ids_file


def test_an_id_is_made_once_per_chat_and_kept() -> None:
    """Every part of the product resolves the same sandbox, also tomorrow."""
    first = session_id_for("chat-1")
    assert uuid.UUID(first)
    assert session_id_for("chat-1") == first
    assert session_id_for("chat-2") != first
    assert session_id_for("é 🐍/..\n") == session_id_for("é 🐍/..\n")
    assert session_ids_file().parent.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "5", "null", '{"chat-1": 5}', '{"chat-1": ""}', "[" * 100_000, "\udcff"],
)
def test_a_broken_file_is_made_anew(content: str) -> None:
    """It costs the kept ids, and nothing else."""
    session_ids_file().parent.mkdir(parents=True)
    session_ids_file().write_bytes(content.encode("utf-8", "surrogateescape"))
    made = session_id_for("chat-1")
    assert uuid.UUID(made)
    assert session_id_for("chat-1") == made


def test_a_directory_that_cannot_be_written_costs_only_the_keeping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is an id all the same."""
    blocked = tmp_path / "data"
    blocked.write_text("a file, where a directory is needed")
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(blocked))
    assert uuid.UUID(session_id_for("chat-1"))


def test_programs_that_start_at_once_agree_and_lose_nothing() -> None:
    """Several processes, one chat in common and one each: one id for it, and all are kept."""
    code = (
        "import sys\nfrom ivy_kernel.session.open import session_id_for as s\n"
        "sys.stdin.readline()\n"
        "print(s('common'), s(sys.argv[1]))"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, f"own-{number}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=dict(os.environ),
            text=True,
        )
        for number in range(4)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    said = [process.communicate(timeout=60)[0].split() for process in processes]
    assert len({common for common, _ in said}) == 1
    for number, (_, own) in enumerate(said):
        assert session_id_for(f"own-{number}") == own
