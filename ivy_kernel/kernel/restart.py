"""What a kernel process that ends must see to, and what it leaves to the next one.

A restart or a shutdown ends this process, while cells and variables live in the sandboxes. The
process has 2.5 s for its shutdown, too little for some networks. So it keeps files, found by the
name of its connection file, which outlives restarts and crashes:

- a *restart mark* for each chat, on which the next process empties the chat's namespace when it
  uses that chat;
- an *agent record* for each chat, by which the agent in that sandbox is ended, with all that runs
  in it: at once by the process itself; what it does not reach in time, by a process that goes on
  after it (``python -m ivy_kernel.kernel.restart``). After a crash nothing is ended: the next
  process finds the agent, and its variables, by the same name;
- the chat that ``%ivy attach`` has chosen, written down when it is chosen: the next process may
  follow a crash.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jupyter_core.paths import jupyter_runtime_dir

from ivy_kernel.errors import IvyError, NotSentError
from ivy_kernel.session import private_file
from ivy_kernel.settings.settings import environment_with_keys

if TYPE_CHECKING:  # what takes long to import is imported when a process ends, or goes on after it
    from traitlets.config import Config

    from ivy_kernel.routes.events import EndingCall

Chat = tuple[str, ...]
"""Identity of a chat: the API's address, and the chat's id."""


_keys: dict[str, str] = {}
_keys_lock = threading.Lock()


def session_key_of(connection_file: str) -> str:
    """Return the name of this kernel in a sandbox, which is the same after a restart.

    Where a Jupyter server has ended and left a notebook's agent, it is the name of the kernel
    before, for the one kernel that the notebook has then.
    """
    key = _key_of_file(connection_file)
    if not os.environ.get("JPY_SESSION_NAME"):
        return key
    with _keys_lock:  # claimed once for this process, whichever thread asks first
        if connection_file not in _keys:
            from ivy_kernel.session.kernel_registry import NotebookClaim  # not at a kernel's start

            claim = NotebookClaim(connection_file, key, lambda other: bool(_records_of(other)))
            _keys[connection_file] = key if _records_of(key) else claim.take()
        return _keys[connection_file]


def _key_of_file(connection_file: str) -> str:
    """Return a name for the kernels of a connection file.

    The file's name alone would not do: ``kernel.json`` is a common one, and two machines may share
    a sandbox.
    """
    path = str(Path(connection_file).absolute())
    return hashlib.sha256(f"{platform.node()}\n{path}".encode()).hexdigest()[:20]


def _records_of(session_key: str) -> list[Path]:
    return sorted(Path(jupyter_runtime_dir()).glob(f"ivy-agent-{session_key}-*"))


def has_agents(connection_file: str) -> bool:
    """Whether an earlier process has left an agent that this kernel may find."""
    return bool(_records_of(session_key_of(connection_file)))


# When the Jupyter server ends ---------------------------------------------------------------------
KEPT_SECONDS = 120.0
"""A server that ends shuts its kernels down within this time, or kills them."""


def keep_for_next_server(kernel_ids: Iterable[str]) -> None:
    """Have kernels leave their agents when they are shut down now: it is their server that ends.

    What runs in the sandboxes goes on, and the variables stay. Called by the server extension
    before the server shuts its kernels down; never raises.

    Parameters
    ----------
    kernel_ids
        The kernels, as their Jupyter server calls them.
    """
    for path in Path(jupyter_runtime_dir()).glob("ivy-keep-*"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > KEPT_SECONDS:
                path.unlink()
    for kernel_id in kernel_ids:
        with suppress(OSError):
            private_file.write_json(_keep_path(kernel_id), {"at": time.time()})


def is_kept_for_next_server(connection_file: str) -> bool:
    """Whether a shutdown, or the interrupt before it, that is asked for now is the server's end."""
    try:
        at = float(private_file.read_json(_keep_path(Path(connection_file).stem))["at"])
    except (OSError, ValueError, KeyError, TypeError):
        return False
    # Only for notebooks: nothing else finds its agent again.
    return abs(time.time() - at) < KEPT_SECONDS and bool(os.environ.get("JPY_SESSION_NAME"))


def _keep_path(kernel_id: str) -> Path:
    # Jupyter's name of the kernel's connection file has its id.
    which = hashlib.sha256(kernel_id.removeprefix("kernel-").encode()).hexdigest()[:20]
    return Path(jupyter_runtime_dir()) / f"ivy-keep-{which}"


def mark_unused(connection_file: str, *, restart: bool) -> None:
    """Note the end of a process that has run no cell; one before it may have left agents."""
    if restart:
        agents = AgentRecords(connection_file).all()
        RestartMark(connection_file).set(record.chat for record in agents)
    else:
        RestartMark(connection_file).remove_all()


# Files of one kernel ------------------------------------------------------------------------------


def _key_hash(connection_file: str) -> str:
    """Return a value that stays through restarts, and that no later kernel of that file's name has.

    Each kernel signs its messages with a key of its own.
    """
    try:
        key = json.loads(Path(connection_file).read_text("utf-8")).get("key", "")
    except (OSError, ValueError, AttributeError):
        return ""
    return hashlib.sha256(str(key).encode()).hexdigest()[:20]


def _path_of(name: str, chat: Chat) -> Path:
    which = hashlib.sha256("\n".join(chat).encode()).hexdigest()[:16]
    return Path(jupyter_runtime_dir()) / f"{name}-{which}"


class RestartMark:
    """The marks of one kernel, found by the name of its connection file; a file for each chat.

    Parameters
    ----------
    connection_file
        The kernel's connection file; its name outlives restarts.
    """

    def __init__(self, connection_file: str) -> None:
        self._connection_file = connection_file
        self._name = f"ivy-restart-{session_key_of(connection_file)}"
        self._lock = threading.Lock()
        self._is_ending = False

    def set(self, chats: Iterable[Chat]) -> None:
        """Set the marks of a process that ends; may be called on any thread. They stay then."""
        with self._lock:
            self._is_ending = True
            for chat in chats:
                with suppress(OSError):
                    _path_of(self._name, chat).touch(mode=0o600)

    def is_set(self, chat: Chat) -> bool:
        """Called by the process that begins, when it is about to use a chat."""
        return _path_of(self._name, chat).exists()

    def remove(self, chat: Chat) -> None:
        """Called when the chat's namespace is known to be empty."""
        # A cell may end just after `set`, on another thread; its mark is for the next process.
        with self._lock, suppress(OSError):
            if not self._is_ending:
                _path_of(self._name, chat).unlink(missing_ok=True)

    def remove_all(self) -> None:
        """Called when the kernel ends for good."""
        self.keep_attached({})
        with suppress(OSError):
            for path in Path(jupyter_runtime_dir()).glob(f"{self._name}-*"):
                path.unlink(missing_ok=True)

    def keep_attached(self, ids: dict[str, str]) -> None:
        """Keep the chat that ``%ivy attach`` has chosen; empty when the settings' own one is used.

        Without its file, which cannot be written everywhere, the choice ends with the process.
        """
        with suppress(OSError):
            if ids:
                facts = {"ids": ids, "kernel": _key_hash(self._connection_file)}
                private_file.write_json(self._attached_path, facts)
            else:
                self._attached_path.unlink(missing_ok=True)

    def attached(self) -> dict[str, str]:
        """Return the chat that an earlier process of this kernel has attached, with its ids."""
        try:
            facts = private_file.read_json(self._attached_path)
            ids = dict(facts["ids"])
        except (OSError, ValueError, KeyError, TypeError):
            return {}
        is_ours = facts.get("kernel") == _key_hash(self._connection_file)
        are_texts = all(isinstance(value, str) for value in ids.values())
        return ids if is_ours and are_texts and ids.get("chat_id") else {}

    @property
    def _attached_path(self) -> Path:
        return Path(jupyter_runtime_dir()) / f"ivy-attached-{session_key_of(self._connection_file)}"


@dataclass(frozen=True, slots=True)
class AgentRecord:
    """An agent that works for this kernel in a sandbox, and the call that ends it. Holds no key.

    Parameters
    ----------
    api_url, chat_id, campaign_id
        The sandbox.
    tool, code, call_id
        As in `EndingCall`.
    failure
        Why it could not be ended after a restart; empty while that is not known.
    """

    api_url: str
    chat_id: str
    campaign_id: str
    tool: str
    code: str
    call_id: str
    failure: str = ""

    @property
    def chat(self) -> Chat:
        """The identity of its chat."""
        return (self.api_url, self.chat_id)


class AgentRecords:
    """The records of one kernel; a file for each chat. Never raises: a record is a convenience.

    Parameters
    ----------
    connection_file
        The kernel's connection file; its name outlives restarts.
    session_key
        The kernel's name in sandboxes, where another process knows it; empty for this process's.
    """

    def __init__(self, connection_file: str, session_key: str = "") -> None:
        self._name = f"ivy-agent-{session_key or session_key_of(connection_file)}"

    def add(self, chat: Chat, campaign_id: str, ending: EndingCall) -> None:
        """Called when an agent was found or started; it replaces an earlier one of the chat."""
        record = AgentRecord(
            chat[0], chat[1], campaign_id, ending.tool, ending.code, ending.call_id
        )
        with suppress(OSError):
            private_file.write_json(_path_of(self._name, chat), asdict(record))

    def all(self) -> list[AgentRecord]:
        """Return the records of this process and of those before it."""
        found = []
        for path in sorted(Path(jupyter_runtime_dir()).glob(f"{self._name}-*")):
            with suppress(OSError, ValueError, TypeError):
                found.append(AgentRecord(**private_file.read_json(path)))
        return found

    def remove(self, record: AgentRecord) -> None:
        """Called when the agent has ended; a newer record of the chat stays."""
        if self._is_kept(record):
            with suppress(OSError):
                _path_of(self._name, record.chat).unlink(missing_ok=True)

    def fail(self, record: AgentRecord, failure: str) -> None:
        """Keep why the agent could not be ended, for the next process to tell."""
        if self._is_kept(record):
            with suppress(OSError):
                failed = {**asdict(record), "failure": failure}
                private_file.write_json(_path_of(self._name, record.chat), failed)

    def _is_kept(self, record: AgentRecord) -> bool:
        return any(kept.call_id == record.call_id for kept in self.all())


# Ending agents ------------------------------------------------------------------------------------
CALL_SECONDS = 8.0
"""For one call that ends an agent; the agent needs up to 1 s for it."""
TELL_SECONDS = 10.0
"""After so long without reaching a sandbox that is told; it is tried for longer."""
PATIENCE_SECONDS = 120.0
LONGEST_PAUSE_SECONDS = 5.0


async def end_agent(record: AgentRecord, flags: Config | None) -> None:
    """End an agent and all that runs in it; return when it is gone, or no longer ours.

    Starts no sandbox, and wakes none that sleeps: nothing runs there.

    Raises
    ------
    IvyError
        When that is not known: the sandbox was not reached.
    """
    from ivy_kernel.routes.agent.frames import NoAgentError, read_response
    from ivy_kernel.routes.tools import SandboxTools
    from ivy_kernel.session import local_server
    from ivy_kernel.session.open import code_fields, open_lifecycle
    from ivy_kernel.settings.live import LiveSettings

    # Those of then: the kernel may have been attached to other chats, and other servers, since.
    arguments = {"chat_id": record.chat_id, "campaign_id": record.campaign_id}
    live = LiveSettings(arguments={"api_url": record.api_url, **arguments}, flags=flags)
    lifecycle = open_lifecycle(live)
    if lifecycle.local and local_server.find() is None:
        return  # it has taken its sandboxes with it
    try:
        status = await lifecycle.status(retry=False)
        if status.state not in ("active", "unknown"):
            return
        tools = SandboxTools(lifecycle.client, record.chat_id, code_fields(live.current()))
        result = await tools.run(record.tool, record.code, CALL_SECONDS, retry=False)
        with suppress(NoAgentError):
            # Whatever it answers: it ends, or another client has taken it over and sees to it.
            read_response(result, record.call_id)
    except NotSentError:
        if not (lifecycle.local and local_server.find() is None):
            raise
    except IvyError:
        raise
    except Exception as error:  # the tool's result was cut off, or is none of ours
        raise NotSentError(f"The sandbox's agent did not answer ({error}).") from error
    finally:
        await lifecycle.aclose()


async def end_agents(records: AgentRecords, flags: Config | None) -> None:
    """Try once to end all agents of a kernel, at the same time, and remove their records."""

    async def end(record: AgentRecord) -> None:
        with suppress(IvyError):
            await end_agent(record, flags)
            records.remove(record)

    await asyncio.gather(*(end(record) for record in records.all()))


def go_on_after(connection_file: str, flags: Config | None, *, restart: bool) -> None:
    """Start a process that ends the agents which this one has not reached, if there are any."""
    if not AgentRecords(connection_file).all():
        return
    order: dict[str, Any] = {
        "connection_file": connection_file,
        "session_key": session_key_of(connection_file),
        "flags": flags or {},
        "restart": restart,
    }
    with suppress(OSError):
        process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env=environment_with_keys(),
            cwd=jupyter_runtime_dir(),  # Python looks for modules there, not in the user's folder
            start_new_session=True,  # this process's group may be killed
            text=True,
        )
        if process.stdin is not None:
            with process.stdin as stdin:  # not as an argument: flags may hold a key
                json.dump(order, stdin, default=str)


async def _end_in_time(
    record: AgentRecord, records: AgentRecords, flags: Config | None, *, restart: bool
) -> None:
    """End one agent, as soon as its sandbox can be reached; tell when that takes too long."""
    began = time.monotonic()
    is_told = False
    pause = 0.2
    while True:
        try:
            await end_agent(record, flags)
        except IvyError as error:
            waited = time.monotonic() - began
            if waited > TELL_SECONDS and not is_told:
                is_told = True
                _tell(record, records, str(error), restart=restart)
            if waited > PATIENCE_SECONDS:
                return
        else:
            records.remove(record)
            return
        pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
        await asyncio.sleep(pause)


def not_ended_sentence(record: AgentRecord) -> str:
    """Return what the user is told of an agent that could not be ended."""
    return (
        f"The sandbox of chat {record.chat_id} could not be reached when this kernel ended there "
        f"({record.failure}) What ran in it may go on computing; terminating that sandbox ends it "
        f"for sure."
    )


def _tell(record: AgentRecord, records: AgentRecords, failure: str, *, restart: bool) -> None:
    """Tell the next process, or where there is none, the log of the Jupyter server."""
    if restart:
        records.fail(record, failure)
        return
    failed = AgentRecord(**{**asdict(record), "failure": failure})
    sys.stderr.write(f"[Ivy Sandbox] {not_ended_sentence(failed)}\n")
    sys.stderr.flush()


def main() -> None:
    """Run the process that goes on after a kernel; its order comes on stdin."""
    from traitlets.config import Config

    order: dict[str, Any] = json.load(sys.stdin)
    records = AgentRecords(order["connection_file"], order["session_key"])
    flags, restart = Config(order["flags"]), bool(order["restart"])

    async def end_all() -> None:
        found = records.all()
        await asyncio.gather(
            *(_end_in_time(record, records, flags, restart=restart) for record in found)
        )
        if not restart:
            for record in found:
                records.remove(record)

    asyncio.run(end_all())


if __name__ == "__main__":
    main()
