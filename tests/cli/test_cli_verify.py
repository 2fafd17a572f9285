"""``jupyter ivy verify``: what it says of records and outputs, its exit codes, and crates."""

from __future__ import annotations

import base64
import copy
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from executed_notebook import KEY, executed
from sandbox_server import RunningSandbox
from test_cli_run import write_notebook

from ivy_kernel.cli import crate as crates
from ivy_kernel.cli.comparison import TOLERANCE, OutputVerdict, compare_cell, compare_text
from ivy_kernel.cli.verify import VerifyApp, exit_code, kept_key
from ivy_kernel.errors import UsageError
from ivy_kernel.session.notebook_record import records_directory
from ivy_kernel.session.receipt_check import Finding
from ivy_kernel.session.receipts import code_cells


# Comparing outputs --------------------------------------------------------------------------------
def stream(text: str, name: str = "stdout") -> dict[str, Any]:
    """A stream output."""
    return {"output_type": "stream", "name": name, "text": text}


def data(**forms: Any) -> dict[str, Any]:
    """A displayed output; ``text_html`` is ``text/html``."""
    forms = {name.replace("_", "/", 1): value for name, value in forms.items()}
    return {"output_type": "display_data", "data": forms, "metadata": {}}


def failed(name: str, value: str) -> dict[str, Any]:
    """An error output."""
    return {"output_type": "error", "ename": name, "evalue": value, "traceback": ["line", name]}


def cell_of(*outputs: dict[str, Any], source: str = "f()", **record: Any) -> dict[str, Any]:
    """A code cell with outputs and a record."""
    metadata = {"ivy": {"receipt": {"v": 1, "incomplete": "", **record}}}
    return {
        "cell_type": "code",
        "id": "c",
        "source": source,
        "metadata": metadata,
        "outputs": list(outputs),
    }


def verdicts(was: dict[str, Any], now: dict[str, Any] | None, **more: Any) -> list[OutputVerdict]:
    """What the comparison says of two runs of a cell."""
    (one,) = code_cells({"cells": [was]})
    return list(compare_cell(one, now, **{"tolerance": TOLERANCE, **more}))


@pytest.mark.parametrize(
    ("was", "now", "verdict"),
    [
        ("a 1.5\n", "a 1.5\n", "exact"),
        ("x 0.30000000000000004", "x 0.3", "within tolerance"),
        ("x 0.3", "x 0.3001", "different"),
        ("n 3", "n 4", "different"),
        ("big 100000000001", "big 100000000002", "different"),  # whole numbers are counted
        ("1e-300", "1.0000000001e-300", "within tolerance"),
        ("1.0 nan", "1.0 inf", "different"),
        ("1e400", "1.5e400", "different"),
        ("<A at 0x7f12ab34cd56>", "<A at 0x7f99ab34cd00>", "within tolerance"),
        ("<A at 0x7f12ab34cd56>", "<B at 0x7f99ab34cd00>", "different"),
        ("a  b", "a b", "different"),
        ("   x\n0.1", "              x\n0.10000000000001", "within tolerance"),
        ("a\nb 1.0", "a b 1.00000000001", "different"),
        ("v1.2", "v1.3", "different"),
        ("", "x", "different"),
    ],
)
def test_texts_are_compared_number_by_number(was: str, now: str, verdict: str) -> None:
    """With a relative tolerance, and without what every run has of its own."""
    found, why = compare_text(was, now, TOLERANCE)
    assert found == verdict
    assert bool(why) == (found != "exact")


def test_the_tolerance_is_what_it_is_told() -> None:
    """A difference of one in a thousand is within one in a hundred."""
    assert compare_text("2.000", "2.002", 0.01)[0] == "within tolerance"
    assert compare_text("2.000", "2.002", 0.0001)[0] == "different"


def test_the_first_difference_is_shown() -> None:
    """Its line, and both texts."""
    _, why = compare_text("a\nvalue 5\nc", "a\nvalue 6\nd", TOLERANCE)
    assert "line 2" in why
    assert "value 5" in why
    assert "value 6" in why


def test_streams_are_compared_whole() -> None:
    """However they were cut and mixed; stdout and stderr apart."""
    was = cell_of(stream("a\n"), stream("warn\n", "stderr"), stream("b\n"))
    now = cell_of(stream("a\nb\n"), stream("warn\n", "stderr"))
    assert [one.verdict for one in verdicts(was, now)] == ["exact", "exact"]
    now["outputs"][1]["text"] = "other\n"
    assert [(one.kind, one.verdict) for one in verdicts(was, now)] == [
        ("stdout", "exact"),
        ("stderr", "different"),
    ]


def test_missing_and_new_outputs_are_different() -> None:
    """Each is named."""
    two = cell_of(stream("a"), data(text_plain="1"))
    one = cell_of(stream("a"))
    assert [one.verdict for one in verdicts(two, one)] == ["exact", "different"]
    (_, new) = verdicts(one, two)
    assert (new.verdict, new.kind) == ("different", "text/plain")


def test_every_form_of_an_output_counts() -> None:
    """The worst is the verdict; JSON is compared by its numbers."""
    was = cell_of(data(text_plain="t", application_json={"a": [1.0, 2]}))
    near = cell_of(data(text_plain="t", application_json={"a": [1.0 + 1e-12, 2]}))
    far = cell_of(data(text_plain="t", application_json={"a": [1.0, 3]}))
    assert [one.verdict for one in verdicts(was, near)] == ["within tolerance"]
    assert [one.verdict for one in verdicts(was, far)] == ["different"]
    (lost,) = verdicts(was, cell_of(data(text_plain="t")))
    assert (lost.verdict, lost.why) == ("different", "application/json did not come again")


def picture(*, size: tuple[int, int] = (8, 8), level: int = 100, note: str = "") -> str:
    """A PNG of one grey with one dark corner, in base64."""
    images = pytest.importorskip("PIL.Image")
    png = pytest.importorskip("PIL.PngImagePlugin")
    image = images.new("RGB", size, (level,) * 3)
    image.putpixel((0, 0), (0, 0, 0))
    info = png.PngInfo()
    if note:
        info.add_text("Software", note)
    buffer = io.BytesIO()
    image.save(buffer, "PNG", pnginfo=info)
    return base64.b64encode(buffer.getvalue()).decode()


def test_images_are_compared_by_their_pixels() -> None:
    """Size and pixels; not what else a file says."""
    was = cell_of(data(image_png=picture()))
    for other, verdict in (
        (picture() + "\n", "exact"),
        (picture(note="another version"), "within tolerance"),
        (picture(level=102), "within tolerance"),
        (picture(level=103), "different"),
        (picture(size=(8, 9)), "different"),
        ("bm8gaW1hZ2U=", "cannot be checked"),
        ("no base64!", "different"),
    ):
        (one,) = verdicts(was, cell_of(data(image_png=other)))
        assert one.verdict == verdict, (one, other)


def test_without_pillow_images_are_exact_or_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason names the package."""
    was, now = picture(), picture(note="another")
    monkeypatch.setitem(sys.modules, "PIL", None)
    (one,) = verdicts(cell_of(data(image_png=was)), cell_of(data(image_png=now)))
    assert one.verdict == "cannot be checked"
    assert "Pillow" in one.why


@pytest.mark.parametrize(
    ("was", "why"),
    [
        (cell_of(stream("1"), incomplete="connected to example.org:443"), "example.org"),
        (cell_of(stream("1"), source="%%time\nf()"), "how long"),
        ({**cell_of(stream("1")), "metadata": {}}, "no record"),
    ],
)
def test_what_a_run_cannot_repeat_is_not_called_different(was: dict[str, Any], why: str) -> None:
    """And says why; where it is the same all the same, it is exact."""
    (one,) = verdicts(was, cell_of(stream("2")))
    assert one.verdict == "cannot be checked"
    assert why in one.why
    (one,) = verdicts(was, cell_of(stream("1")))
    assert one.verdict == "exact"


def test_widgets_cannot_be_checked() -> None:
    """Their state is in their kernel."""
    was = cell_of(data(**{"application_vnd.jupyter.widget-view+json": {"model_id": "a"}}))
    now = cell_of(data(**{"application_vnd.jupyter.widget-view+json": {"model_id": "b"}}))
    (one,) = verdicts(was, now)
    assert (one.verdict, "widget" in one.why) == ("cannot be checked", True)


def test_errors_are_compared_by_name_and_words() -> None:
    """One that comes new is different; one of ours says that nothing was run."""
    was = cell_of(failed("ValueError", "bad 1.5"))
    assert [one.verdict for one in verdicts(was, copy.deepcopy(was))] == ["exact"]
    (one,) = verdicts(was, cell_of(failed("KeyError", "bad 1.5")))
    assert one.verdict == "different"
    (one,) = verdicts(cell_of(stream("1")), cell_of(failed("KeyError", "k")))
    assert (one.verdict, one.why) == ("different", "it failed with KeyError: k")
    (one,) = verdicts(cell_of(stream("1")), cell_of(failed("NoSandboxError", "none is there")))
    assert one.verdict == "cannot be checked"


@pytest.mark.parametrize(
    "places",
    [
        ("Cell In[5], line 1", "Cell In[3], line 1"),
        ("Input In [12], in <cell>", "Input In [1], in <cell>"),
    ],
)
def test_the_number_of_a_cell_in_a_traceback_is_no_difference(places: tuple[str, str]) -> None:
    """It counts the cells that ran before, which another run may leave out; the line counts."""
    was, now = (
        {**failed("KeyError", "'a'"), "traceback": [f"\x1b[36m{place}\x1b[39m", "----> 1 f()"]}
        for place in places
    )
    (found,) = verdicts(cell_of(was), cell_of(now))
    assert found.verdict == "exact"
    now["traceback"] = [line.replace("1 f()", "2 f()") for line in now["traceback"]]
    (found,) = verdicts(cell_of(was), cell_of(now))
    assert found.verdict == "different"


def test_cells_that_were_not_run_again_cannot_be_checked() -> None:
    """With the reason, for each output."""
    found = verdicts(cell_of(stream("1"), data(text_plain="1")), None, why_not="cell 2 failed")
    assert [(one.verdict, one.why) for one in found] == [
        ("cannot be checked", "cell 2 failed"),
        ("cannot be checked", "cell 2 failed"),
    ]


def test_exit_codes_put_a_difference_first() -> None:
    """1 for any difference, 2 for what cannot be checked, 0 for neither."""
    same = OutputVerdict(1, "c", 1, "stdout", "within tolerance")
    open_ = OutputVerdict(1, "c", 1, "stdout", "cannot be checked")
    note, unknown = Finding("note", "chain", "n"), Finding("unknown", "signature", "u")
    assert exit_code([note], [same]) == 0
    assert exit_code([unknown], [same]) == exit_code([], [open_]) == 2
    assert exit_code([unknown, Finding("changed", "order", "c")], [same]) == 1
    assert exit_code([], [open_, OutputVerdict(1, "c", 2, "x", "different")]) == 1


# Crates -------------------------------------------------------------------------------------------
def crate_of(folder: Path, *, fate: str = "ok") -> tuple[dict[str, dict[str, Any]], Any]:
    """The entities of a crate by their ids, as the file has them, and as rocrate reads them."""
    rocrate = pytest.importorskip("rocrate.rocrate")
    case = executed(folder / "work")
    path = folder / "work" / "my run.ipynb"
    case.cells[-1]["metadata"]["ivy"]["receipt"]["fate"] = fate
    path.write_text(json.dumps(case.notebook))
    (folder / "work" / "in-2.csv").write_text("another file now")
    target = folder / "crate"
    crates.check_crate(case.notebook, target)
    crates.write_crate(case.notebook, path, target)
    graph = json.loads((target / "ro-crate-metadata.json").read_text())["@graph"]
    return {one["@id"]: one for one in graph}, rocrate.ROCrate(target)


def test_a_crate_has_what_its_profile_asks_for(tmp_path: Path) -> None:
    """Process Run Crate 0.5: what must and what should be there; read again by rocrate."""
    entities, crate = crate_of(tmp_path)
    root = entities["./"]
    assert root["conformsTo"] == {"@id": "https://w3id.org/ro/wfrun/process/0.5"}
    assert entities[root["conformsTo"]["@id"]]["@type"] == "CreativeWork"
    assert {"name", "description", "datePublished", "license"} <= set(root)
    action = entities[root["mentions"]["@id"]]
    assert action["@type"] == "CreateAction"
    assert {"name", "description", "agent", "result", "object"} <= set(action)
    assert action["startTime"] == "2026-11-30T10:00:01.000+00:00"
    assert action["endTime"] == "2026-11-30T10:00:06.500+00:00"
    assert action["actionStatus"] == "http://schema.org/CompletedActionStatus"
    assert entities[action["agent"]["@id"]]["@type"] == "Person"
    tool = entities[action["instrument"]["@id"]]
    assert (tool["@type"], tool["softwareVersion"]) == ("SoftwareApplication", "3.11.9")
    needs = [entities[one["@id"]] for one in tool["softwareRequirements"]]
    assert ("numpy", "2.1.0") in [(one["name"], one["softwareVersion"]) for one in needs]
    read_again = crate.get(root["mentions"]["@id"])
    assert read_again["instrument"]["name"] == "Python"
    assert len(read_again["object"]) == 6
    assert len(read_again["result"]) == 7


def test_the_files_of_a_crate_are_those_of_the_record(tmp_path: Path) -> None:
    """With hash and size; in the crate where they are at hand, else named by their hash."""
    entities, crate = crate_of(tmp_path)
    files = [one for one in entities.values() if one["@type"] == "File"]
    assert all({"sha256", "contentSize", "name", "encodingFormat"} <= set(one) for one in files)
    (changed,) = [one for one in files if one["name"] == "in-2.csv"]
    assert changed["@id"].startswith("ni:///sha-256;")
    (kept,) = [one for one in files if one["name"] == "in-3.csv"]
    place = tmp_path / "crate" / kept["@id"]
    assert place.read_bytes() == (tmp_path / "work" / "in-3.csv").read_bytes()
    assert (tmp_path / "crate" / "my run.ipynb").is_file()
    assert crate.get("my%20run.ipynb")["name"] == "my run.ipynb"


def test_a_run_that_failed_is_one_in_its_crate(tmp_path: Path) -> None:
    """With the cell that failed."""
    entities, _ = crate_of(tmp_path, fate="error")
    (action,) = [one for one in entities.values() if one["@type"] == "CreateAction"]
    assert action["actionStatus"] == "http://schema.org/FailedActionStatus"
    assert action["error"] == "Cell 6 failed."


def test_names_of_a_record_lead_to_no_file_outside(tmp_path: Path) -> None:
    """Not even with the right hash."""
    case = executed(tmp_path / "work")
    secret = tmp_path / "secret.txt"
    secret.write_text("secret")
    (tmp_path / "work" / "link").symlink_to(secret)
    reads = case.cells[1]["metadata"]["ivy"]["receipt"]["reads"]
    hashed = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"
    for name in ("../secret.txt", str(secret), "link"):
        reads.append({"path": name, "sha256": hashed, "bytes": 6})
    path = tmp_path / "work" / "a.ipynb"
    path.write_text(json.dumps(case.notebook))
    pytest.importorskip("rocrate")
    crates.write_crate(case.notebook, path, tmp_path / "crate")
    found = [one for one in (tmp_path / "crate").rglob("*") if one.is_file()]
    assert all(one.read_bytes() != b"secret" for one in found)


def test_a_crate_that_cannot_be_written_is_told_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing package with the command that installs it; a directory that is not empty."""
    case = executed(tmp_path / "work")
    with pytest.raises(UsageError, match="no empty directory"):
        crates.check_crate(case.notebook, tmp_path / "work")
    with pytest.raises(UsageError, match="does not exist"):
        crates.check_crate(case.notebook, tmp_path / "no" / "crate")
    with pytest.raises(UsageError, match="receipt"):
        crates.check_crate({"cells": []}, tmp_path / "crate")
    monkeypatch.setattr(crates.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UsageError, match=r"pip install 'ivy-kernel\[crate\]'"):
        crates.check_crate(case.notebook, tmp_path / "crate")


# The command --------------------------------------------------------------------------------------
def test_a_key_is_found_by_the_notebooks_id_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An id that is none, as a notebook of anyone may have it, leads nowhere."""
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path))
    records_directory().mkdir(parents=True)
    file = records_directory() / "0123456789abcdef0123.json"
    file.write_text(json.dumps({"key": KEY.hex()}))
    file.chmod(0o600)
    assert kept_key("0123456789abcdef0123") == KEY
    assert kept_key("../notebooks/0123456789abcdef0123") is None
    assert kept_key("ffffffffffffffffffff") is None
    file.write_text("[]")
    assert kept_key("0123456789abcdef0123") is None


SOURCES = (
    "rows = open('in.csv').read()\nprint(rows)",
    "x = 22 / 7\nx",
    "object()",
    "n = open('out.txt', 'w').write(rows)",
)


@pytest.fixture
def agent(ivy: Any) -> Any:
    """The command line, on the agent route, where receipts are made."""
    ivy.variables["IVY_ROUTE"] = "agent"
    return ivy


def executed_by_run(ivy: Any, server: RunningSandbox, chat: str) -> Path:
    """A notebook that reads and writes a file, as ``jupyter ivy run`` leaves it."""
    server.ready(chat)
    (server.root / chat / "in.csv").write_text("1,2\n3,4\n")
    write_notebook(ivy.home.work / "a.ipynb", *SOURCES)
    answer = ivy("run", "a.ipynb", "--no-progress")
    assert answer.returncode == 0, answer
    return ivy.home.work / "a.executed.ipynb"


def test_a_run_is_sealed_and_holds_when_it_is_verified(
    agent, server: RunningSandbox, chat: str
) -> None:
    """0; each output with its verdict; the notebook stays as it is; the crate is written."""
    path = executed_by_run(agent, server, chat)
    before = path.read_bytes()
    answer = agent("verify", path.name, "--json", "--crate", "crate")
    told = json.loads(answer.stdout)
    assert (answer.returncode, told["result"], told["record"]) == (0, "as recorded", []), answer
    assert [(one["cell"], one["verdict"]) for one in told["outputs"]] == [
        (1, "exact"),
        (2, "exact"),
        (3, "within tolerance"),
    ]
    assert path.read_bytes() == before
    graph = json.loads((agent.home.work / "crate/ro-crate-metadata.json").read_text())["@graph"]
    (action,) = [one for one in graph if one["@type"] == "CreateAction"]
    names = {one["@id"]: one.get("name") for one in graph}
    assert [names[one["@id"]] for one in action["object"]] == ["in.csv"]
    assert [names[one["@id"]] for one in action["result"]] == [path.name, "out.txt"]
    (key,) = {json.loads(file.read_text()).get("key") for file in kept_records(agent, path)}
    assert key
    assert key not in before.decode() + answer.stdout + answer.stderr


def kept_records(ivy: Any, path: Path) -> list[Path]:
    """The file of this machine that has the notebook's key."""
    owner = json.loads(path.read_text())["metadata"]["ivy"]["receipt"]["notebook"]
    return list((ivy.home.data / "ivy/notebooks").glob(f"{owner}.json"))


def test_what_was_tampered_with_is_named_with_1(agent, server: RunningSandbox, chat: str) -> None:
    """A byte of an input, a line of the sandbox's record, an output; with no cell run."""
    path = executed_by_run(agent, server, chat)
    assert agent("verify", path.name, "--no-rerun").returncode == 0
    (server.root / chat / "in.csv").write_text("1,2\n3,5\n")
    (lines,) = (server.root / chat / ".ivy").glob("*/receipts/*.jsonl")
    lines.write_text(lines.read_text().replace('"number":2', '"number":7'))
    content = json.loads(path.read_text())
    content["cells"][1]["outputs"][0]["data"]["text/plain"] = "3.2"
    path.write_text(json.dumps(content))
    answer = agent("verify", path.name, "--no-rerun", "--json")
    assert answer.returncode == 1, answer
    found = {(one["subject"], one["cell"], one["name"]) for one in told_changes(answer.stdout)}
    assert {("file", 1, "in.csv"), ("outputs", 2, ""), ("record", 2, "")} <= found
    assert {cell for subject, cell, _ in found if subject == "outputs"} == {2}
    # Without its sandbox the notebook alone is checked, and none is started for it.
    answer = agent("terminate", "--yes")
    assert answer.returncode == 0, answer
    creations = server.counters()["requests"]
    answer = agent("verify", path.name, "--no-rerun")
    assert answer.returncode == 1, answer
    assert "is not active" in answer.stdout
    assert {name for name in server.counters()["requests"] if "create" in name} == {
        name for name in creations if "create" in name
    }


def told_changes(text: str) -> list[dict[str, Any]]:
    """The findings that say that something differs."""
    return [one for one in json.loads(text)["record"] if one["kind"] == "changed"]


def test_another_result_is_different_with_1(agent, server: RunningSandbox, chat: str) -> None:
    """The first difference is told; cells behind one that fails now cannot be checked."""
    sources = (
        "import os\nprint('run', len(os.listdir('.')) > 1)",
        "open('once', 'x').close()\nprint('made')",
        "print('after')",
    )
    write_notebook(agent.home.work / "a.ipynb", *sources)
    assert agent("run", "a.ipynb", "--no-progress").returncode == 0
    answer = agent("verify", "a.executed.ipynb")
    assert answer.returncode == 1, answer
    rows = [
        line.split(None, 2) for line in answer.stdout.splitlines() if line[:5].strip().isdigit()
    ]
    assert [row[0] for row in rows] == ["1", "2", "3"]
    assert rows[0][2].startswith("different")
    assert "'run True'" in rows[0][2]
    assert "FileExistsError" in rows[1][2]
    assert rows[2][2].startswith("cannot be checked")
    assert "cell 2 failed" in rows[2][2]


def test_wrong_use_is_exit_code_2_and_runs_nothing(ivy) -> None:
    """No notebook, a tolerance that is none, a cell that would run on this machine."""
    write_notebook(ivy.home.work / "a.ipynb", "%%local\n1")
    for arguments, told in (
        ((), "Give one notebook"),
        (("a.ipynb", "--tolerance", "-1"), "tolerance"),
        (("a.ipynb",), "--allow-local"),
    ):
        answer = ivy("verify", *arguments)
        assert answer.returncode == 2, answer
        assert told in answer.stderr, answer


def test_what_a_record_says_moves_no_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    """Names and outputs come from outside; each is one line of plain characters."""
    finding = Finding("changed", "file", "The input \x1b[31mx\r\ny is gone.", name="\x1b")
    verdict = OutputVerdict(1, "c", 1, "\x1b]0;title\x07", "different", "a\nb\x08")
    VerifyApp()._print(Path("a.ipynb"), [finding], [verdict])
    printed = capsys.readouterr().out
    assert not set(printed) & set("\x1b\x07\x08\r")
    assert len(printed.splitlines()) == 6
