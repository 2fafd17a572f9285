"""Commands about files in a cell: in our kernel, and below a plain one with the magics."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from home import Home
from kernel_driver import KernelDriver, agent_variables, kernel_variables, running, running_kernel
from magic_driver import MagicKernel, magic_variables
from sandbox_server import RunningSandbox

Json = dict[str, Any]

BIG_BYTES = 60_000_000


@pytest.fixture(scope="module", params=["ivy", "plain"])
def kernel(
    request: pytest.FixtureRequest,
    server: RunningSandbox,
    new_chat: Callable[[], str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[KernelDriver]:
    """Our kernel, and a plain one with the magics."""
    home = Home(tmp_path_factory.mktemp("files"))
    if request.param == "plain":
        server.ready(chat := new_chat())
        with running(MagicKernel(home, magic_variables(server, chat))) as magic:
            yield magic
        return
    with running_kernel(home, agent_variables(server, new_chat())) as ours:
        yield ours


def in_sandbox(kernel: KernelDriver, code: str) -> str | None:
    """The value of code that runs in the sandbox."""
    prefix = "%%ivy\n" if isinstance(kernel, MagicKernel) else ""
    return kernel.run(prefix + code).result


def saved(messages: list[Json]) -> list[Json]:
    """The outputs that a front end would save with the notebook after these messages."""
    outputs: list[Json] = []
    for message in messages:
        content = message["content"]
        if message["msg_type"] == "clear_output":
            outputs.clear()
        elif message["msg_type"] in ("stream", "display_data", "error", "execute_result"):
            outputs.append(content)
        elif message["msg_type"] == "update_display_data":
            for one in outputs:
                if one.get("transient") == content["transient"]:
                    one["data"] = content["data"]
    return outputs


def test_files_go_there_and_back_beside_the_notebook(kernel: KernelDriver) -> None:
    """Local paths are the notebook's, those of the sandbox its cells', and each has its line."""
    (kernel.home.work / "a b.csv").write_text("1,2")
    cell = kernel.run("%ivy put 'a b.csv' inputs/\n%ivy ls inputs")
    assert cell.text().startswith("Put a b.csv → inputs/a b.csv: 3 B in ")
    assert cell.text().endswith("\na b.csv\n")
    assert in_sandbox(kernel, "open('inputs/a b.csv').read()") == "'1,2'"
    in_sandbox(kernel, "open('out.bin', 'wb').write(bytes(range(256)))")
    cell = kernel.run("%ivy get out.bin got/")
    assert cell.reply["status"] == "ok", cell.reply
    assert (kernel.home.work / "got/out.bin").read_bytes() == bytes(range(256))


def test_a_local_cell_that_goes_elsewhere_moves_no_notebook(kernel: KernelDriver) -> None:
    """``os.chdir`` in this process changes nothing of what a path means in our kernel."""
    if isinstance(kernel, MagicKernel):
        pytest.skip("a plain kernel has no other directory than that of its process")
    (kernel.home.work / "here.txt").write_text("here")
    kernel.run("%%local\nimport os\nos.chdir('/')")
    assert kernel.run("%ivy put here.txt").reply["status"] == "ok"


def test_an_error_is_the_cells_error(kernel: KernelDriver) -> None:
    """It fails the cell, with the sentence, so that Run All stops."""
    for code, words in (
        ("%ivy put nowhere.csv", "There is no file nowhere.csv"),
        ("%ivy get nowhere.csv", "nowhere.csv"),
        ("%ivy put", "the following arguments are required"),
        ("%ivy rm -r --yes .", "itself"),
    ):
        cell = kernel.run(code)
        assert cell.reply["status"] == "error", code
        assert words in cell.reply["evalue"], cell.reply


def test_an_interrupt_leaves_what_the_same_command_goes_on_with(kernel: KernelDriver) -> None:
    """Progress is shown meanwhile, with a bar, and nothing of it is in the saved notebook."""
    content = os.urandom(BIG_BYTES)
    (kernel.home.work / "big.bin").write_bytes(content)
    message_id = kernel.submit("%ivy put big.bin")

    def shows_speed(message: Json) -> bool:
        data = message["content"].get("data", {})
        return "MB/s" in data.get("text/plain", "") and "<progress" in data.get("text/html", "")

    earlier = kernel.until(message_id, shows_speed)
    kernel.interrupt()
    cell = kernel.finish(message_id, earlier=earlier)
    assert cell.reply["ename"] == "KeyboardInterrupt"
    told = cell.text("stderr")
    assert re.search(r"\[Interrupted at .* of 60\.0 MB\..*: %ivy put big\.bin\]", told), told
    kept = [one for one in saved(cell.messages) if "data" in one and any(one["data"].values())]
    assert kept == []
    assert in_sandbox(kernel, "import os\nos.path.exists('big.bin')") == "False"

    cell = kernel.run("%ivy put big.bin")
    assert "; resumed at " in cell.text(), cell.text()
    assert [one["name"] for one in saved(cell.messages)] == ["stdout"], "progress left something"
    code = "import hashlib\nhashlib.sha256(open('big.bin', 'rb').read()).hexdigest()"
    digest = re.search(r"SHA-256 (\w+)", cell.text())
    assert digest is not None
    assert in_sandbox(kernel, code) == repr(digest[1])


def test_rm_asks_in_the_notebook(kernel: KernelDriver) -> None:
    """A directory goes after a yes; where nobody can be asked, --yes is named."""
    in_sandbox(kernel, "import os\nos.makedirs('old/x')")
    assert "add --yes" in kernel.run("%ivy rm -r old").reply["evalue"]
    message_id = kernel.submit("%ivy rm -r old", allow_stdin=True)
    request = kernel.client.get_stdin_msg(timeout=20)
    assert "Remove the directory old" in request["content"]["prompt"]
    kernel.client.input("y")
    assert kernel.finish(message_id).reply["status"] == "ok"
    assert in_sandbox(kernel, "os.path.exists('old')") == "False"


def test_put_starts_the_sandbox_with_a_starts_progress(
    server: RunningSandbox,
    new_chat: Callable[[], str],
    start_kernel: Any,
    changed: Callable[..., None],
) -> None:
    """As a cell does; and a stranger's notebook reaches nothing outside of its folder."""
    changed(provision_seconds={"compute": 1.0, "mount": 0.5})
    kernel = start_kernel(variables=kernel_variables(server, new_chat(), IVY_ALLOW_LOCAL="false"))
    (kernel.home.work / "a.csv").write_text("a")
    (kernel.home.path / "secret").write_text("secret")
    refused = kernel.run("%ivy put ../secret")
    assert "allow_local" in refused.reply["evalue"]
    cell = kernel.run("%ivy put a.csv")
    assert any("compute" in data["text/plain"] for data in cell.datas("display_data"))
    assert [one["name"] for one in saved(cell.messages)] == ["stdout"]
    assert cell.text().startswith("Put a.csv → a.csv")
