"""The hostile runners: what survives a call, and what a call can see of another."""

from __future__ import annotations

import itertools
import json
import threading

import pytest
from sandbox_server import RunningSandbox, running_sandbox, until

from ivy_kernel.local_sandbox.simulation.platforms import unavailable

_DAEMON = (
    "nohup setsid sh -c 'while :; do date > beat; sleep 0.05; done' > /dev/null 2>&1 &\n"
    "while [ ! -e beat ]; do sleep 0.02; done"
)


def _needs(runner: str) -> pytest.MarkDecorator:
    why = unavailable(runner)
    return pytest.mark.skipif(bool(why), reason=why or "it is available")


def test_normal_lets_daemons_live_and_share_tmp() -> None:
    """What a call started goes on, and files in /tmp are there for the next call."""
    with running_sandbox() as server:
        server.ready("c")
        server.tool("c", "sandbox_exec", command=_DAEMON)
        assert server.pids()
        made = server.tool("c", "sandbox_exec", command="mktemp /tmp/ivy-test-XXXXXX")["stdout"]
        seen = server.tool("c", "sandbox_exec", command=f"cat {made.strip()} && rm {made.strip()}")
        assert seen["exit_code"] == 0


@_needs("kill_descendants")
def test_kill_descendants_leaves_nothing_of_a_call() -> None:
    """A daemon ends with the call that started it; exit codes stay what they were."""
    with running_sandbox(runner="kill_descendants") as server:
        server.ready("c")
        result = server.tool("c", "sandbox_exec", command=_DAEMON + "\nexit 3")
        assert result["exit_code"] == 3
        assert server.pids() == []
        killed = server.tool("c", "sandbox_exec", command="kill -9 $$")
        assert killed["exit_code"] == 137
        status, _, _ = server.call(
            "POST", "/v1/sandbox/c/exec", {"command": _DAEMON + "\nsleep 30", "timeout": 0.5}
        )
        assert status == 504
        until(lambda: server.pids() == [], "the call's processes are gone")


@_needs("fresh_tmp")
def test_fresh_tmp_gives_each_call_its_own() -> None:
    """/tmp is empty in every call, while the chat's directory is the same; daemons survive."""
    with running_sandbox(runner="fresh_tmp") as server:
        server.ready("c")
        server.tool("c", "sandbox_exec", command="touch /tmp/mine here; " + _DAEMON)
        seen = server.tool(
            "c", "sandbox_exec", command="ls -A /tmp; pwd; ls; echo $XDG_RUNTIME_DIR"
        )
        lines = seen["stdout"].split("\n")
        assert "mine" not in lines
        assert str(server.root / "c") in lines
        assert "here" in lines
        assert lines[-2] == ""
        code = "from pathlib import Path; print(Path('/tmp/mine').exists(), Path('here').exists())"
        assert server.tool("c", "sandbox_python", code=code)["stdout"] == "False True\n"
        assert server.pids()


@_needs("pid_namespace")
def test_pid_namespace_ends_with_the_call() -> None:
    """A call sees only its own processes, and its daemons end with it."""
    with running_sandbox(runner="pid_namespace") as server:
        server.ready("c")
        result = server.tool("c", "sandbox_python", code="import os; print(os.getpid())")
        assert result["stdout"] == "1\n"
        server.tool("c", "sandbox_exec", command=_DAEMON)
        until(lambda: server.pids() == [], "the call's processes are gone")


def test_serial_runs_one_call_at_a_time() -> None:
    """Calls of one chat, of whatever tool, never overlap; another chat is not held up."""
    code = (
        "import time, pathlib\nb = time.time(); time.sleep(0.3); e = time.time()\n"
        "open('spans', 'a').write(f'{b} {e}\\n')"
    )
    with running_sandbox(runner="serial") as server:
        server.ready("c")
        server.ready("d")
        threads = [
            threading.Thread(target=server.tool, args=("c", tool), kwargs={"code": code})
            for tool in ("sandbox_python", "sandbox_notebook", "sandbox_python")
        ]
        for thread in threads:
            thread.start()
        server.tool("d", "sandbox_files")
        assert any(thread.is_alive() for thread in threads)
        for thread in threads:
            thread.join()
        lines = (server.root / "c" / "spans").read_text().splitlines()
        spans = sorted(tuple(float(word) for word in line.split()) for line in lines)
        assert len(spans) == 3
        for (_, end), (start, _) in itertools.pairwise(spans):
            assert end <= start


def test_python_dash_c_has_the_systems_limit() -> None:
    """Short code runs as an argument; code above the limit is a failed run, not a crash."""
    with running_sandbox(runner="python_dash_c") as server:
        server.ready("c")
        code = "import sys; print(sys.argv, len(sys.orig_argv))"
        assert server.tool("c", "sandbox_python", code=code)["stdout"] == "['-c'] 3\n"
        long = server.tool("c", "sandbox_python", code="x = '" + "y" * 200_000 + "'")
        assert long["exit_code"] == 126
        assert "too long" in long["stderr"]


def test_runner_can_be_changed_while_it_runs(server: RunningSandbox) -> None:
    """A runner that the machine does not have is refused, the others take effect."""
    missing = [name for name in ("fresh_tmp", "pid_namespace") if unavailable(name)]
    for name in missing:
        status, _, body = server.call("POST", "/_control", {"runner": name})
        assert (status, body["code"]) == (400, "RUNNER_UNAVAILABLE")
    assert server.control({"runner": "serial"})["config"]["runner"] == "serial"
    assert server.control({"runner": "normal"})["config"]["runner"] == "normal"


def test_control_shows_the_settings_as_json(server: RunningSandbox) -> None:
    """Everything that is shown can be sent back."""
    config = server.control()["config"]
    config.pop("tokens")
    assert json.loads(json.dumps(config)) == config
    assert server.control(config)["config"].items() >= config.items()
