"""Outputs on the agent route are what a local Python kernel would show."""

from __future__ import annotations

import base64
import hashlib

from kernel_driver import KernelDriver, StartKernel


def test_streams_keep_their_names_and_order(kernel: KernelDriver) -> None:
    """Stdout and stderr arrive under their names, each in order."""
    run = kernel.run(
        "import sys\nfor n in range(3):\n    print('out', n)\n    print('err', n, file=sys.stderr)"
    )
    assert run.text() == "out 0\nout 1\nout 2\n"
    assert run.text("stderr") == "err 0\nerr 1\nerr 2\n"


def test_output_comes_while_the_cell_runs(kernel: KernelDriver) -> None:
    """A print is seen long before the end of its cell, flushed or not."""
    for flush in ("True", "False"):
        message_id = kernel.submit(f"import time\nprint('now', flush={flush})\ntime.sleep(20)")
        earlier = kernel.until(message_id, lambda message: message["msg_type"] == "stream")
        kernel.interrupt()
        run = kernel.finish(message_id, earlier=earlier)
        assert run.error is not None, "it was still running"
        assert run.error["ename"] == "KeyboardInterrupt"


def test_the_whole_bundle_arrives(kernel: KernelDriver) -> None:
    """Every MIME type of a bundle comes through, unknown ones too, with the metadata."""
    run = kernel.run(
        "from IPython.display import display\n"
        "display({'text/plain': 'p', 'text/html': '<b>h</b>', 'text/latex': '$x$',\n"
        "  'image/svg+xml': '<svg/>', 'application/json': {'a': [1, None]},\n"
        "  'application/vnd.plotly.v1+json': {'data': []},\n"
        "  'application/vnd.of-nobody+json': {'deep': {'er': 1}}, 'text/x-unknown': 'u'},\n"
        "  raw=True, metadata={'image/png': {'width': 7}, 'whole': True})"
    )
    (message,) = [one for one in run.messages if one["msg_type"] == "display_data"]
    assert message["content"]["data"] == {
        "text/plain": "p",
        "text/html": "<b>h</b>",
        "text/latex": "$x$",
        "image/svg+xml": "<svg/>",
        "application/json": {"a": [1, None]},
        "application/vnd.plotly.v1+json": {"data": []},
        "application/vnd.of-nobody+json": {"deep": {"er": 1}},
        "text/x-unknown": "u",
    }
    assert message["content"]["metadata"] == {"image/png": {"width": 7}, "whole": True}


def test_retina_figures_keep_their_size(kernel: KernelDriver) -> None:
    """`%matplotlib inline` shows figures; for retina ones the size travels in the metadata."""
    run = kernel.run(
        "%matplotlib inline\n"
        "%config InlineBackend.figure_format = 'retina'\n"
        "import matplotlib.pyplot as plt\n_ = plt.figure(figsize=(2, 1))\n_ = plt.plot([1, 2])",
        timeout_seconds=90,
    )
    (message,) = [one for one in run.messages if one["msg_type"] == "display_data"]
    assert base64.b64decode(message["content"]["data"]["image/png"]).startswith(b"\x89PNG")
    assert message["content"]["metadata"]["image/png"]["width"] > 50


def test_a_display_is_updated_by_later_cells(kernel: KernelDriver) -> None:
    """`update_display` works within a cell, and from another cell."""
    kernel.run(
        "from IPython.display import display, update_display\n"
        "handle = display(1, display_id='shown')"
    )
    run = kernel.run("handle.update(2)\nupdate_display(3, display_id='shown')")
    updates = [m["content"] for m in run.messages if m["msg_type"] == "update_display_data"]
    assert [update["data"]["text/plain"] for update in updates] == ["2", "3"]
    assert {update["transient"]["display_id"] for update in updates} == {"shown"}


def test_clear_output_is_told_in_its_place(kernel: KernelDriver) -> None:
    """`clear_output` arrives between what came before and after it, with its `wait`."""
    run = kernel.run(
        "from IPython.display import clear_output, display\n"
        "display('a')\nclear_output(wait=True)\ndisplay('b')\nclear_output()\ndisplay('c')"
    )
    told = [(m["msg_type"], m["content"].get("wait")) for m in run.outputs]
    assert told == [
        ("display_data", None),
        ("clear_output", True),
        ("display_data", None),
        ("clear_output", False),
        ("display_data", None),
    ]


def test_an_error_is_the_real_one(kernel: KernelDriver) -> None:
    """Name, value and traceback are those of the exception, with the user's own lines."""
    run = kernel.run("def inner():\n    return {}['missing']\n\ninner()")
    assert run.error["ename"] == "KeyError"
    assert run.error["evalue"] == "'missing'"
    assert "inner()" in run.traceback
    assert "In[" in run.traceback
    assert "ivy" not in run.traceback


def test_user_expressions_and_count(kernel: KernelDriver) -> None:
    """User expressions are answered, and `Out[n]` is what the number says."""
    run = kernel.run("six = 6\nsix * 7", user_expressions={"half": "six / 2", "bad": "nowhere"})
    assert run.reply["user_expressions"]["half"]["data"]["text/plain"] == "3.0"
    assert run.reply["user_expressions"]["bad"]["ename"] == "NameError"
    assert kernel.run(f"Out[{run.reply['execution_count']}]").result == "42"


def test_three_megabytes_of_text_arrive(start_kernel: StartKernel) -> None:
    """A large print arrives whole where no limit is set, in messages that front ends take."""
    kernel = start_kernel(IVY_OUTPUT_LIMIT_BYTES="0")
    run = kernel.run("print('x' * 79 + '\\n' + ('y' * 79 + '\\n') * 37_500)")
    text = run.text()
    assert len(text) == 80 * 37_501 + 1
    assert len([m for m in run.messages if m["msg_type"] == "stream"]) < 200


def test_a_picture_of_ten_megabytes_arrives_whole(kernel: KernelDriver) -> None:
    """A large binary arrives byte for byte."""
    run = kernel.run(
        "import hashlib, os\nfrom IPython.display import Image, display\n"
        "data = b'\\x89PNG\\r\\n\\x1a\\n' + os.urandom(10_000_000)\n"
        "display(Image(data, format='png'))\nhashlib.sha256(data).hexdigest()"
    )
    (picture,) = run.datas("display_data")
    digest = hashlib.sha256(base64.b64decode(picture["image/png"])).hexdigest()
    assert run.result == repr(digest)


def test_of_two_thousand_updates_the_last_arrives_and_none_late(kernel: KernelDriver) -> None:
    """Their order is kept; what a later one has replaced before it was shown may be left out."""
    run = kernel.run(
        "from IPython.display import display\nhandle = display(-1, display_id=True)\n"
        "for n in range(2000):\n    handle.update(n)"
    )
    shown = [int(data["text/plain"]) for data in run.datas("update_display_data")]
    assert shown[-1] == 1999
    assert shown == sorted(set(shown))


def test_a_thread_prints_after_its_cell(kernel: KernelDriver) -> None:
    """What a thread prints later belongs to the cell that runs then, or to its own while idle."""
    message_id = kernel.submit(
        "import threading, time\n"
        "def late():\n    time.sleep(1.5)\n    print('late', flush=True)\n"
        "threading.Thread(target=late).start()\nprint('early')"
    )
    kernel.finish(message_id)
    later = kernel.until(message_id, lambda m: "late" in m["content"].get("text", ""), 20)
    assert later[-1]["parent_header"]["msg_id"] == message_id


def test_subprocesses_are_heard(kernel: KernelDriver) -> None:
    """What child processes write arrives: by `!`, by `x = !`, and of those that use our stdout."""
    run = kernel.run("!echo from a shell\nlines = !echo one; echo two\nlines")
    assert "from a shell" in run.text()
    assert run.result == "['one', 'two']"
    run = kernel.run("import subprocess\n_ = subprocess.run(['echo', 'inherited'])")
    if not run.text():  # ipykernel reads the pipe in a thread, perhaps after the cell's end
        run.messages += kernel.until(
            run.messages[0]["parent_header"]["msg_id"], lambda m: m["msg_type"] == "stream"
        )
    assert run.text() == "inherited\n"


def test_magics_run_in_the_sandbox(kernel: KernelDriver) -> None:
    """`%pip`, `%%time`, `%%bash` and top-level await do what they do in any notebook."""
    assert "pip " in kernel.run("%pip --version").text()
    assert "Wall time" in kernel.run("%%time\nsum(range(10))").text()
    assert kernel.run("%%bash\necho $((6 * 7))").text() == "42\n"
    assert kernel.run("import asyncio\nawait asyncio.sleep(0.01, 'awaited')").result == "'awaited'"
