"""The persistent kernel of a chat, in which ``sandbox_notebook`` runs its cells."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ivy_kernel.local_sandbox.processes import ChatProcesses, Process
from ivy_kernel.local_sandbox.results import Run

if TYPE_CHECKING:
    from jupyter_client.asynchronous.client import AsyncKernelClient


Json = dict[str, Any]

_ERROR_KEYS = ("ename", "evalue", "traceback")


@dataclass
class CellOutputs:
    """The outputs of a running cell so far, as a front end would show them.

    Parameters
    ----------
    limit_bytes
        The amount of stream text to keep; the rest is dropped and counted.
    items
        The outputs, as in nbformat 4.
    execution_count
        The number that the kernel gave to the cell.
    failed
        Whether the cell ended in an error.
    """

    limit_bytes: int
    items: list[Json] = field(default_factory=list)
    execution_count: int | None = None
    failed: bool = False
    _clear_next: bool = False
    _display_ids: list[str | None] = field(default_factory=list)
    # The text of the last output if it is a stream: joined once, for a cell may print line by line.
    _parts: list[str] = field(default_factory=list)
    _stream_chars: int = 0
    _dropped_chars: int = 0

    def apply(self, kind: str, content: Json) -> None:
        """Apply one iopub message."""
        if kind == "execute_input":
            self.execution_count = content["execution_count"]
        elif kind == "clear_output":
            if content.get("wait"):
                self._clear_next = True
            else:
                self._clear()
        elif kind == "update_display_data":
            self._update(content)
        elif kind == "stream":
            self._stream(content["name"], content["text"])
        elif kind in ("display_data", "execute_result"):
            output = {"output_type": kind, "data": content["data"], "metadata": content["metadata"]}
            if kind == "execute_result":
                output["execution_count"] = content["execution_count"]
            self._add(output, content.get("transient", {}).get("display_id"))
        elif kind == "error":
            self.failed = True
            self._add({"output_type": "error", **{k: content[k] for k in _ERROR_KEYS}}, None)

    def finish(self) -> None:
        """Join the parts of the last stream, and note what was dropped."""
        if self._parts:
            self.items[-1]["text"] = "".join(self._parts)
            self._parts = []
        if self._dropped_chars:
            note = f"\n... [output limit reached: {self._dropped_chars} characters were dropped]\n"
            self._dropped_chars = 0
            self._add({"output_type": "stream", "name": "stderr", "text": note}, None)

    def _clear(self) -> None:
        self._clear_next = False
        self.items.clear()
        self._display_ids.clear()
        self._parts = []

    def _add(self, output: Json, display_id: str | None) -> None:
        if self._clear_next:
            self._clear()
        if self._parts:
            self.items[-1]["text"] = "".join(self._parts)
            self._parts = []
        self.items.append(output)
        self._display_ids.append(display_id)

    def _stream(self, name: str, text: str) -> None:
        room = max(0, self.limit_bytes - self._stream_chars)
        self._dropped_chars += max(0, len(text) - room)
        text = text[:room]
        self._stream_chars += len(text)
        if self._clear_next or not self._parts or self.items[-1]["name"] != name:
            self._add({"output_type": "stream", "name": name, "text": ""}, None)
        self._parts.append(text)

    def _update(self, content: Json) -> None:
        display_id = content.get("transient", {}).get("display_id")
        for item, own_id in zip(self.items, self._display_ids, strict=True):
            if own_id is not None and own_id == display_id:
                item["data"], item["metadata"] = content["data"], content["metadata"]


_START_SECONDS = 60.0
# A socket's path has 104 characters on macOS (108 on Linux), and jupyter_client adds "-1" to "-5".
_MAX_IPC_PATH_CHARS = 90
_LAST_OUTPUT_SECONDS = 0.2
_READY_RETRY_SECONDS = 0.2
_INTERRUPT_RETRY_SECONDS = 1.0
_REPLY_SECONDS = 2.0
_INTERRUPTED = {
    "ename": "KeyboardInterrupt",
    "evalue": "",
    "traceback": ["KeyboardInterrupt"],
}
# Pauses between wake-ups: soon at first, then doubling.
_WAKE_SECONDS = (0.3, 0.6, 1.2, 2.5, 5.0, 10.0, 20.0)


class CellTimeoutError(Exception):
    """The cell's time was up; the text tells whether its kernel was kept."""


class KernelStartError(Exception):
    """The kernel did not start."""


class NotebookKernel:
    """One ipykernel below the chat's process reaper, started for the first cell.

    Parameters
    ----------
    processes
        The chat's processes.
    directory
        Its working directory.
    runtime_directory
        The directory of its connection file and sockets.
    """

    def __init__(self, processes: ChatProcesses, directory: Path, runtime_directory: Path) -> None:
        self._processes = processes
        self._directory = directory
        self._runtime_directory = runtime_directory
        self._queue = asyncio.Lock()
        self._client: AsyncKernelClient | None = None
        self._process: Process | None = None
        self._starts = 0

    @property
    def running(self) -> bool:
        """True while the kernel's process lives."""
        return self._process is not None and not self._process.ended.done()

    async def run(
        self,
        code: str,
        *,
        argv: Callable[[str], list[str]],
        timeout_seconds: float,
        grace_seconds: float,
        output_limit_bytes: int,
    ) -> Run:
        """Run a cell after all earlier ones.

        Parameters
        ----------
        code
            The cell.
        argv
            The command that starts a kernel, given the path of its connection file.
        timeout_seconds
            Its time, in which the time in the queue counts, and the start of a kernel does not.
        grace_seconds
            The time that it has to stop after an interrupt, before its kernel is killed.
        output_limit_bytes
            The amount of stream text to keep.

        Raises
        ------
        CellTimeoutError
            Its time was up.
        KernelStartError
            There is no kernel to run it.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_seconds
        try:
            await asyncio.wait_for(self._queue.acquire(), timeout_seconds)
        except asyncio.TimeoutError:
            raise CellTimeoutError(
                "it waited for earlier cells all the time, and never ran"
            ) from None
        try:
            if not self.running:
                began = loop.time()
                await self._start(argv)
                # The time of a start is not the cell's.
                until += loop.time() - began
            outputs = CellOutputs(output_limit_bytes)
            try:
                await self._execute(code, outputs, until, grace_seconds)
            except asyncio.CancelledError:
                await self._stop_cell(grace_seconds)
                raise
            outputs.finish()
            return Run(outputs.items, int(outputs.failed), outputs.execution_count)
        finally:
            self._queue.release()

    async def _execute(
        self, code: str, outputs: CellOutputs, until: float, grace_seconds: float
    ) -> None:
        client, process = self._client, self._process
        if client is None or process is None:
            raise KernelStartError("the kernel has been stopped")
        message_id = await _message_id(client.execute(code, allow_stdin=False))
        following = asyncio.ensure_future(_collect(client, message_id, outputs))
        awaited: list[asyncio.Future[Any]] = [following, process.ended]
        remaining = max(0.0, until - asyncio.get_running_loop().time())
        try:
            await asyncio.wait(awaited, timeout=remaining, return_when=asyncio.FIRST_COMPLETED)
            if process.ended.done():
                exit_code = process.ended.result()  # it raises when the whole sandbox is gone
                # Its last output may still be on its way.
                await asyncio.wait([following], timeout=_LAST_OUTPUT_SECONDS)
                await self.close()
                text = f"the kernel died with exit code {exit_code}; its variables are gone"
                outputs.apply(
                    "error", {"ename": "DeadKernelError", "evalue": text, "traceback": []}
                )
            elif following.done():
                following.result()
            else:
                # Stopped first: `_stop_cell` reads the shell channel too.
                following.cancel()
                await asyncio.wait([following])
                await self._stop_cell(grace_seconds)
                raise CellTimeoutError("it was interrupted")
        finally:
            following.cancel()

    async def _stop_cell(self, grace_seconds: float) -> None:
        """Interrupt the running cell; kill its kernel when that does not help."""
        client, process = self._client, self._process
        if process is None or client is None:
            return
        ended = asyncio.ensure_future(_end(client))
        until = asyncio.get_running_loop().time() + grace_seconds
        # More than one signal: a kernel ignores one that comes just before the cell begins.
        while not ended.done() and (left := until - asyncio.get_running_loop().time()) > 0:
            process.signal_group(signal.SIGINT)
            await asyncio.wait([ended], timeout=min(left, _INTERRUPT_RETRY_SECONDS))
        if not ended.done():
            ended.cancel()
            await self.close()
            raise CellTimeoutError(
                "it did not stop when interrupted, so that its kernel was killed: "
                "its variables are gone"
            )

    async def _start(self, argv: Callable[[str], list[str]]) -> None:
        from jupyter_client.asynchronous.client import AsyncKernelClient  # 150 ms, so only here
        from jupyter_client.connect import write_connection_file

        await self.close()
        self._starts += 1
        name = self._runtime_directory / f"k{os.getpid()}-{self._starts}"
        ipc = len(str(name)) <= _MAX_IPC_PATH_CHARS
        # Sockets in a private directory need no ports, which another process could take between
        # their choice and their use.
        transport = {"transport": "ipc", "ip": str(name)} if ipc else {"transport": "tcp"}
        connection_file = f"{name}.json"
        write_connection_file(connection_file, **transport)  # type: ignore[arg-type]  # str each
        # Its pipes carry no output of cells, which comes by iopub; stderr is for a failed start.
        process = await self._processes.start(
            argv(connection_file), self._directory, output_limit_bytes=1 << 16
        )
        client = AsyncKernelClient(connection_file=connection_file)
        client.load_connection_file()
        # No heartbeat, for the reaper tells when it ends; no control, for signals interrupt it.
        client.start_channels(hb=False, control=False)
        self._process, self._client = process, client
        ready = asyncio.ensure_future(_until_ready(client))
        awaited: list[asyncio.Future[Any]] = [ready, process.ended]
        try:
            await asyncio.wait(awaited, timeout=_START_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if not ready.done():
                if process.ended.done():
                    process.ended.result()  # it raises when the whole sandbox is gone
                process.kill_tree()
                stderr = (await process.stderr.drained()).decode(errors="replace")
                await self.close()
                raise KernelStartError(f"the kernel did not start: {stderr.strip()[-2000:]}")
            ready.result()
        finally:
            ready.cancel()

    async def close(self) -> None:
        """End the kernel, if there is one."""
        process, self._process = self._process, None
        client, self._client = self._client, None
        if client is not None:
            client.stop_channels()
        if process is not None:
            process.kill_tree()
            process.stdout.close()
            process.stderr.close()


async def _collect(client: AsyncKernelClient, message_id: str, outputs: CellOutputs) -> None:
    """Collect the messages of a cell until its reply and its idle status have arrived."""
    reply = asyncio.ensure_future(_reply(client, message_id))
    try:
        with _woken(client) as waking:
            while True:
                message = await client.iopub_channel.get_msg()
                if message["parent_header"].get("msg_id") != message_id:
                    continue
                waking.cancel()
                content = message["content"]
                if message["msg_type"] != "status":
                    outputs.apply(message["msg_type"], content)
                elif content["execution_state"] == "idle":
                    break
        # ipykernel replies to nothing when an interrupt hits its own code instead of the cell.
        await asyncio.wait([reply], timeout=_REPLY_SECONDS)
        if reply.done():
            reply.result()
        elif not outputs.failed:
            outputs.apply("error", _INTERRUPTED)
    finally:
        reply.cancel()


async def _reply(client: AsyncKernelClient, message_id: str) -> None:
    """Wait for the reply to a message; older replies are skipped."""
    while True:
        message = await client.shell_channel.get_msg()
        if message["parent_header"].get("msg_id") == message_id:
            return


async def _message_id(sent: Any) -> str:
    """Return the id of a request that was sent; jupyter_client 8.0 returns a future that has it."""
    return str(await sent if isinstance(sent, asyncio.Future) else sent)


async def _end(client: AsyncKernelClient) -> None:
    """Wait for the end of the running cell: a kernel replies to a later request only then."""
    with _woken(client):
        await _reply(client, await _message_id(client.kernel_info()))


async def _until_ready(client: AsyncKernelClient) -> None:
    """Send requests until iopub answers: messages from before we subscribed are lost."""
    with _woken(client):
        while True:
            request_id = await _message_id(client.kernel_info())
            try:
                while True:
                    message = await asyncio.wait_for(
                        client.iopub_channel.get_msg(), _READY_RETRY_SECONDS
                    )
                    if message["parent_header"].get("msg_id") == request_id:
                        return
            except asyncio.TimeoutError:
                continue


@contextmanager
def _woken(client: AsyncKernelClient) -> Iterator[asyncio.Task[None]]:
    """Wake-up watchdog: wakes the kernel now and then while it should notice a request.

    In ipykernel 7.0 to 7.3 a request may stay in the shell socket until a client connects to it
    (https://github.com/ipython/ipykernel/issues/1554).
    """

    async def wake() -> None:
        for pause_seconds in _WAKE_SECONDS:
            await asyncio.sleep(pause_seconds)
            sockets.append(client.connect_shell())

    sockets: list[Any] = []
    waking = asyncio.create_task(wake())
    try:
        yield waking
    finally:
        waking.cancel()
        for socket in sockets:
            socket.close(linger=0)
