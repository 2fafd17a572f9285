"""Variables between this process and the sandbox: ``push``, ``pull``, and those of ``%%ivy``.

In the sandbox hidden cells do it, by the codec, whose source they bring with them. They leave no
names among the user's variables, and do not count. Small values travel in the cell and its answer,
larger ones as files.
"""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import hashlib
import inspect
import json
import re
import secrets
import tempfile
import zlib
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakSet

from ivy_kernel import errors
from ivy_kernel.errors import (
    IvyError,
    NoSandboxError,
    SandboxError,
    SandboxLostError,
    VariableError,
)
from ivy_kernel.magics import array_codec, frame_codec, value_codec
from ivy_kernel.magics.frame_codec import SPOOL, decode, encode
from ivy_kernel.magics.options import CellOptions, Renamed
from ivy_kernel.magics.output import assigned_names, kept
from ivy_kernel.magics.value_codec import (
    PACKAGES,
    VALUE_LIMIT_BYTES,
    DamagedValueError,
    Encoded,
    MissingPackageError,
    RefusedValueError,
)
from ivy_kernel.models import Cell, Json, Message, Outcome, Sink, visible
from ivy_kernel.session.describe import size_words, transfer_progress
from ivy_kernel.session.session import Session
from ivy_kernel.session.start_progress import ProgressDisplay, is_progress
from ivy_kernel.session.transfer import TransferState

Result = TypeVar("Result")
Namespace = dict[str, Any]
INLINE_BYTES = 256 << 10
"""Up to this size a value travels in the hidden cell, or in its answer."""
STOP_SECONDS = 5.0
"""Wait for a hidden cell to end after an interrupt."""

_PUT_ADVICE = "save it to a file and %ivy put that"
_GET_ADVICE = "save it to a file in the sandbox and %ivy get that"
NO_PERSISTENCE = (
    "This sandbox offers only scripts, in which variables do not persist, so none can be pushed or "
    "pulled; %ivy put and %ivy get move files."
)

_loaded: WeakSet[Session] = WeakSet()
"""Sessions whose kernel has been given the codec."""


# The codec in the sandbox -----------------------------------------------------------------------
_LOADER = """\
import base64, json, sys, types, zlib
def load():
    sources = json.loads(zlib.decompress(base64.b64decode(data)))
    sys.modules[package] = types.ModuleType(package)
    try:
        for name, source in sources:
            module = sys.modules[package + '.' + name] = types.ModuleType(package + '.' + name)
            exec(compile(source, '<ivy ' + name + '>', 'exec'), module.__dict__)
    except BaseException:
        for name, _ in sources:
            sys.modules.pop(package + '.' + name, None)
        raise
if package + '.frame_codec' not in sys.modules:
    load()
"""


@cache
def codec_sources() -> tuple[str, str]:
    """Return the private package's name in the sandbox, and the code that loads it there."""
    modules = (value_codec, array_codec, frame_codec)
    sources = [
        (module.__name__.rpartition(".")[2], inspect.getsource(module)) for module in modules
    ]
    # By its contents: another version of ours may have left another codec in the same kernel.
    package = f"_ivy_codec_{hashlib.sha256(repr(sources).encode()).hexdigest()[:16]}"
    private = [(name, text.replace("ivy_kernel.magics.", f"{package}.")) for name, text in sources]
    data = base64.b64encode(zlib.compress(json.dumps(private).encode(), 9)).decode()
    return package, f"exec({_LOADER!r}, {{'data': {data!r}, 'package': {package!r}}})\n"


class _HiddenSink:
    """Takes what a hidden cell shows: its answer; what threads of the user's say is shown.

    Parameters
    ----------
    sink
        Takes what is to be shown.
    token
        Names the answer.
    """

    def __init__(self, sink: Sink, token: str) -> None:
        self._sink = sink
        self._text = ""
        self._answer = re.compile(rf"\n<ivy-value {token}\n([\w+/=\n]*)\nivy-value>\n")

    def __call__(self, message: Message) -> None:
        """Take one message."""
        if message.msg_type == "stream" and message.content.get("name") == "stdout":
            self._text += str(message.content.get("text", ""))
        elif message.msg_type not in ("error", "execute_result"):
            # As of the cell that is shown: nobody knows the hidden one.
            self._sink(dataclasses.replace(message, header=None, parent_header=None))

    def answer(self) -> Json | None:
        """Return the answer; ``None`` where it did not come whole."""
        found = self._answer.search(self._text)
        rest = (
            self._text if found is None else self._text[: found.start()] + self._text[found.end() :]
        )
        if found is not None and rest:
            self._sink(Message("stream", {"name": "stdout", "text": rest}))
        if found is None:
            return None
        try:
            answer = json.loads(base64.b64decode(found[1]))
        except (ValueError, RecursionError):
            return None
        return answer if isinstance(answer, dict) else None


class TransferDisplay:
    """Shows how far the transfer of one variable has come."""

    def __init__(self, sink: Sink, words: str) -> None:
        self._display = ProgressDisplay(sink)
        self._words = words
        self._loop = asyncio.get_running_loop()
        self._is_over = False

    def clear(self) -> None:
        """Remove what is shown, and show nothing more."""
        self._is_over = True
        self._display.clear()

    def on_progress(self, state: TransferState) -> None:
        """Called at most a few times a second, from any thread."""
        self._loop.call_soon_threadsafe(self._show, state)

    def _show(self, state: TransferState) -> None:
        if not self._is_over:
            words, fraction = transfer_progress(state)
            self._display.show(f"{self._words}: {words}", fraction)


class Exchange:
    """Moves variables between a local namespace and the sandbox of a session.

    Parameters
    ----------
    session
        The session, one of whose cells each move is.
    namespace
        The local variables.
    sink
        Takes progress, and a line for each variable that has been moved.
    is_quiet
        Whether these lines are left out.
    """

    def __init__(
        self, session: Session, namespace: Namespace, sink: Sink, *, is_quiet: bool = False
    ) -> None:
        self._session = session
        self._namespace = namespace
        self._sink = sink
        self._is_quiet = is_quiet

    async def push(self, names: Sequence[Renamed]) -> None:
        """Set variables of the sandbox.

        All are encoded before the first is sent, so that one that cannot travel stops all.

        Raises
        ------
        VariableError
            One cannot travel, or did not arrive: names it, and what to do. Others are told.
        IvyError
            The sandbox cannot be used.
        """
        values: list[Encoded] = []
        for name in names:
            if name.old not in self._namespace:
                raise VariableError(f"There is no variable {name.old} here. Nothing was pushed.")
            value = self._namespace[name.old]
            values.append(await self._encoded(value, name.old))
        await self._each(names, lambda number: self._push_one(names[number], values[number]))

    async def pull(self, names: Sequence[Renamed]) -> None:
        """Set local variables; never starts a sandbox.

        Raises
        ------
        VariableError
            One cannot travel, or did not arrive: names it, and what to do. Others are told.
        IvyError
            The sandbox cannot be used.
        """
        await self._each(names, lambda number: self._pull_one(names[number]))

    async def _each(self, names: Sequence[Renamed], move: Callable[[int], Awaitable[None]]) -> None:
        for number in range(len(names)):
            try:
                await move(number)
            except VariableError as error:
                left = ", ".join(name.old for name in names[number + 1 :])
                raise VariableError(f"{error} Not moved: {left}." if left else str(error)) from None

    def _tell(self, verb: str, name: Renamed, summary: str, size_bytes: int) -> None:
        if not self._is_quiet:
            to = "" if name.new == name.old else f" as {name.new}"
            text = f"{verb} {name.old}{to}: {summary}, {size_words(size_bytes)}\n"
            self._sink(Message("stream", {"name": "stdout", "text": text}))

    async def _encoded(self, value: object, name: str) -> Encoded:
        try:
            return await asyncio.to_thread(encode, value, name)
        except RefusedValueError as error:
            refused = [error.place, error.reason, error.advice]
            raise _refused(refused, _PUT_ADVICE, "Nothing was pushed.") from None
        except MissingPackageError as error:
            raise VariableError(
                f"{name} cannot travel without {error}, which is not installed here: "
                f"pip install {error}. Nothing was pushed."
            ) from None

    async def _push_one(self, name: Renamed, value: Encoded) -> None:
        token, sha256 = secrets.token_hex(8), await asyncio.to_thread(value.sha256)
        if value.size_bytes <= INLINE_BYTES:
            data = base64.b64encode(b"".join(value.chunks)).decode()
            answer = await self._ask("take", token, name.new, sha256, data)
        else:
            answer = await self._push_file(name, value, token, sha256)
        self._check(answer, name, "pushed", _PUT_ADVICE)
        self._tell("pushed", name, value.summary, value.size_bytes)

    async def _push_file(self, name: Renamed, value: Encoded, token: str, sha256: str) -> Json:
        answer = await self._ask("prepare", token)
        self._check(answer, name, "pushed", _PUT_ADVICE)
        remote, files = _spooled(answer, name, token), self._session.files()
        progress = TransferDisplay(self._sink, f"pushing {name.old}")
        with tempfile.TemporaryDirectory(prefix="ivy-values-") as directory:
            local = Path(directory) / token
            try:
                await asyncio.to_thread(_write, local, value.chunks)
                await files.put(local, remote, progress=progress)
                local.unlink()
                progress.clear()
                return await self._ask("take", token, name.new, sha256)
            finally:
                progress.clear()
                with suppress(IvyError):  # mostly it is not there any more
                    await files.remove(_directory(remote), recursive=True)

    async def _pull_one(self, name: Renamed) -> None:
        token = secrets.token_hex(8)
        answer = await self._ask("give", token, name.old, INLINE_BYTES, may_start=False)
        if answer.get("missing"):
            raise VariableError(f"There is no variable {name.old} in the sandbox.")
        self._check(answer, name, "pulled", _GET_ADVICE)
        summary, size, sha256, data = (
            answer.get(key) for key in ("summary", "size", "sha256", "data")
        )
        if type(size) is not int or not 0 <= size <= VALUE_LIMIT_BYTES:
            raise _damaged(name, "its size cannot be")
        if isinstance(data, str):
            value = await self._decoded(name, data, str(sha256))
        else:
            remote = _spooled(answer, name, token)
            value = await self._pull_file(name, remote, size, str(sha256))
        self._namespace[name.new] = value
        self._tell("pulled", name, visible(str(summary))[:200], size)

    async def _pull_file(self, name: Renamed, remote: str, size_bytes: int, sha256: str) -> Any:
        files = self._session.files()
        progress = TransferDisplay(self._sink, f"pulling {name.old}")
        try:
            if (await files.stat(remote)).size_bytes != size_bytes:
                raise _damaged(name, "its file has another size")
            with tempfile.TemporaryDirectory(prefix="ivy-values-") as directory:
                local = Path(directory) / "value"
                await files.get(remote, local, progress=progress)
                data = await asyncio.to_thread(local.read_bytes)
        finally:
            progress.clear()
            with suppress(IvyError):
                await files.remove(_directory(remote), recursive=True)
        return await self._decoded(name, data, sha256)

    async def _decoded(self, name: Renamed, data: bytes | str, sha256: str) -> Any:
        def work() -> Any:
            try:
                raw = base64.b64decode(data) if isinstance(data, str) else data
            except ValueError:
                raise DamagedValueError("it is no base64") from None
            if hashlib.sha256(raw).hexdigest() != sha256:
                raise DamagedValueError("its checksum is another")
            return decode(raw)

        try:
            return await asyncio.to_thread(work)
        except DamagedValueError as error:
            raise _damaged(name, str(error)) from None
        except MissingPackageError as error:
            raise VariableError(
                f"{name.old} needs {error}, which is not installed here: pip install {error}."
            ) from None

    @staticmethod
    def _check(answer: Json, name: Renamed, verb: str, advice: str) -> None:
        """Raise the error that an answer tells."""
        if "refused" in answer:
            refused = answer["refused"]
            raise _refused(
                refused if isinstance(refused, list) else [], advice, f"It was not {verb}."
            )
        package = answer.get("package")
        if package in PACKAGES:
            raise VariableError(
                f"{name.old} cannot be {verb}: the sandbox has no {package}. Install {package} in "
                f"the sandbox: %pip install {package}"
            )
        if "failed" in answer or "package" in answer:
            reason = visible(str(answer.get("failed")))[:500]
            raise VariableError(f"{name.old} was not {verb}: {reason}.")

    # Hidden cells ------------------------------------------------------------------------------
    async def _ask(
        self, function: str, token: str, *arguments: Any, may_start: bool = True
    ) -> Json:
        """Call a function of the codec in the sandbox, by a hidden cell; return what it answers."""
        package, source = codec_sources()
        self._require_variables()
        called = ", ".join(map(repr, (token, *arguments)))
        call = (
            f"__import__('sys').modules['{package}.frame_codec'].{function}(globals(), {called})\n"
        )
        for code in (call, source + call)[self._session not in _loaded :]:
            sink = _HiddenSink(self._sink, token)
            outcome = await self._run(code, sink, may_start=may_start)
            self._require_variables()
            if outcome.reply["status"] == "ok":
                answer = sink.answer()
                if answer is None:
                    raise VariableError("The sandbox did not answer; is its sys.stdout another?")
                _loaded.add(self._session)
                return answer
            # Another kernel than before: it is given the codec.
            is_unknown = outcome.reply["ename"] == "KeyError" and package in outcome.reply["evalue"]
            if code is not call or not is_unknown:
                break
        raise self._failure(outcome)

    def _require_variables(self) -> None:
        if self._session.describe().get("route") == "script":
            raise VariableError(NO_PERSISTENCE)

    async def _run(self, code: str, sink: Sink, *, may_start: bool) -> Outcome:
        # A cell that counts as the user's own may start a sandbox; a silent one is not shown.
        header = {"msg_id": secrets.token_hex(16), "msg_type": "execute_request"}
        cell = Cell(code=code, silent=True, store_history=may_start, header=header)
        is_sent = False

        def note_sent() -> None:
            nonlocal is_sent
            is_sent = True

        running = asyncio.ensure_future(self._session.execute(cell, sink, on_ready=note_sent))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            if is_sent and not running.done():
                await self._session.interrupt()
                await asyncio.wait({running}, timeout=STOP_SECONDS)
            running.cancel()
            raise

    def _failure(self, outcome: Outcome) -> BaseException:
        """Return what a hidden cell that failed has to be told as."""
        name, sentence = outcome.reply["ename"], outcome.reply["evalue"]
        if outcome.fate == "interrupted":
            return asyncio.CancelledError()
        kind = getattr(errors, name, None)
        if kind is SandboxLostError:
            self._session.forget()  # this error tells it
        if kind in (NoSandboxError, SandboxLostError, errors.SandboxFailedError, errors.RouteError):
            error: BaseException = kind(sentence)
            return error
        if isinstance(kind, type) and issubclass(kind, IvyError):
            return SandboxError(sentence)
        return VariableError(f"The sandbox could not do it: {name}: {sentence}")


def _refused(refused: Sequence[str], advice: str, end: str) -> VariableError:
    # Some come from the sandbox: nothing that a terminal obeys may be shown.
    place, reason, own_advice = (visible(str(text))[:300] for text in [*refused, "", "", ""][:3])
    advice = f"{own_advice}, or {advice}" if own_advice else advice
    return VariableError(f"{place} {reason}, which cannot travel: {advice}. {end}")


def _spooled(answer: Json, name: Renamed, token: str) -> str:
    """Return the path of a value's file; nothing else is read or removed, whatever is answered."""
    path = str(answer.get("path"))
    if not path.endswith(f"/{SPOOL}/{token}/value"):
        raise _damaged(name, f"its file is {path!r:.200}")
    return path


def _directory(path: str) -> str:
    return path.rpartition("/")[0]


def _damaged(name: Renamed, reason: str) -> VariableError:
    return VariableError(f"{name.old} did not arrive as a value that can be taken: {reason}.")


def _write(path: Path, chunks: Sequence[Any]) -> None:
    with path.open("xb") as file:
        for chunk in chunks:
            file.write(chunk)


# Cells with variables ---------------------------------------------------------------------------
class CellVariables:
    """The variables of one ``%%ivy`` cell with ``--in`` or ``--out``.

    Parameters
    ----------
    session
        The session that runs it.
    options
        Its options.
    namespace
        The local variables.
    sink
        Takes its messages.
    """

    def __init__(
        self, session: Session, options: CellOptions, namespace: Namespace, sink: Sink
    ) -> None:
        self._session = session
        self._options = options
        self._namespace = namespace
        self._show = sink
        self._exchange = Exchange(session, namespace, sink, is_quiet=True)
        self._value: Json | None = None
        self._printed: list[str] = []

    def sink(self, message: Message) -> None:
        """Pass a message of the cell on, and keep what ``--out`` may need of it."""
        content = message.content
        if message.msg_type == "stream" and content.get("name") != "stderr":
            self._printed.append(str(content.get("text", "")))
        elif message.msg_type == "execute_result":
            self._value = dict(content.get("data") or {})
        elif message.msg_type == "clear_output" and not is_progress(message):
            self._printed.clear()
        self._show(message)

    async def push(self) -> None:
        """Give the cell its variables; raises as `Exchange.push`."""
        await self._exchange.push(self._options.ins)

    async def keep(self, cell: Cell, outcome: Outcome) -> None:
        """Keep what the cell gives, if it has succeeded; raises as `Exchange.pull`."""
        outs = self._options.outs
        if outcome.fate != "succeeded" or not outs:
            return
        is_python = self._options.language == "python" and not self._options.tool
        has_variables = is_python and self._session.describe().get("route") != "script"
        if len(outs) == 1 and outs[0].new == outs[0].old:
            name = outs[0].new
            if not has_variables or name not in assigned_names(cell.code):
                self._namespace[name] = kept(self._value, "".join(self._printed))
                return
        await self._exchange.pull(outs)
