"""Private JSON files: whole or not at all, and of no use to other users."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from ivy_kernel.session.private_file import read_json, write_json


def test_a_file_is_replaced_whole_and_is_private(tmp_path: Path) -> None:
    """What was written is what is read, with mode 0600, and nothing else is left."""
    path = tmp_path / "a.json"
    write_json(path, {"é": 1})
    write_json(path, {"é": 2}, indent=1)
    assert read_json(path) == {"é": 2}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    """Neither a part of the new file nor a change of what is there."""
    path = tmp_path / "a.json"
    (path / "inside").mkdir(parents=True)
    with pytest.raises(OSError, match=r"a\.json"):
        write_json(path, {})
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_others_could_have_made_is_not_read(tmp_path: Path) -> None:
    """Neither one that they can read, nor a link, nor one that is too large."""
    path, link = tmp_path / "a.json", tmp_path / "b.json"
    write_json(path, [1, 2, 3])
    link.symlink_to(path)
    with pytest.raises(PermissionError):
        read_json(link)
    with pytest.raises(OSError, match=r"a\.json"):
        read_json(path, limit_bytes=5)
    path.chmod(0o640)
    with pytest.raises(PermissionError):
        read_json(path)
