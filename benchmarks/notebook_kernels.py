"""Kernels of a sandbox as the agent launches them, started by the dozen, and killed."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from queue import Empty
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.connect import write_connection_file

from ivy_kernel.agent.ipython_kernel import LAUNCHER
from ivy_kernel.routes.agent.programs import agent_archive, work_archive

Json = dict[str, Any]

HERE = Path(__file__).resolve().parent
START_SECONDS = 120.0
CELL_SECONDS = 300.0

ZYGOTE = """
import importlib, json, os, signal, sys
sys.path[:] = [item for item in sys.path if item]
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for name in json.loads(sys.stdin.readline()):
    try:
        importlib.import_module(name)
    except Exception:
        pass
print("ready", flush=True)
for line in iter(sys.stdin.readline, ""):
    asked = json.loads(line)
    pid = os.fork()
    if not pid:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.chdir(asked["directory"])
        log = os.open(asked["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0); os.dup2(log, 1); os.dup2(log, 2)
        sys.argv[:] = ["-c", "-f", asked["connection"]]
        sys.path.insert(0, "")
        exec(asked["program"])
        os._exit(0)
    print(pid, flush=True)
"""
"""Forks kernels that have the notebook's libraries already."""


class Place:
    """Where kernels of one notebook live, and how they start.

    Parameters
    ----------
    python
        The interpreter of the sandbox.
    modules
        What is imported before the kernels are forked.
    """

    def __init__(self, python: str, modules: list[str]) -> None:
        self._python = python
        self.root = Path(tempfile.mkdtemp(prefix="ivy-"))
        archive = self.root / "private" / "agent.zip"
        archive.parent.mkdir()
        archive.write_bytes(agent_archive())
        shutil.copy(HERE / "value_digest.py", self.root / "private" / "value_digest.py")
        self._program = f"ARCHIVE = {str(archive)!r}\n{LAUNCHER}"
        self._environment = {
            **{k: v for k, v in os.environ.items() if k in ("PATH", "HOME", "LANG")},
            "PYTHONPATH": str(self.root / "private"),
            "IPYTHONDIR": str(self.root / "ipython"),
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "PYTHONHASHSEED": "0",
            "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        }
        self._zygote = subprocess.Popen(
            [python, "-c", ZYGOTE],
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._ask(modules)
        self.log = self.root / "kernels.log"

    def _ask(self, what: Any) -> str:
        assert self._zygote.stdin is not None
        assert self._zygote.stdout is not None
        self._zygote.stdin.write(json.dumps(what) + "\n")
        self._zygote.stdin.flush()
        return self._zygote.stdout.readline()

    def start(
        self, directory: Path, connection: str, *, is_cold: bool
    ) -> int | subprocess.Popen[bytes]:
        """Start a kernel; return its process, or the id of one that nobody must wait for."""
        if is_cold:
            with self.log.open("ab") as log:
                return subprocess.Popen(
                    [self._python, "-c", self._program, "-f", connection],
                    cwd=directory,
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
        asked = {"directory": str(directory), "connection": connection, "log": str(self.log)}
        return int(self._ask({**asked, "program": self._program}))

    def close(self) -> None:
        """End everything, and remove the files."""
        self._zygote.kill()
        self._zygote.communicate()
        shutil.rmtree(self.root, ignore_errors=True)


class Kernel:
    """One kernel process in a working directory."""

    def __init__(self, place: Place, directory: Path, *, is_cold: bool = False) -> None:
        self._directory = directory
        self._file = place.root / "digests.json"
        name = str(place.root / f"c{random.getrandbits(40):x}.json")
        ip = name.removesuffix(".json")
        _, info = write_connection_file(
            name, transport="ipc", ip=ip, key=os.urandom(16).hex().encode()
        )
        self._process = place.start(directory, name, is_cold=is_cold)
        self._client = BlockingKernelClient()
        self._client.load_connection_info(info)
        self._client.start_channels(iopub=False, stdin=False, hb=False, control=False)
        self.ask("kernel_info_request", {}, START_SECONDS)

    @property
    def pid(self) -> int:
        """The id of its process."""
        return self._process if isinstance(self._process, int) else self._process.pid

    def send(self, kind: str, content: Json, metadata: Json | None = None) -> str:
        """Send a request; return its id."""
        message = self._client.session.msg(kind, content, metadata=metadata)
        self._client.shell_channel.send(message)
        return str(message["header"]["msg_id"])

    def reply(self, message_id: str, seconds: float) -> Json | None:
        """Return the reply to a request; ``None`` when it takes longer."""
        end = time.monotonic() + seconds
        while True:
            try:
                left = max(end - time.monotonic(), 0.0)
                found: Json = self._client.get_shell_msg(timeout=min(left, 0.5))
            except Empty:
                if time.monotonic() >= end:
                    return None
                continue
            if found["parent_header"].get("msg_id") == message_id:
                return found

    def ask(self, kind: str, content: Json, seconds: float = CELL_SECONDS) -> Json:
        """Return the content of the reply to a request."""
        found = self.reply(self.send(kind, content), seconds)
        if found is None:
            raise TimeoutError(f"no reply to {kind} within {seconds:.0f} s")
        return dict(found["content"])

    def work(self, do: str, **content: Any) -> Json:
        """Return the reply to a request of the work package."""
        return self.ask("ivy_work_request", {"do": do, **content})

    def configure(self, *, checkpoints: bool = True) -> None:
        """Give it the work package."""
        reply = self.work(
            "configure",
            archive=base64.b64encode(work_archive()).decode("ascii"),
            key="ab" * 32,
            chat="chat",
            notebook="notebook",
            directory=".ivy/notebook",
            checkpoints=checkpoints,
            receipts=False,
            space_bytes=1 << 30,
            share=0.05,
        )
        if reply["status"] != "ok":
            raise RuntimeError(reply["evalue"])

    def begin(self, source: str, number: int) -> str:
        """Begin a cell; return the request's id."""
        digest = hashlib.sha256(source.encode()).hexdigest()
        info = {"cell": f"cell-{number}", "number": number, "code": digest}
        return self.send("execute_request", execution(source, is_hidden=False), {"ivy": info})

    def run(self, source: str, number: int) -> Json:
        """Run a cell; return its reply."""
        found = self.reply(self.begin(source, number), CELL_SECONDS)
        if found is None:
            raise TimeoutError(f"cell {number} takes too long")
        return found

    def digests(self, *traced: str) -> Json:
        """Return the digests of all variables."""
        self._file.unlink(missing_ok=True)
        names = "".join(f", {name!r}" for name in traced)
        code = (
            "__import__('value_digest').write("
            f"__import__('IPython').get_ipython().user_ns, {str(self._file)!r}{names})"
        )
        reply = self.ask("execute_request", execution(code, is_hidden=True))
        if reply["status"] != "ok":
            raise RuntimeError(f"{reply['ename']}: {reply['evalue']}")
        return dict(json.loads(self._file.read_text()))

    def kill(self, *, with_children: bool = True) -> None:
        """Kill it, perhaps with everything else that runs in its directory."""
        pids = [self.pid] + (processes_in(self._directory) if with_children else [])
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if not isinstance(self._process, int):
            self._process.wait()
        while Path(f"/proc/{self.pid}").exists():
            time.sleep(0.002)
        self._client.stop_channels()


def execution(code: str, *, is_hidden: bool) -> Json:
    """Return the content of a request that executes code."""
    options = {"silent": is_hidden, "store_history": not is_hidden, "user_expressions": {}}
    return {"code": code, "allow_stdin": False, "stop_on_error": False, **options}


def processes_in(directory: Path) -> list[int]:
    """Return the processes whose working directory is there."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if (entry / "cwd").readlink().is_relative_to(directory):
                found.append(int(entry.name))
    return found
