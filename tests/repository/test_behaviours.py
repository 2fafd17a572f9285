"""The table of behaviours names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_test_that_the_table_of_behaviours_names_exists() -> None:
    """A name without a file belongs to the file named before it in the same row."""
    for line in (ROOT / "docs/behaviours.md").read_text("utf-8").splitlines():
        if not line.startswith("|"):
            continue
        path = None
        for file, name in re.findall(r"`((?:[\w-]+/)+(?:\w+\.py)?)?(?:::(\w+))?`", line):
            if file:
                path = ROOT / "tests" / file
                assert path.exists(), f"{path} in: {line}"
            if name:
                known = path or ROOT / "tests/kernel/test_kernel_interrupt.py"
                assert re.search(rf"def {name}\b", known.read_text("utf-8")), f"{name} in: {line}"
