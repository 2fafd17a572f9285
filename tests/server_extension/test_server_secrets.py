"""The platform's key stays in the server process."""

from __future__ import annotations

from pathlib import Path

from jupyter_server_driver import MARKED_KEY, RunningJupyter
from sandbox_server import until
from test_server_actions import state_of


def test_the_key_is_found_nowhere(jupyter: RunningJupyter, chat_id: str) -> None:
    """Not in any answer or event so far, nor in the log with debugging on, nor in any file."""
    with jupyter.events() as events:
        jupyter.act("create")
        events.until(lambda found: state_of(found) == "active", "it became active", 20)
        jupyter.act("reconnect")
        body = {"type": "file", "format": "text", "content": "x"}
        for method, path in (
            ("PUT", f"ivy/contents/{chat_id}/file"),
            ("GET", f"ivy/contents/{chat_id}"),
            ("GET", f"ivy/files/{chat_id}/file"),
            ("GET", f"ivy/manifest/{chat_id}"),
        ):
            assert jupyter.call(method, path, body)[0] == 200
        assert jupyter.call("GET", f"ivy/contents/{chat_id}/nothing")[0] == 404
        # A key in the wrong place must not be quoted back.
        jupyter.home.configure({"chat_id": chat_id, "route": MARKED_KEY, "api_key": MARKED_KEY})
        until(lambda: events.sandboxes[0]["missing"], "the fault was told")
        jupyter.call("GET", "ivy/sandboxes/none")
    jupyter.home.configure(None)
    key = MARKED_KEY.encode()
    assert len(jupyter.received) > 10
    assert not [raw for raw in jupyter.received if key in raw]
    log = jupyter.log.read_bytes()
    assert b"ivy/sandboxes" in log
    assert key not in log
    files = [path for path in jupyter.home.path.rglob("*") if path.is_file()]
    assert not [path for path in files if _holds(path, key)]


def _holds(path: Path, key: bytes) -> bool:
    return key in path.read_bytes()
