"""A process that holds variables and the work package, and nothing else of a kernel."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from ivy_kernel.routes.agent.programs import agent_archive, work_archive

PROGRAM = """
import builtins, io, json, linecache, sys, traceback, types
sys.path.insert(0, sys.argv[1])
from ivy_agent.extension import Extension, Host
sys.path.remove(sys.argv[1])
main = types.ModuleType("__main__")
sys.modules["__main__"] = main
main.__builtins__ = builtins
count = [0]
extension = Extension(Host(lambda: main.__dict__, lambda number: count.__setitem__(0, number)))
said = sys.__stdout__
for line in sys.stdin:
    asked = json.loads(line)
    if "do" in asked:
        answer = extension.answer(asked)
    elif "idle" in asked:
        answer = {"wait": extension.on_idle()}
    else:
        count[0] += 1
        number = asked.get("number") or count[0]
        extension.before_cell({"ivy": {"cell": "", "number": number, "code": ""}})
        sys.stdout = io.StringIO()
        answer = {"status": "ok", "number": count[0]}
        name = "Cell In[%d]" % count[0]
        linecache.cache[name] = (len(asked["code"]), None, asked["code"].splitlines(True), name)
        try:
            exec(compile(asked["code"], name, "exec", dont_inherit=True), main.__dict__)
        except BaseException as error:
            answer = {"status": "error", "evalue": traceback.format_exc()}
        answer["text"] = sys.stdout.getvalue()
        sys.stdout = said
        answer["metadata"] = extension.after_cell(answer)
    print(json.dumps(answer), file=said, flush=True)
"""


class BareKernel:
    """Runs cells in one namespace, and answers what the work package is asked.

    Parameters
    ----------
    directory
        The working directory; its ``.ivy/notebook`` is the state directory.
    python
        The interpreter.
    """

    def __init__(self, directory: Path, python: str = sys.executable) -> None:
        self._private = tempfile.TemporaryDirectory()
        archive = Path(self._private.name) / "agent.zip"
        archive.write_bytes(agent_archive())
        self._process = subprocess.Popen(
            [python, "-c", PROGRAM, str(archive)],
            cwd=directory,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()
        self._private.cleanup()

    @property
    def pid(self) -> int:
        """The id of its process."""
        return self._process.pid

    def configure(self, *, key: str = "ab" * 32, chat: str = "chat", **settings: Any) -> Any:
        """Configure it for a notebook; return the reply."""
        return self.ask(
            "configure",
            archive=base64.b64encode(work_archive()).decode("ascii"),
            key=key,
            chat=chat,
            notebook="notebook",
            directory=".ivy/notebook",
            **{"checkpoints": True, "receipts": False, "space_bytes": 1 << 28, **settings},
        )

    def ask(self, do: str, **content: Any) -> Any:
        """Return the reply to a request."""
        return self._say({"do": do, **content})

    def idle(self) -> Any:
        """Let it do what is due between cells."""
        return self._say({"idle": True})["wait"]

    def run(self, code: str, *, number: int | None = None) -> Any:
        """Run a cell; return its text and its reply's metadata; fail when it fails."""
        reply = self._say({"code": code, "number": number})
        assert reply["status"] == "ok", reply["evalue"]
        return reply

    def _say(self, message: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())
