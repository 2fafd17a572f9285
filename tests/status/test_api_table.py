"""The table in ``docs/api.md``: complete, and true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")

STATUS = "Ivy: `GET /v1/sandbox/{chatId}/status`"
CREATE = "Ivy: `POST /v1/sandbox/create`"
TOOL = "Ivy: `POST /v1/sandbox/{chatId}/tool/{toolName}`"
RECOUP = "Recoup: `GET /api/sandbox/status`"

PHASES = [f"`phase` = `{word}`" for word in ("compute", "mount", "ready", "failed")]
DOCUMENTED: dict[str, list[str]] = {
    STATUS: [
        "`chatId`",
        *[f"`status` = `{word}`" for word in ("none", "provisioning", "active", "failed")],
        *PHASES,
        *["`etaSeconds`", "`errorMessage`", "`createdAt`"],
        *["200", "401", "403", "429"],
    ],
    CREATE: [
        *["`sessionId`", "`chatId`", "`campaignId`"],
        *[f"`status` = `{word}`" for word in ("provisioning", "creating", "active", "ready")],
        *PHASES,
        *["`etaSeconds`", "`success`", "`deduped`", "`sandboxId`", "`tunnelUrl`"],
        *["200", "202", "400", "401", "403", "429", "500", "503"],
    ],
    TOOL: [
        *["`chatId`", "`toolName`", "`timeout`"],
        *["200", "400", "401", "403", "404", "429", "502", "503", "504"],
    ],
    "Ivy: `POST /v1/sandbox/{chatId}/exec`": ["`chatId`", "200"],
    "Ivy: `POST /v1/sandbox/{chatId}/terminate`": ["`chatId`", "200"],
    "Ivy: `GET /v1/sandbox/{chatId}/manifest`": ["`chatId`", "200"],
    "Ivy: credentials": ["`Authorization: Bearer`", "`X-Ivy-Api-Key`", "`__session`"],
    RECOUP: [
        *["`sessionId`", "`hasSnapshot`", "`lifecycleVersion`"],
        *["`status` = `active`", "`status` = `no_sandbox`", "`lifecycle`"],
        *[
            f"`lifecycle.state` = `{word}`"
            for word in (
                "provisioning",
                "active",
                "hibernating",
                "hibernated",
                "restoring",
                "archived",
                "failed",
                "null",
            )
        ],
        *["`lifecycle.serverTime`", "`lifecycle.lastActivityAt`"],
        *["`lifecycle.hibernateAfter`", "`lifecycle.sandboxExpiresAt`"],
        *["200", "400", "401", "403", "404", "error body `status` = `error`, `error`"],
    ],
    "Recoup: credentials": ["`x-api-key`", "`Authorization: Bearer`", "both together"],
}


def rows_of(section: str) -> list[list[str]]:
    """The cells of every row of a section's table, without its head."""
    body = TEXT.split(f"\n## {section}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in body.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


@pytest.mark.parametrize("section", DOCUMENTED)
def test_the_table_holds_every_documented_item(section: str) -> None:
    """Each field, word and status code of the documents has a row of its own."""
    items = [cells[0] for cells in rows_of(section)]
    for documented in DOCUMENTED[section]:
        start = re.compile(re.escape(documented.removesuffix("`")) + r"(\W|$)")
        assert any(start.match(item) for item in items), documented


@pytest.mark.parametrize("section", DOCUMENTED)
def test_no_row_of_the_table_is_empty(section: str) -> None:
    """Every item says where it is handled and which test shows it."""
    for cells in rows_of(section):
        assert len(cells) == 3, cells
        assert all(cells), cells


@pytest.mark.parametrize(
    "name", sorted(set(re.findall(r"`(tests/[\w/]+\.py(?:::\w+)?|ivy_kernel/[\w/]+\.py)`", TEXT)))
)
def test_every_file_and_test_that_the_table_names_exists(name: str) -> None:
    """A renamed test or module cannot leave a dead reference."""
    path, _, test = name.partition("::")
    source = (ROOT / path).read_text(encoding="utf-8")
    assert re.search(rf"def {test}\(", source) if test else source
