"""Modules are named by the words of the glossary, and documents name files that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import ivy_kernel

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(ivy_kernel.__file__).parent
NOT_OURS = ("labextension", "static", "examples")
BANNED = {
    *("docket", "ladder", "portions", "grace", "keeper", "flights", "turn", "board", "shown"),
    *("meanings", "uses", "unnoticed", "endings", "carrier", "exchange"),
    *("utils", "helpers", "common", "manager"),
}
"""Private names of before, which told a reader nothing, and drawers for whatever is left over."""

DOCUMENTS = [
    *("CONTRIBUTING.md", "SECURITY.md", "docs/glossary.md", "docs/testing.md"),
    *("docs/architecture.md", "docs/agent-protocol.md"),
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs/decisions").glob("*.md")),
]


def module_names() -> set[str]:
    """The names of all modules and packages below ours, but ``__init__`` and its like."""
    paths = [path.relative_to(PACKAGE).with_suffix("") for path in PACKAGE.rglob("*.py")]
    ours = [path.parts for path in paths if path.parts[0] not in NOT_OURS]
    return {part for parts in ours for part in parts if not part.startswith("_")}


def listed_words() -> set[str]:
    """The words in the glossary's section "Names of modules"."""
    text = (ROOT / "docs/glossary.md").read_text("utf-8")
    return set(re.findall(r"`([a-z]+)`", text.split("## Names of modules\n")[1]))


@pytest.mark.parametrize("name", sorted(module_names()))
def test_a_module_is_named_by_words_of_the_glossary(name: str) -> None:
    """A new word is added there, with its meaning where it is one of our own."""
    words = set(name.split("_"))
    assert not words & BANNED
    assert words <= listed_words(), f"not in docs/glossary.md: {words - listed_words()}"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_files_and_tests_that_a_document_names_exist(document: str) -> None:
    """Modules below ``ivy_kernel/``, or below the package; tests by file and name."""
    for file, name in re.findall(
        r"`((?:[\w-]+/)+[\w-]+\.\w+)(?:::(\w+))?`", (ROOT / document).read_text("utf-8")
    ):
        found = [base / file for base in (ROOT, PACKAGE, ROOT / "tests") if (base / file).exists()]
        assert found, f"{file} is not there"
        if name:
            assert re.search(rf"def {name}\b", found[0].read_text("utf-8")), f"{file}::{name}"
