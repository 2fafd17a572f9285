"""The tools that run code: python, exec, rscript and notebook."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from sandbox_server import RunningSandbox, running_sandbox, until

Change = Callable[..., None]


def test_python_runs_in_a_fresh_process(server: RunningSandbox, shared_chat: str) -> None:
    """A script's output and exit code come back, and its variables do not stay."""
    first = server.tool(shared_chat, "sandbox_python", code="x = 41\nprint(x + 1)")
    assert first == {"stdout": "42\n", "stderr": "", "exit_code": 0, "timed_out": False}
    second = server.tool(shared_chat, "sandbox_python", code="print(x)")
    assert second["exit_code"] == 1
    assert "NameError" in second["stderr"]


def test_python_imports_from_the_chats_directory(server: RunningSandbox, shared_chat: str) -> None:
    """A module that was written to the chat's directory can be imported."""
    server.tool(shared_chat, "sandbox_write", path="own_module.py", content="answer = 42\n")
    result = server.tool(
        shared_chat, "sandbox_python", code="import own_module; print(own_module.answer)"
    )
    assert result["stdout"] == "42\n"


def test_exec_runs_a_shell_command(server: RunningSandbox, shared_chat: str) -> None:
    """Pipes and exit codes are the shell's."""
    result = server.tool(shared_chat, "sandbox_exec", command="printf 'b\\na\\n' | sort; exit 3")
    assert result["stdout"] == "a\nb\n"
    assert result["exit_code"] == 3


def test_exec_takes_a_command_longer_than_an_argument(
    server: RunningSandbox, shared_chat: str
) -> None:
    """A command above the system's limit of one argument runs."""
    command = ": " + "x" * 300_000 + "\necho done"
    assert server.tool(shared_chat, "sandbox_exec", command=command)["stdout"] == "done\n"


def test_exec_route_is_the_exec_tool(server: RunningSandbox, shared_chat: str) -> None:
    """The route exec gives what sandbox_exec gives."""
    status, _, body = server.call("POST", f"/v1/sandbox/{shared_chat}/exec", {"command": "echo hi"})
    assert (status, body) == (200, server.tool(shared_chat, "sandbox_exec", command="echo hi"))


@pytest.mark.skipif(shutil.which("Rscript") is None, reason="R is not installed")
def test_rscript_runs_r(server: RunningSandbox, shared_chat: str) -> None:
    """R code runs in a real R."""
    result = server.tool(shared_chat, "sandbox_rscript", code="cat(sum(1:4), '\\n')")
    assert (result["stdout"], result["exit_code"]) == ("10 \n", 0)


def test_missing_r_is_a_clear_tool_error(
    server: RunningSandbox, shared_chat: str, changed: Change
) -> None:
    """Without Rscript the result, not the request, says what is missing."""
    changed(rscript="no-such-rscript")
    result = server.tool(shared_chat, "sandbox_rscript", code="1")
    assert result["exit_code"] == 127
    assert "R is not installed" in result["stderr"]


def test_scripts_have_no_stdin(server: RunningSandbox, shared_chat: str) -> None:
    """Reading stdin ends at once instead of hanging."""
    assert server.tool(shared_chat, "sandbox_python", code="print(input())")["exit_code"] == 1
    assert server.tool(shared_chat, "sandbox_exec", command="cat; echo end")["stdout"] == "end\n"


def test_output_that_is_no_text_is_replaced(server: RunningSandbox, shared_chat: str) -> None:
    """Bytes that are no UTF-8 come as replacement characters, in valid JSON."""
    assert (
        server.tool(shared_chat, "sandbox_exec", command="printf 'a\\377b'")["stdout"] == "a\ufffdb"
    )


def test_notebook_keeps_variables(server: RunningSandbox, shared_chat: str) -> None:
    """One kernel per chat holds the state of its cells and counts them."""
    first = server.tool(shared_chat, "sandbox_notebook", code="x = 20")["execution_count"]
    result = server.tool(shared_chat, "sandbox_notebook", code="x + 1")
    assert result == {
        "outputs": [
            {
                "output_type": "execute_result",
                "data": {"text/plain": "21"},
                "metadata": {},
                "execution_count": first + 1,
            }
        ],
        "execution_count": first + 1,
    }


def test_notebooks_of_two_chats_are_apart(
    server: RunningSandbox, chat: str, new_chat: Callable[[], str]
) -> None:
    """A variable of one chat is unknown in another."""
    server.tool(chat, "sandbox_notebook", code="mine = 1")
    other = new_chat()
    server.ready(other)
    result = server.tool(other, "sandbox_notebook", code="mine")
    assert result["outputs"][0]["ename"] == "NameError"
    server.call("POST", f"/v1/sandbox/{other}/terminate")


def test_notebook_calls_are_queued(server: RunningSandbox, shared_chat: str) -> None:
    """Cells that arrive together run one after the other, each once."""
    server.tool(shared_chat, "sandbox_notebook", code="import time; seen = []")
    code = "seen.append(len(seen)); time.sleep(0.1); print(len(seen))"
    printed: list[str] = []

    def run() -> None:
        outputs = server.tool(shared_chat, "sandbox_notebook", code=code)["outputs"]
        printed.append(outputs[0]["text"])

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(printed) == ["1\n", "2\n", "3\n", "4\n"]


def test_notebook_streams_are_joined_and_kept_apart(
    server: RunningSandbox, shared_chat: str
) -> None:
    """Text of one stream is one output until the other stream speaks."""
    code = (
        "import sys\nprint('a', flush=True); print('b', flush=True)\n"
        "print('c', file=sys.stderr, flush=True); print('d')"
    )
    outputs = server.tool(shared_chat, "sandbox_notebook", code=code)["outputs"]
    assert [(out["name"], out["text"]) for out in outputs] == [
        ("stdout", "a\nb\n"),
        ("stderr", "c\n"),
        ("stdout", "d\n"),
    ]


def test_notebook_applies_clear_output_and_updates(
    server: RunningSandbox, shared_chat: str
) -> None:
    """What was cleared is not in the result, and an updated display shows its last state."""
    code = (
        "from IPython.display import clear_output, display\n"
        "print('gone'); clear_output()\n"
        "handle = display('old', display_id=True); handle.update('new')"
    )
    outputs = server.tool(shared_chat, "sandbox_notebook", code=code)["outputs"]
    assert [out["data"]["text/plain"] for out in outputs] == ["'new'"]


def test_dead_kernel_is_told_and_replaced(server: RunningSandbox, chat: str) -> None:
    """A cell that kills its kernel gets an error that says so; the next one a new kernel."""
    server.tool(chat, "sandbox_notebook", code="x = 1")
    result = server.tool(chat, "sandbox_notebook", code="import os; os._exit(7)")
    error = result["outputs"][-1]
    assert error["ename"] == "DeadKernelError"
    assert "exit code 7" in error["evalue"]
    after = server.tool(chat, "sandbox_notebook", code="x")
    assert after["outputs"][0]["ename"] == "NameError"


@pytest.mark.parametrize(
    ("tool", "body"),
    [
        ("sandbox_python", {"code": "import time; time.sleep(60)"}),
        ("sandbox_exec", {"command": "sleep 60 & sleep 60; wait"}),
        ("sandbox_notebook", {"code": "import time; time.sleep(60)"}),
    ],
)
def test_exceeding_the_asked_time_is_504(
    server: RunningSandbox, chat: str, tool: str, body: dict[str, str]
) -> None:
    """A call longer than its timeout is stopped and answered 504."""
    if tool == "sandbox_notebook":
        server.tool(chat, tool, code="kept = 1")
    began = time.monotonic()
    status, _, answer = server.call(
        "POST", f"/v1/sandbox/{chat}/tool/{tool}", {**body, "timeout": 0.5}
    )
    assert status == 504
    assert answer["code"] == "TOOL_TIMEOUT"
    assert time.monotonic() - began < 5
    if tool == "sandbox_notebook":
        kept = server.tool(chat, tool, code="kept")
        assert kept["outputs"][0]["data"]["text/plain"] == "1"
    else:
        until(lambda: server_pids_of(server, chat) == [], "the call's processes are gone")


def server_pids_of(server: RunningSandbox, chat: str) -> list[int]:
    """Processes whose working directory is the chat's."""
    found = []
    for pid in server.pids():
        try:
            if psutil.Process(pid).cwd() == str(server.root / chat):
                found.append(pid)
        except psutil.Error:
            continue
    return found


def test_a_tree_that_forks_all_the_time_is_killed(server: RunningSandbox, chat: str) -> None:
    """A call whose processes start others without end is gone after its time."""
    command = "f() { while :; do (sleep 0.05; f) & sleep 0.02; done; }; ulimit -u 4000; f"
    status, _, _ = server.call(
        "POST", f"/v1/sandbox/{chat}/tool/sandbox_exec", {"command": command, "timeout": 0.3}
    )
    assert status == 504
    until(lambda: server_pids_of(server, chat) == [], "the call's processes are gone")


@pytest.mark.parametrize(("group", "tool"), [("script", "python"), ("notebook", "notebook")])
def test_caps_limit_what_may_be_asked_for(
    server: RunningSandbox, shared_chat: str, changed: Change, group: str, tool: str
) -> None:
    """A timeout above the cap counts as the cap."""
    caps = {"script": 60, "notebook": 60, "files": 60, group: 0.8}
    changed(cap_seconds=caps)
    began = time.monotonic()
    path = f"/v1/sandbox/{shared_chat}/tool/sandbox_{tool}"
    code = "import time; time.sleep(30)"
    status, _, answer = server.call("POST", path, {"code": code, "timeout": 300})
    assert (status, answer["code"]) == (504, "TOOL_TIMEOUT")
    assert time.monotonic() - began < 10


def test_default_caps_are_the_documented_ones(server: RunningSandbox) -> None:
    """120 s for scripts, 300 s for everything else."""
    caps = server.control()["config"]["cap_seconds"]
    assert caps == {"script": 120, "notebook": 300, "files": 300}


def test_a_cell_that_ignores_interrupts_loses_its_kernel(
    server: RunningSandbox, shared_chat: str, changed: Change
) -> None:
    """The kernel of a cell that does not stop is killed, and the answer says that."""
    changed(interrupt_grace_seconds=0.3)
    code = (
        "import time\nx = 1\nend = time.time() + 60\n"
        "while time.time() < end:\n"
        "    try:\n        time.sleep(60)\n"
        "    except KeyboardInterrupt:\n        pass\n"
    )
    path = f"/v1/sandbox/{shared_chat}/tool/sandbox_notebook"
    server.tool(shared_chat, "sandbox_notebook", code="x = 1")
    status, _, answer = server.call("POST", path, {"code": code, "timeout": 3})
    assert status == 504
    assert "killed" in answer["error"]
    assert (
        server.tool(shared_chat, "sandbox_notebook", code="x")["outputs"][0]["ename"] == "NameError"
    )


def test_a_cell_that_only_waited_says_that_it_never_ran(
    server: RunningSandbox, shared_chat: str
) -> None:
    """A cell whose time is up in the queue is 504, was not run, and the answer says so."""
    server.tool(shared_chat, "sandbox_notebook", code="ran = False")
    code = (
        "import os, time\nopen('begun', 'w').close()\n"
        "while not os.path.exists('may-end'): time.sleep(0.02)"
    )
    first = threading.Thread(
        target=server.tool, args=(shared_chat, "sandbox_notebook"), kwargs={"code": code}
    )
    first.start()
    path = f"/v1/sandbox/{shared_chat}/tool/sandbox_notebook"
    try:
        until((server.root / shared_chat / "begun").exists, "the first cell runs")
        status, _, answer = server.call("POST", path, {"code": "ran = True", "timeout": 0.2})
    finally:
        (server.root / shared_chat / "may-end").touch()
        first.join()
    assert status == 504
    assert "never ran" in answer["error"]
    shown = server.tool(shared_chat, "sandbox_notebook", code="ran")["outputs"][0]
    assert shown["data"]["text/plain"] == "False"


@pytest.mark.parametrize("timeout", ["10", True, 0, -1, [], {}])
def test_a_timeout_that_is_no_time_is_400(
    server: RunningSandbox, shared_chat: str, timeout: object
) -> None:
    """Only a positive number is a timeout."""
    path = f"/v1/sandbox/{shared_chat}/tool/sandbox_files"
    status, _, answer = server.call("POST", path, {"timeout": timeout})
    assert (status, answer["code"]) == (400, "BAD_PARAMETERS")


def test_a_daemon_survives_its_call_and_ends_with_the_sandbox(
    server: RunningSandbox, chat: str
) -> None:
    """A process that left its session goes on after the call, until the sandbox is terminated."""
    command = (
        "setsid env -i sh -c 'echo $$ > daemon.pid; cd /; while :; do sleep 0.05; done' "
        "> /dev/null 2>&1 &"
    )
    server.tool(chat, "sandbox_exec", command=command)
    pid = int(until(lambda: _read(server.root / chat / "daemon.pid"), "the daemon runs"))
    assert psutil.pid_exists(pid)
    server.call("POST", f"/v1/sandbox/{chat}/terminate")
    assert not _alive(pid)


def _read(path: Path) -> str:
    return path.read_text().strip() if path.exists() else ""


def _alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_background_process_that_holds_stdout_does_not_hold_the_call(
    server: RunningSandbox, shared_chat: str
) -> None:
    """The call ends with its shell, and what it left behind may go on printing."""
    command = (
        "(while [ ! -e may-print ]; do sleep 0.05; done\n"
        "for i in 1 2 3; do echo later; sleep 0.3; done; touch survived) & echo now"
    )
    assert server.tool(shared_chat, "sandbox_exec", command=command)["stdout"] == "now\n"
    (server.root / shared_chat / "may-print").touch()
    until((server.root / shared_chat / "survived").exists, "the background process ended by itself")


def test_everything_written_before_the_end_arrives(
    server: RunningSandbox, shared_chat: str
) -> None:
    """Ten megabytes come whole, whatever a pipe holds at once."""
    code = "import sys; sys.stdout.write('x' * 10_000_000)"
    assert len(server.tool(shared_chat, "sandbox_python", code=code)["stdout"]) == 10_000_000


def test_output_above_the_limit_is_dropped_and_counted(
    server: RunningSandbox, shared_chat: str, changed: Change
) -> None:
    """Each stream keeps its beginning, and says how much is missing."""
    changed(output_limit_bytes=1000)
    script = server.tool(shared_chat, "sandbox_python", code="print('x' * 4999)")["stdout"]
    assert script.startswith("x" * 1000 + "\n...")
    assert "4000 bytes more" in script
    outputs = server.tool(shared_chat, "sandbox_notebook", code="print('x' * 4999)")["outputs"]
    assert outputs[0]["text"] == "x" * 1000
    assert "4000 characters" in outputs[1]["text"]


def test_memory_limit_applies_to_processes(
    server: RunningSandbox, shared_chat: str, changed: Change
) -> None:
    """Code that needs more address space than allowed gets a MemoryError."""
    changed(memory_limit_bytes=1 << 30)
    result = server.tool(shared_chat, "sandbox_python", code="b = bytearray(2 << 30)")
    assert "MemoryError" in result["stderr"]
    assert server.tool(shared_chat, "sandbox_python", code="print(1)")["stdout"] == "1\n"


def test_secrets_of_the_environment_are_not_passed_on() -> None:
    """Neither names nor values of secrets reach any process of a sandbox."""
    planted = {
        "IVY_API_KEY": "planted-1",
        "RECOUP_API_KEY": "planted-2",
        "JPY_PARENT_PID": "planted-3",
        "JUPYTER_TOKEN": "planted-4",
        "AWS_SECRET_ACCESS": "planted-5",
        "my_password": "planted-6",
        "GH_TOKEN": "planted-7",
        "SOME_CREDENTIALS": "planted-8",
        "INDEX": "https://user:planted-9@example.org/",
        "INNOCENT": "planted-token-of-the-server",
        "HARMLESS": "stays",
    }
    with running_sandbox(environment=planted, token="planted-token-of-the-server") as server:
        server.ready("c")
        dump = "import os, json; print(json.dumps(dict(os.environ)))"
        texts = [
            server.tool("c", "sandbox_python", code=dump)["stdout"],
            server.tool("c", "sandbox_exec", command="env")["stdout"],
            server.tool("c", "sandbox_notebook", code=dump)["outputs"][0]["text"],
        ]
        reapers = [
            "\n".join(parent.environ().values())
            for pid in server.pids()
            if (parent := psutil.Process(pid).parent()) is not None
        ]
        assert reapers
        for text in [*texts, *reapers]:
            assert "planted" not in text
            assert "stays" in text


def test_home_is_the_chats_own(server: RunningSandbox, shared_chat: str) -> None:
    """What code leaves in its home directory is not in the user's."""
    home = server.tool(shared_chat, "sandbox_exec", command="echo $HOME")["stdout"].strip()
    assert Path(home).is_relative_to(server.root)


def test_code_field_can_be_another(
    server: RunningSandbox, shared_chat: str, changed: Change
) -> None:
    """With another name configured, the usual one is refused with 400."""
    changed(code_field={"sandbox_python": "source"})
    path = f"/v1/sandbox/{shared_chat}/tool/sandbox_python"
    assert server.call("POST", path, {"code": "print(1)"})[0] == 400
    assert server.tool(shared_chat, "sandbox_python", source="print(1)")["stdout"] == "1\n"


def test_long_code_is_refused_when_limited(
    server: RunningSandbox, shared_chat: str, changed: Change
) -> None:
    """Code above max_code_chars is 400 with a code that says why."""
    changed(max_code_chars=10)
    path = f"/v1/sandbox/{shared_chat}/tool/sandbox_python"
    status, _, answer = server.call("POST", path, {"code": "x" * 11})
    assert (status, answer["code"]) == (400, "CODE_TOO_LONG")


def test_killing_the_parent_of_everything_fails_the_sandbox(
    server: RunningSandbox, new_chat: Callable[[], str]
) -> None:
    """A sandbox that killed its own process reaper has failed, and can be created again."""
    chat = new_chat()
    server.ready(chat)
    path = f"/v1/sandbox/{chat}/tool/sandbox_exec"
    command = (
        "setsid env -i sh -c 'echo $$ > daemon.pid; cd /; while :; do sleep 0.05; done' "
        "> /dev/null 2>&1 &\nwhile [ ! -s daemon.pid ]; do sleep 0.01; done\n"
        "kill -9 $PPID; sleep 30"
    )
    status, _, answer = server.call("POST", path, {"command": command})
    assert (status, answer["code"]) == (502, "SANDBOX_ENDED")
    until(lambda: server.status(chat)["status"] == "failed", "the failure is seen")
    daemon = int((server.root / chat / "daemon.pid").read_text())
    until(lambda: not _alive(daemon), "the daemon is gone")
    server.ready(chat)
    assert server.tool(chat, "sandbox_exec", command="echo back")["stdout"] == "back\n"


def test_a_call_in_flight_ends_when_the_sandbox_is_terminated(
    server: RunningSandbox, new_chat: Callable[[], str]
) -> None:
    """Terminate answers the calls that it cut off, of scripts and of the notebook."""
    chat = new_chat()
    server.ready(chat)
    code = "import pathlib, time; pathlib.Path('{}').touch(); time.sleep(60)"
    answers: dict[str, int] = {}

    def run(tool: str) -> None:
        body = {"code": code.format(tool)}
        answers[tool] = server.call("POST", f"/v1/sandbox/{chat}/tool/{tool}", body)[0]

    tools = ("sandbox_python", "sandbox_notebook")
    threads = [threading.Thread(target=run, args=(tool,)) for tool in tools]
    for thread in threads:
        thread.start()
    until(lambda: all((server.root / chat / tool).exists() for tool in tools), "both calls run")
    server.call("POST", f"/v1/sandbox/{chat}/terminate")
    for thread in threads:
        thread.join(10)
    assert answers == {"sandbox_python": 502, "sandbox_notebook": 502}
