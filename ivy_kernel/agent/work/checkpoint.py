"""The state after a cell: written by a forked child while the notebook goes on, and brought back.

A checkpoint is the user's variables and what else in the process decides over later values, all of
one moment, which a fork keeps still. Fork as Redis does for its background save; where a process
cannot be forked (CUDA), it is written in place, within the same share of the notebook's time.

Three things tell one from another. Its *sequence* is the order of writing in this directory, over
every process. Its *number* is that of the cell before it, and comes again after a restart, after
going back, and when a cell runs again for a restore; the highest one so far is what it has
*reached*. Its *life* is the namespace: each process begins one, empty, and a restore takes on that
of the checkpoint instead. By these:

- a process that has restored nothing brings back, unless a cell is named, what another life has
  left: its own checkpoints hold what is there already, and never hide that;
- a cell is looked for in the newest line that has come as far, and nowhere else: going back from
  cell 9 to 5 and on to 7 leaves 6 as it is now, and 9 as it was;
- after a restore the newest checkpoint is the one that was restored, under a new sequence;
- making room leaves the newest checkpoint of this life and of the life before (``store.prune``).
"""

from __future__ import annotations

import contextlib
import pickle
import secrets
import sys
import time
import warnings
from typing import TYPE_CHECKING, Any

from . import state
from .live import use_namespace
from .process import Child
from .requests import Part
from .store import NoSpaceError, Store, TamperedCheckpointError
from .values import Capture, load_groups, write_groups

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from .requests import Context

    Json = dict[str, Any]
    Found = tuple[Path, Json | None, str]

SHARE = 0.05
"""Of the notebook's time that checkpoints may block, unless the settings say otherwise."""

CREDIT_SECONDS = 0.3
"""What they may block beyond that, so that the first cells of a notebook have theirs."""

LONGEST_SKIP_SECONDS = 30.0
REST_FACTOR = 8.0
"""A child that took a second lets eight pass before the next: it uses a processor, too."""

RESTLESS_SECONDS = 0.2
CHILD_SECONDS = 120.0
CHILD_ON_REQUEST_SECONDS = 600.0
LOOK_SECONDS = 0.1
FAILURES_LIMIT = 4
"""So many children may end without a checkpoint after a cell; then the next cell is waited for."""
SMALL_OUTPUT_BYTES = 1 << 24
"""Results in ``Out`` that no variable holds are saved up to this."""


def open_part(context: Context) -> Part:
    """Return the part that keeps checkpoints."""
    return Checkpoints(context)


class Checkpoints(Part):
    """Writes a checkpoint after each cell, as far as time allows; restores on request.

    Parameters
    ----------
    context
        The kernel, and whose checkpoints these are.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._host = context.host
        use_namespace(context.host.namespace, context.host.shell)
        self._store = Store(
            f"{context.directory}/checkpoints", context.key, context.chat, context.notebook
        )
        self._baseline = state.baseline()
        self._moment = state.moment()
        self._child: Child | None = None
        self._last: Json | None = None
        self._number = self._reached = 0
        self._life = secrets.token_hex(8)
        self._has_restored = False
        self._is_stale = False
        self._told = 0
        self._made: dict[str, tuple[int, int]] = {}
        self._stubborn: dict[str, tuple[Any, str]] = {}
        self._failures = 0
        self._fault = ""
        self._lost: dict[str, Json] = {}
        self._began = self._tried = time.monotonic()
        self._rested = 0.0
        self.blocked_seconds = 0.0

    # -- hooks

    def requests(self) -> dict[str, Any]:
        """Return what answers which request."""
        return {"checkpoint": self._write_now, "index": self._index, "restore": self._restore}

    def configured(self) -> Json:
        """Return the summary of the newest checkpoint that is whole."""
        body = self._newest()
        if body is None:
            return {"index": None}
        return {"index": {**self._summary(body), "history": self._history()}}

    def after_cell(self, info: Json, reply: Json) -> Json:
        """Note which variables are new; return the summary of a checkpoint that is."""
        self._number = int(info.get("number") or self._number + 1)
        self._reached = max(self._reached, self._number)
        self._is_stale = True
        self._failures = 0
        self._note_names()
        self._collect()
        body = self._last
        if body is None or body["sequence"] == self._told:
            return {}
        self._told = body["sequence"]
        return {"checkpoint": self._summary(body)}

    def on_idle(self) -> float | None:
        """Begin a checkpoint when one is due."""
        self._collect()
        if self._child is not None:
            if self._child.is_overdue():
                self._give_up(self._child, "it took too long to save")
            return LOOK_SECONDS
        if not self._is_stale or not self._context.settings.get("checkpoints", True):
            return None
        now = time.monotonic()
        wait = self._wait_seconds(now)
        if wait > 0:
            return wait
        self._tried = now
        if state.may_fork():
            try:
                self._child = self._fork(CHILD_SECONDS)
                self._is_stale = False
            except OSError:  # no memory or no process left: in place, when that is cheap enough
                self._write_in_place(deadline_seconds=1.0)
        else:
            self._write_in_place(deadline_seconds=1.0)
        self.blocked_seconds += time.monotonic() - now
        return LOOK_SECONDS

    def _wait_seconds(self, now: float) -> float:
        """Return in how many seconds the next checkpoint may begin."""
        if now - self._tried >= LONGEST_SKIP_SECONDS:
            return 0.0
        share = float(self._context.settings.get("share") or SHARE)
        over = self.blocked_seconds - CREDIT_SECONDS - share * (now - self._began)
        wait = max(over / share, self._rested - now)
        return min(max(wait, 0.0), LONGEST_SKIP_SECONDS - (now - self._tried))

    def _note_names(self) -> None:
        """Remember in which cell each variable was bound to what it is."""
        made = {}
        for name, value in state.variables(self._host).items():
            known = self._made.get(name)
            is_known = known is not None and known[0] == id(value)
            made[name] = known if known is not None and is_known else (id(value), self._number)
        self._made = made
        self._lost = {name: known for name, known in self._lost.items() if name not in made}

    # -- writing

    def _fork(self, limit_seconds: float) -> Child:
        self._moment = state.moment()
        return Child(self._write_in_child, limit_seconds)

    def _write_in_child(self, tell: Any) -> Json:
        capture = Capture(tell, self._skipped())
        Child.silence()
        return self._write(capture, tell, may_verify=True)

    def _write_in_place(self, deadline_seconds: float) -> None:
        """Write in this process; what has not been pickled by then is named as not saved."""
        end = time.monotonic() + deadline_seconds
        self._moment = state.moment()

        def tell(name: str) -> None:
            if time.monotonic() > end and name:
                raise TimeoutError("it would have held up the notebook")

        with warnings.catch_warnings(), state.same_random_numbers(self._host):
            warnings.simplefilter("ignore")
            done = self._write(Capture(tell, self._skipped()), tell, may_verify=False)
        self._is_stale = False
        self._take(done)

    def _skipped(self) -> dict[str, str]:
        """Return what has ended a child, as far as it is still the same, and why."""
        now = self._identities()
        kept = {k: known for k, known in self._stubborn.items() if now.get(k, k) == known[0]}
        self._stubborn = kept
        return {key: why for key, (_, why) in kept.items()}

    def _identities(self) -> dict[str, Any]:
        """Return what tells whether a variable is still what it was, by its key."""
        values = {**state.variables(self._host), **state.outputs(self._host)}
        return {key: (id(value), self._made.get(key)) for key, value in values.items()}

    def _write(self, capture: Capture, tell: Any, *, may_verify: bool) -> Json:
        previous = self._last or {}
        names = state.variables(self._host)
        capture.take({**names, **state.outputs(self._host)})
        for key in capture.alone(SMALL_OUTPUT_BYTES):
            if key not in names:
                del capture.pickled[key]
        known = {group["identity"] for group in previous.get("groups", ())}
        limit = self._store.limit_bytes(int(self._context.settings.get("space_bytes") or 1 << 31))
        groups, identities = write_groups(capture, self._store, known, limit, may_verify=may_verify)
        tell("")
        objects = {group["pickle"]: group["size"] for group in groups}
        objects.update((d, size) for group in groups for d, size, _ in group["buffers"])
        saved = state.capture(self._host, self._baseline, self._moment)
        digest, size = self._store.put(saved)
        objects[digest] = size
        before = previous.get("names", {})
        told = {}
        for name, (identity, size_bytes) in identities.items():
            if name in names:
                known_as = before.get(name, {})
                is_same = known_as.get("identity") == identity
                cell = known_as["cell"] if is_same else self._number
                told[name] = {"cell": cell, "bytes": size_bytes, "identity": identity}
        body = self._store.write_index(
            {
                "number": self._number,
                "reached": self._reached,
                "life": self._life,
                "python": ".".join(map(str, sys.version_info[:2])),
                "names": told,
                # What did not come back once is missing until it is made again.
                "missing": {
                    **self._lost,
                    **{
                        name: {"why": why, "cell": self._made.get(name, (0, self._number))[1]}
                        for name, why in capture.missing.items()
                        if name in names
                    },
                },
                "groups": groups,
                "state": [digest, size],
                "objects": sorted(objects.items()),
            }
        )
        self._store.prune(limit)
        return {"sequence": body["sequence"]}

    def _collect(self) -> None:
        """Take what a child has ended with."""
        child = self._child
        if child is None or not child.is_ready():
            return
        done = child.result()
        self._rest(child)
        if done is None:
            self._give_up(child, "the process that was saving it ended")
        else:
            self._child = None
            self._take(done)

    def _rest(self, child: Child) -> None:
        took = time.monotonic() - child.began
        if took > RESTLESS_SECONDS:
            self._rested = time.monotonic() + min(REST_FACTOR * took, LONGEST_SKIP_SECONDS)

    def _take(self, done: Json) -> None:
        if "error" in done:
            self._fault = str(done["error"])
            print("checkpoint:", self._fault, file=sys.__stderr__)
            return
        with contextlib.suppress(TamperedCheckpointError):
            path = self._store.directory / f"index-{done['sequence']:08d}.json"
            self._last = self._store.read_index(path)

    def _give_up(self, child: Child, why: str) -> None:
        """End a child; what it was at is not tried again while it is the same object."""
        key = child.place()
        child.kill()
        self._child = None
        self._failures += 1
        # A class has an identity that stays: its key.
        self._stubborn[key] = self._identities().get(key, key), why
        self._is_stale = self._failures < FAILURES_LIMIT
        self._rest(child)

    # -- requests

    def _write_now(self, _: Json) -> Json:
        """Write a checkpoint, and wait for it."""
        if self._child is not None and not self._child.wait():
            self._give_up(self._child, "it took too long to save")
        self._collect()
        self._fault = ""
        if state.may_fork():
            self._failures, before = 0, -1
            while before < self._failures < FAILURES_LIMIT:
                before = self._failures
                child = self._child = self._fork(CHILD_ON_REQUEST_SECONDS)
                if not child.wait():
                    self._give_up(child, "it took too long to save")
                self._collect()
            self._is_stale = False
        else:
            self._write_in_place(CHILD_ON_REQUEST_SECONDS)
        body = self._newest()
        if body is None or self._fault:
            why = self._fault or "nothing came of it"
            raise OSError(f"no checkpoint could be written in {self._store.directory}: {why}")
        return {**self._summary(body), "history": self._history()}

    def _newest(self) -> Json | None:
        found = (body for _, body, fault in self._valid() if body and not fault)
        return next(found, None)

    def _valid(self, *, partial: bool = False) -> Iterator[Found]:
        """Yield path, body and fault of every index, newest first.

        One that has a body and a fault is signed, and some of its objects are gone.
        """
        there = self._store.names()
        for _, path in self._store.indexes():
            try:
                body = self._store.read_index(path)
            except TamperedCheckpointError as error:
                yield path, None, str(error)
                continue
            is_whole = partial or there.issuperset(digest for digest, _ in body["objects"])
            yield path, body, "" if is_whole else f"some objects of {path.name} are gone"

    def _to_restore(self, content: Json) -> list[Found]:
        """Return what of that a request to restore is about, best first; faults are in it."""
        found = list(self._valid(partial=bool(content.get("partial"))))
        if content.get("sequence"):  # nothing that was written since it was chosen
            found = [one for one in found if int(one[0].stem[6:]) <= content["sequence"]]
        bodies = [body for _, body, _ in found if body]
        at, kept = content.get("at"), bodies
        if at is not None and bodies:
            tip = next((body for body in bodies if body["reached"] >= at), bodies[0])
            line = [body for body in bodies if body["life"] == tip["life"]]
            kept = [b for b in line if b["sequence"] <= tip["sequence"] and b["reached"] <= at]
        elif not self._has_restored:
            kept = [body for body in bodies if body["life"] != self._life] or bodies
        sequences = {body["sequence"] for body in kept}
        return [one for one in found if one[1] is None or one[1]["sequence"] in sequences]

    def _index(self, content: Json) -> Json:
        """Tell of the newest checkpoint, or of the one that a restore would bring back."""
        self._collect()
        is_any = content.get("at") is None and not content.get("to_restore")
        found = self._valid(partial=bool(content.get("partial")))
        chosen = found if is_any else self._to_restore(content)
        bodies = [body for _, body, fault in chosen if body and not fault]
        if not bodies:
            return {"sequence": 0, "history": self._history()}
        return {**self._summary(bodies[0]), "history": self._history()}

    def _summary(self, body: Json) -> Json:
        return {
            "sequence": body["sequence"],
            "number": body["number"],
            "at": body["at"],
            "python": body["python"],
            "names": {
                name: {"cell": known["cell"], "bytes": known["bytes"]}
                for name, known in body["names"].items()
            },
            "missing": body["missing"],
            "objects": body["objects"],
            "file": f"index-{body['sequence']:08d}.json",
            "total_bytes": sum(size for _, size in body["objects"]),
        }

    def _history(self) -> list[list[Any]]:
        valid = (body for _, body, fault in self._valid() if body and not fault)
        return [[body["sequence"], body["number"], body["at"]] for body in valid]

    def _restore(self, content: Json) -> Json:
        """Bring the variables of a checkpoint back into this process."""
        began = time.monotonic()
        if self._child is not None:  # it is at a state that is not the newest any more
            self._child.kill()
            self._child = None
        refused: list[list[str]] = []
        whole: list[Json] = []
        rest: list[Json] = []
        partial = bool(content.get("partial"))
        for path, found, fault in self._to_restore(content):
            if fault:
                refused.append([path.name, fault])
            if found is not None:
                (rest if fault else whole).append(found)
        body = next(iter(whole + rest), None)
        if body is None:
            if refused:
                raise TamperedCheckpointError("; ".join(why for _, why in refused))
            raise LookupError("there is no checkpoint of this notebook in this sandbox")
        saved: Json = {}
        try:
            saved = pickle.loads(self._store.load(*body["state"]))  # noqa: S301 - its hash is signed
        except TamperedCheckpointError as error:
            if not partial or body["state"][0] in self._store.names():
                refused.append([str(error).split(" ", 1)[0], str(error)])
        state.prepare(self._host, saved)
        is_same_python = body["python"] == ".".join(map(str, sys.version_info[:2]))
        values, lost, files = load_groups(
            body["groups"], self._store, may_load_code=is_same_python, partial=partial
        )
        missing = {
            **body["missing"],
            **{
                name: {"why": why, "cell": body["names"][name]["cell"]}
                for name, why in lost.items()
                if name in body["names"]
            },
        }
        state.bring_back(self._host, values, saved, body["reached"])
        self._number, self._reached = body["number"], body["reached"]
        self._life, self._has_restored = body["life"], True
        self._failures, self._tried = 0, float("-inf")
        self._lost = dict(missing)
        self._last = self._renewed(body, missing)
        self._is_stale = False
        self._note_names()
        self._made.update(
            {n: (self._made[n][0], k["cell"]) for n, k in body["names"].items() if n in self._made}
        )
        names = state.variables(self._host)
        return {
            "number": body["number"],
            "sequence": body["sequence"],
            "restored": sorted(name for name in values if name.isidentifier()),
            "others": sorted(name for name in names if name not in values),
            "missing": {**state.changed_modules(saved), **missing},
            "refused": refused + files,
            "seconds": round(time.monotonic() - began, 3),
        }

    def _renewed(self, body: Json, missing: Json) -> Json:
        """Have what was restored be the newest checkpoint; return that.

        Otherwise a loss now would bring back what the user has gone back from.
        """
        newest = self._store.indexes()
        if newest and newest[0][0] == body["sequence"]:
            return body
        there = self._store.names()
        groups = [
            group
            for group in body["groups"]
            if there.issuperset([group["pickle"], *(digest for digest, _, _ in group["buffers"])])
        ]
        renewed = {
            **body,
            "groups": groups,
            "names": {n: known for n, known in body["names"].items() if n not in missing},
            "missing": missing,
            "objects": [one for one in body["objects"] if one[0] in there],
        }
        try:
            return self._store.write_index(renewed)
        except (OSError, NoSpaceError) as error:  # the variables are there all the same
            print("checkpoint:", repr(error), file=sys.__stderr__)
            return body
