"""The server as a process: how it starts, says where it is, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from sandbox_server import REPOSITORY, RunningSandbox, running_sandbox, until

from ivy_kernel.local_sandbox.tools import TOOLS

_DAEMON = (
    "setsid env -i sh -c 'echo $$ > daemon.pid; cd /; while :; do sleep 0.05; done' "
    "> /dev/null 2>&1 &"
)


def _alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _fill_with_processes(server: RunningSandbox) -> list[int]:
    """All processes of a server that has a kernel, a daemon and a call under way."""
    server.ready("c")
    server.tool("c", "sandbox_notebook", code="x = 1")
    server.tool("c", "sandbox_exec", command=_DAEMON + " sleep 300 &")
    daemon_file = server.root / "c" / "daemon.pid"
    until(lambda: daemon_file.exists() and daemon_file.read_text(), "the daemon runs")
    inside = server.pids()
    assert int(daemon_file.read_text()) in inside
    below = [child.pid for child in psutil.Process(server.pid).children(recursive=True)]
    # The daemon starts short processes all the time: one of them may have ended in between.
    assert {pid for pid in inside if _alive(pid)} <= set(below)
    return [server.pid, *below]


def _server_pid(server: RunningSandbox) -> int:
    return psutil.Process(server.pid).children()[0].pid


def test_runtime_file_is_private_whole_and_removed() -> None:
    """It is for its user alone, says all that a client needs, and goes with the server."""
    with running_sandbox(token="a-token-of-this-test") as server:
        assert stat.S_IMODE(server.runtime_file.stat().st_mode) == 0o600
        about = json.loads(server.runtime_file.read_text())
        assert set(about) == {"url", "socket", "token", "pid", "version", "started"}
        assert about["token"] == "a-token-of-this-test"
        assert about["pid"] == server.process.pid
        assert about["url"].startswith("http://127.0.0.1:")
        assert about["url"].endswith("/api")
        assert server.stop() == 0
        assert not server.runtime_file.exists()


def test_token_is_random_without_the_variable() -> None:
    """Two servers have different tokens, long enough not to be guessed."""
    with running_sandbox() as one, running_sandbox() as two:
        assert one.token != two.token
        assert len(one.token) >= 32
        assert one.call("GET", "/v1/sandbox/c/status")[0] == 200
        headers = {"Authorization": f"Bearer {two.token}"}
        assert one.call("GET", "/v1/sandbox/c/status", headers=headers)[0] == 401


def test_token_is_in_no_process_list(server: RunningSandbox, chat: str) -> None:
    """No command line of the server or of anything below it holds the token."""
    server.tool(chat, "sandbox_notebook", code="1")
    parent = psutil.Process(server.pid)
    lines = [process.cmdline() for process in [parent, *parent.children(recursive=True)]]
    assert len(lines) >= 4
    assert not any(server.token in word for line in lines for word in line)


def test_log_holds_neither_token_nor_query(tmp_path: Path) -> None:
    """The access log names routes, and no credential in whatever form it came."""
    log = tmp_path / "log"
    token = "marked-token-8765"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "ivy_kernel.local_sandbox", "--verbose"),
                *("--root", str(tmp_path / "root"), "--runtime-file", str(tmp_path / "r.json")),
            ],
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), "IVY_LOCAL_SANDBOX_TOKEN": token},
            stdout=file,
            stderr=file,
        )
    try:
        about = until(lambda: _json(tmp_path / "r.json"), "the server listens")
        server = RunningSandbox(
            about["url"], token, about["pid"], tmp_path / "root", tmp_path / "r.json", process
        )
        server.call("GET", "/v1/sandbox/c/status")
        server.call("GET", f"/sandbox/status?sessionId={token}&key={token}")
        server.call("GET", f"/nowhere?token={token}")
        server.call("GET", "/v1/sandbox/c/status", headers={"Cookie": f"__session={token}"})
        server.call("POST", "/v1/sandbox/create", data=token.encode())
    finally:
        process.terminate()
        process.wait(20)
    text = log.read_text()
    assert "GET /api/v1/sandbox/c/status 200" in text
    assert token not in text


def _json(path: Path) -> dict[str, object]:
    return json.loads(path.read_text()) if path.exists() else {}


def test_tokens_on_the_command_line_are_refused(tmp_path: Path) -> None:
    """Further tokens in --config are an error that does not repeat them."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "ivy_kernel.local_sandbox", "--root", str(tmp_path)),
            *("--config", json.dumps({"tokens": {"marked-token-1": "someone"}})),
        ],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 1
    assert b"must not hold tokens" in done.stderr
    assert b"marked-token-1" not in done.stderr


def test_a_wrong_setting_is_named(tmp_path: Path) -> None:
    """A wrong value ends the start with the setting, the value and what is allowed."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "ivy_kernel.local_sandbox", "--root", str(tmp_path)),
            *("--config", json.dumps({"runner": "sideways"})),
        ],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 1
    assert 'runner cannot be "sideways"; allowed: "normal"' in done.stderr


def test_help_says_that_it_is_no_security_boundary() -> None:
    """--help tells that, and names every setting."""
    from ivy_kernel.local_sandbox.config import Config

    done = subprocess.run(
        [sys.executable, "-m", "ivy_kernel.local_sandbox", "--help"],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert "NOT a security boundary" in done.stdout
    for name in Config.__struct_fields__:
        assert f"  {name} (default" in done.stdout


_REPORTS_MODULES = """\
import sys
from ivy_kernel.local_sandbox.__main__ import main
exit_code = main(sys.argv[1:])
names = [name for name in sys.modules if name.startswith("ivy_kernel.local_sandbox.simulation")]
print(sorted(name.rpartition(".")[2] for name in names))
raise SystemExit(exit_code)
"""


def _simulation_loaded(tmp_path: Path, *arguments: str) -> str:
    """The modules of the simulation that a server has loaded when it has used every tool."""
    runtime_file = tmp_path / "r.json"
    read_end, write_end = os.pipe()
    process = subprocess.Popen(
        [
            # With a descriptor the command runs the server itself, and no supervisor around it.
            *(sys.executable, "-c", _REPORTS_MODULES, f"--supervisor-descriptor={read_end}"),
            *("--root", str(tmp_path / "root"), "--runtime-file", str(runtime_file), *arguments),
        ],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        pass_fds=[read_end],
    )
    os.close(read_end)
    try:
        about = until(lambda: _json(runtime_file), "the server listens")
        server = RunningSandbox(
            about["url"], about["token"], about["pid"], tmp_path / "root", runtime_file, process
        )
        server.ready("c")
        for tool in TOOLS:
            body = {"code": "1", "command": "true", "path": "", "pattern": "*", "content": ""}
            status = server.call("POST", f"/v1/sandbox/c/tool/{tool}", body)[0]
            assert status in (200, 400), tool
        os.close(write_end)  # now it stops
        report, _ = process.communicate(timeout=20)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    assert process.returncode == 0
    return report.decode().splitlines()[-1]


def test_a_plain_server_loads_no_simulation(tmp_path: Path) -> None:
    """With default settings none of the test instruments is loaded, whatever tool is used."""
    assert _simulation_loaded(tmp_path) == "[]"


@pytest.mark.parametrize(
    ("arguments", "module"),
    [
        (["--control"], "control"),
        (["--config", '{"result_family": "text"}'], "platforms"),
        (["--config", '{"result_case": "camel"}'], "platforms"),
        (["--config", '{"runner": "serial"}'], "platforms"),
    ],
)
def test_a_setting_loads_its_part_of_the_simulation(
    tmp_path: Path, arguments: list[str], module: str
) -> None:
    """A setting that asks for a test instrument loads that one, and no other."""
    assert _simulation_loaded(tmp_path, *arguments) == str([module, "simulation"])


def test_two_servers_do_not_share_a_root(tmp_path: Path) -> None:
    """The second one says that the directory is in use, with an exit code of its own."""
    with running_sandbox(root=tmp_path):
        done = subprocess.run(
            [
                *(sys.executable, "-m", "ivy_kernel.local_sandbox"),
                *("--root", str(tmp_path), "--root-wait-seconds", "0"),
            ],
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    assert done.returncode == 3
    assert "another local sandbox works in" in done.stderr


def test_files_outlive_the_server(tmp_path: Path) -> None:
    """A chat's files and manifest are there again when the server comes again."""
    with running_sandbox(root=tmp_path) as server:
        server.ready("c")
        server.tool("c", "sandbox_write", path="kept.txt", content="kept")
        server.tool("c", "sandbox_export", path="kept.txt")
    with running_sandbox(root=tmp_path) as server:
        assert server.status("c") == {"status": "none"}
        manifest = server.call("GET", "/v1/sandbox/c/manifest")[2]
        assert [entry["path"] for entry in manifest["files"]] == ["kept.txt"]
        server.ready("c")
        assert server.tool("c", "sandbox_read", path="kept.txt")["content"] == "kept"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_every_process_is_gone_after_an_orderly_end(number: signal.Signals) -> None:
    """Kernel, daemon and process reaper end with the server, whose exit code is 0."""
    with running_sandbox() as server:
        pids = _fill_with_processes(server)
        server.process.send_signal(number)
        assert server.process.wait(20) == 0
        assert [pid for pid in pids if _alive(pid)] == []


def _kill_entry(server: RunningSandbox) -> None:
    os.kill(server.pid, signal.SIGKILL)


def _kill_server(server: RunningSandbox) -> None:
    os.kill(_server_pid(server), signal.SIGKILL)


def _kill_both(server: RunningSandbox) -> None:
    below = _server_pid(server)
    os.kill(server.pid, signal.SIGSTOP)
    os.kill(below, signal.SIGKILL)
    os.kill(server.pid, signal.SIGKILL)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux finds every daemon")
@pytest.mark.parametrize("kill", [_kill_entry, _kill_server, _kill_both])
def test_every_process_is_gone_after_sigkill(kill: Callable[[RunningSandbox], None]) -> None:
    """Whichever process of the server is killed with SIGKILL, nothing is left running."""
    with running_sandbox() as server:
        pids = _fill_with_processes(server)
        kill(server)
        until(lambda: not any(_alive(pid) for pid in pids), "all processes are gone")
        server.process.wait(20)


def test_runtime_file_is_removed_when_the_server_is_killed() -> None:
    """The entry process removes it when the server could not."""
    with running_sandbox() as server:
        _kill_server(server)
        server.process.wait(20)
        assert not server.runtime_file.exists()


def test_an_idle_server_ends_by_itself() -> None:
    """Without requests and busy processes it stops after the idle time, with exit code 0."""
    with running_sandbox(idle_exit_seconds=3.0) as server:
        server.ready("c")
        server.tool("c", "sandbox_exec", command="sleep 300 &")
        assert server.process.wait(30) == 0
        assert not server.runtime_file.exists()


def test_a_refused_request_does_not_keep_it_alive() -> None:
    """Requests without an accepted token do not count."""
    with running_sandbox(idle_exit_seconds=3.0) as server:

        def knocked_and_gone() -> bool:
            if server.process.poll() is None:
                with contextlib.suppress(OSError):
                    server.call("GET", "/v1/sandbox/c/status", headers={})
            return server.process.poll() == 0

        until(knocked_and_gone, "it stopped")


def test_a_busy_process_keeps_it_alive() -> None:
    """While a process of a sandbox computes, the server stays, even without requests."""
    with running_sandbox(idle_exit_seconds=3.0) as server:
        server.ready("c")
        code = "import time; end = time.time() + 6\nwhile time.time() < end: pass"
        began = time.monotonic()
        server.tool("c", "sandbox_exec", command=f"python -c '{code}' > /dev/null 2>&1 &")
        assert server.process.wait(40) == 0
        assert time.monotonic() - began > 6


def test_a_call_in_flight_keeps_it_alive() -> None:
    """A call that sleeps longer than the idle time still gets its answer."""
    with running_sandbox(idle_exit_seconds=3.0) as server:
        server.ready("c")
        code = "import time; time.sleep(5); print('whole')"
        assert server.tool("c", "sandbox_python", code=code)["stdout"] == "whole\n"
