"""The values of variables, in groups that share objects: into a store and back from it."""

from __future__ import annotations

import functools
import io
import pickle
import sys
from typing import TYPE_CHECKING, Any

from . import live
from .cloudpickle import cloudpickle as functions
from .live import NotSavedError, describe, name_of
from .pickling import CLASS_PREFIX, WHOLE_NAMESPACE, Pickled, Snapshot
from .store import NoSpaceError, Store, TamperedCheckpointError, digest_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    Json = dict[str, Any]

VERIFIED_BYTES = 1 << 28
"""Larger groups are not brought back for a test when they are written."""


CALLERS = 6
"""Frames with the notebook's variables: statsmodels looks into the first four, from the second."""


class Capture:
    """Variables as pickles, put into groups by what they share.

    Parameters
    ----------
    tell
        Called with what is being pickled, in case that does not end; may raise ``TimeoutError``.
    skipped
        What is not tried, by key, and why.
    """

    def __init__(
        self, tell: Callable[[str], None], skipped: Mapping[str, str] | None = None
    ) -> None:
        self._snapshot = Snapshot()
        self._tell = tell
        self._skipped = skipped or {}
        self._parents: dict[str, str] = {}
        self._owners: dict[int, str] = {}
        self._values: dict[str, Any] = {}
        self.pickled: dict[str, Pickled] = {}
        self.missing: dict[str, str] = {}

    def take(self, values: dict[str, Any]) -> None:
        """Pickle variables, and the classes that they need; what cannot be saved is missing."""
        for name, value in values.items():
            self._take_one(name, value)
        done: set[str] = set()
        while len(done) < len(self._snapshot.classes):
            for identity in [one for one in self._snapshot.classes if one not in done]:
                done.add(identity)
                key = CLASS_PREFIX + identity
                self._take_one(key, self._snapshot.classes[identity], (identity,))
        foreign = {identity for one in self.pickled.values() for identity in one.foreign}
        for name, one in list(self.pickled.items()):
            if foreign & one.shared:
                self._drop(name, "it holds the global variables of a function")
        self._drop_needing()
        self._join()

    def _take_one(self, name: str, value: Any, by_value: Iterable[str] = ()) -> None:
        self._parents[name] = name
        self._values[name] = value
        if value is self._snapshot.namespace:
            self.missing[name] = WHOLE_NAMESPACE
            return
        if name in self._skipped:
            self.missing[name] = self._skipped[name]
            return
        try:
            self._tell(name)
            self.pickled[name] = self._snapshot.pickle({name: value}, by_value)
        except (NotSavedError, TimeoutError) as error:
            self.missing[name] = str(error)

    def _drop(self, name: str, why: str) -> None:
        del self.pickled[name]
        self.missing[name] = why

    def _drop_needing(self) -> None:
        """Drop what needs a class that cannot be saved."""
        found = True
        while found:
            found = False
            for name, one in list(self.pickled.items()):
                for identity in one.needs:
                    why = self.missing.get(CLASS_PREFIX + identity)
                    if why is not None and name in self.pickled:
                        class_name = self._snapshot.classes[identity].__name__
                        self._drop(name, f"its class {class_name} cannot be saved: {why}")
                        found = True

    def _join(self) -> None:
        for name, one in self.pickled.items():
            for reached in one.shared | one.foreign:
                self._unite(self._owners.setdefault(reached, name), name)
        # A group with a class takes in the classes that it needs, so that no two need each other.
        is_changed = True
        while is_changed:
            is_changed = False
            with_classes = {self._root(k) for k in self.pickled if k.startswith(CLASS_PREFIX)}
            for name, one in self.pickled.items():
                if self._root(name) in with_classes:
                    for identity in one.needs:
                        is_changed |= self._unite(CLASS_PREFIX + identity, name)

    def _root(self, name: str) -> str:
        while self._parents[name] != name:
            name = self._parents[name]
        return name

    def _unite(self, first: str, second: str) -> bool:
        one, other = self._root(first), self._root(second)
        self._parents[other] = one
        return one != other

    def alone(self, least_bytes: int) -> list[str]:
        """Return what is at least so large and shares nothing."""
        large = [k for k, one in self.pickled.items() if one.size_bytes >= least_bytes]
        roots = [self._root(key) for key in self.pickled]
        return [key for key in large if roots.count(self._root(key)) == 1]

    def groups(self) -> list[tuple[list[str], Pickled]]:
        """Return names and pickle of every group, small ones first."""
        members: dict[str, list[str]] = {}
        for name in self.pickled:
            members.setdefault(self._root(name), []).append(name)
        found = []
        for names in members.values():
            one = self.pickled[names[0]]
            if len(names) > 1:
                classes = [k[len(CLASS_PREFIX) :] for k in names if k.startswith(CLASS_PREFIX)]
                try:
                    self._tell(names[0])
                    together = {name: self._values[name] for name in names}
                    one = self._snapshot.pickle(together, classes)
                except (NotSavedError, TimeoutError) as error:
                    for name in names:
                        self.missing[name] = str(error)
                    continue
            found.append((names, one))
        return sorted(found, key=lambda group: group[1].size_bytes)

    def verify(self, names: list[str], one: Pickled) -> str:
        """Return why a group does not come back as it is; nothing when it does."""
        self._tell(names[0])
        try:
            loaded = _load(one.data, one.buffers)
        except Exception as error:  # of any type: the values' own code runs
            return f"it could not be brought back: {describe(error)}"
        for name in names:
            if type(loaded[name]) is not type(self._values[name]):
                return f"it comes back as a {name_of(type(loaded[name]))}"
        return ""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        # What is there under a name is not what was there under it.
        if module == "__main__":
            raise NotSavedError(f"{name} is known by its name in the notebook alone")
        return super().find_class(module, name)


def _load(data: bytes, buffers: Iterable[Any]) -> Any:
    """Unpickle as a cell would: some classes evaluate a formula then, in a caller's frame."""
    load = _Unpickler(io.BytesIO(data), buffers=buffers).load
    code = compile("load()", "<restore>", "eval", live.compiler_flags(), dont_inherit=True)
    for _ in range(CALLERS):
        load = functools.partial(eval, code, live.namespace(), {"load": load})
    return load()


def write_groups(
    capture: Capture, store: Store, known: set[str], limit_bytes: int, *, may_verify: bool
) -> tuple[list[Json], dict[str, list[Any]]]:
    """Put all groups into the store; return them as an index has them, and names' objects.

    Parameters
    ----------
    capture
        The variables; what cannot be written is added to its missing ones.
    known
        Groups that are known to come back, by their ``identity``.
    limit_bytes
        What all objects together may take.
    may_verify
        Whether other groups may be brought back for a test, in this process.
    """
    groups: list[Json] = []
    used: dict[str, int] = {}
    hashes: dict[tuple[int, int], str] = {}
    for names, one in capture.groups():
        new = {digest: size for digest, size in _sizes(one, hashes).items() if digest not in used}
        if sum(used.values()) + sum(new.values()) > limit_bytes:
            _miss(capture, names, f"it takes more than the {limit_bytes:,} bytes that are left")
            continue
        digests = [_digest(buffer, hashes) for buffer in one.buffers]
        group: Json = {
            "names": names,
            "pickle": digest_of(one.data),
            "buffers": [
                [d, b.raw().nbytes, b.raw().readonly] for d, b in zip(digests, one.buffers)
            ],
            "size": len(one.data),
            "code": one.has_code,
        }
        group["identity"] = digest_of(f"{group['pickle']}{digests}".encode())
        if group["identity"] not in known and may_verify and one.size_bytes <= VERIFIED_BYTES:
            why = capture.verify(names, one)
            if why:
                _miss(capture, names, why)
                continue
        try:
            for digest, buffer in zip(digests, one.buffers):
                store.put(buffer.raw(), digest)
            store.put(one.data, group["pickle"])
        except NoSpaceError as error:
            _miss(capture, names, str(error))
            continue
        except OSError as error:
            _miss(capture, names, f"it could not be written: {describe(error)}")
            continue
        used.update(new)
        groups.append(group)
    # A class that is missing now, which was found to be so late, takes with it what needs it.
    capture._drop_needing()
    groups = [group for group in groups if not set(group["names"]) & set(capture.missing)]
    kept = {name for group in groups for name in group["names"]}
    identities = {}
    for name in kept:
        one = capture.pickled[name]
        parts = [digest_of(one.data), *(_digest(buffer, hashes) for buffer in one.buffers)]
        identities[name] = [digest_of("".join(parts).encode()), one.size_bytes]
    return groups, identities


def _miss(capture: Capture, names: list[str], why: str) -> None:
    for name in names:
        capture.pickled.pop(name, None)
        capture.missing[name] = why


def _sizes(one: Pickled, hashes: dict[tuple[int, int], str]) -> dict[str, int]:
    sizes = {_digest(buffer, hashes): buffer.raw().nbytes for buffer in one.buffers}
    return {**sizes, digest_of(one.data): len(one.data)}


def _digest(buffer: pickle.PickleBuffer, hashes: dict[tuple[int, int], str]) -> str:
    """Return a buffer's hash, made once for each place in memory, which does not change here."""
    raw = buffer.raw()
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return digest_of(raw)
    place = numpy.frombuffer(raw, numpy.uint8).__array_interface__["data"][0], raw.nbytes
    if place not in hashes:
        hashes[place] = digest_of(raw)
    return hashes[place]


def load_groups(
    groups: list[Json], store: Store, *, may_load_code: bool, partial: bool = False
) -> tuple[dict[str, Any], dict[str, str], list[list[str]]]:
    """Return the values of all groups that are as they were written, and why others are missing.

    Nothing is unpickled before its hash was compared, and from no other bytes than those.

    Parameters
    ----------
    groups
        From an index whose signature was checked.
    may_load_code
        Whether functions and classes were made by this version of Python.
    partial
        Whether objects may be left out: not every copy of a checkpoint has all.

    Returns
    -------
    tuple
        Values, reasons of missing ones, and the files that were refused with reasons.
    """
    values: dict[str, Any] = {}
    missing: dict[str, str] = {}
    refused: list[list[str]] = []
    there = store.names()
    # Classes come back as new ones, and not as what has the same identity here.
    functions._DYNAMIC_CLASS_TRACKER_BY_ID.clear()

    def has_class(group: Json) -> bool:
        return any(name.startswith(CLASS_PREFIX) for name in group["names"])

    waiting = sorted(groups, key=has_class, reverse=True)
    for is_last in (False, True):
        again = []
        for group in waiting:
            try:
                if group["code"] and not may_load_code:
                    raise NotSavedError("it has code of another version of Python")
                if partial and not there.issuperset(digest for digest, *_ in _objects(group)):
                    raise NotSavedError("not in the copy")
                loaded = _load(*_data(group, store))
                values.update(loaded)
                # At once: what comes later may look for a function among the variables.
                live.namespace().update((k, v) for k, v in loaded.items() if k.isidentifier())
            except TamperedCheckpointError as error:
                refused.append([str(error).split(" ", 1)[0], str(error)])
                missing.update(dict.fromkeys(group["names"], describe(error)))
            except Exception as error:  # of any type: the values' own code runs
                if not is_last:
                    again.append(group)  # it may have looked for a variable that was not there yet
                else:
                    missing.update(dict.fromkeys(group["names"], describe(error)))
        waiting = again
    values = {k: v for k, v in values.items() if not k.startswith(CLASS_PREFIX)}
    missing = {k: v for k, v in missing.items() if not k.startswith(CLASS_PREFIX)}
    return values, missing, refused


def _objects(group: Json) -> list[list[Any]]:
    return [[group["pickle"], group["size"]], *group["buffers"]]


def _data(group: Json, store: Store) -> tuple[bytes, list[Any]]:
    """Return a group's pickle and buffers from the store, which compares their hashes."""
    buffers = []
    for digest, size, is_readonly in group["buffers"]:
        loaded = store.load(digest, size)
        buffers.append(loaded if is_readonly else bytearray(loaded))
    return store.load(group["pickle"], group["size"]), buffers
