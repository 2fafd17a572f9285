"""Checkpoints: what comes back is what was there, and what does not is named."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bare_kernel import BareKernel

BEFORE = """
import functools, logging, os, random, sys, threading, warnings
import numpy as np
import pandas as pd
import polars, pyarrow
from random import randint
random.seed(3); np.random.seed(4)
"""

SAVED: dict[str, tuple[str, str]] = {
    "plain values": (
        "v1 = [1, 2.5, 'text', b'bytes', None, {'k': (1, {2})}, 10**40, 1j, range(3), ...]",
        "print(v1)",
    ),
    "two names of one object": ("a1 = [1]; a2 = {'a': a1}", "a1.append(2); print(a2)"),
    "a cycle": ("c1 = {}; c1['self'] = c1", "print(c1['self'] is c1)"),
    "names of modules and of their functions": (
        "import os.path as m1; m2 = np.sum; m3 = os.getcwd",
        "print(m1.join('a', 'b'), m2([1]), m3() == os.getcwd())",
    ),
    "a function sees later changes of globals": (
        "f1 = 1\ndef f2(): return f1\ndef f3(n): return n if n < 2 else f3(n - 1) + f3(n - 2)",
        "f1 = 2; print(f2(), f3(9), f2.__globals__ is globals())",
    ),
    "functions that share a cell": (
        "def k0():\n    n = 0\n    def up():\n        nonlocal n\n        n += 1\n"
        "        return n\n    return up, lambda: n\nk1, k2 = k0(); k1()",
        "k1(); print(k1(), k2())",
    ),
    "a recursive closure": (
        "def r0():\n    def go(n): return 1 if n < 2 else n * go(n - 1)\n    return go\nr1 = r0()",
        "print(r1(6))",
    ),
    "a decorated function with a cache": (
        "@functools.lru_cache(maxsize=5)\ndef l1(n):\n    'doc'\n    return n * 2\nl1(2)",
        "print(l1(3), l1.__doc__, l1.cache_info().maxsize)",
    ),
    "a function from another namespace": (
        "e0 = {}; exec('n = 1\\ndef up():\\n    global n\\n    n += 1\\n    return n', e0)\n"
        "e1 = e0['up']; del e0; e1()",
        "print(e1(), e1())",
    ),
    "a class is one class for all of its instances": (
        "class C1:\n    made = []\n    def __init__(self): C1.made.append(self)\n"
        "    def me(self): return self\nc2 = C1(); c3 = [C1()]; c4 = C1.made",
        "c4.append(5); print(type(c2) is C1, type(c3[0]) is C1, C1.made[0] is c2, "
        "len(C1.made), c2.me() is c2, isinstance(C1(), C1))",
    ),
    "classes that name each other": (
        "class Q1:\n    def other(self): return Q2()\nclass Q2(Q1):\n    friend = Q1()\n"
        "    def __init__(self): super().__init__()\nQ1.child = Q2; q3 = Q2()",
        "print(type(q3.other()) is Q2, Q1.child is Q2, isinstance(Q2.friend, Q1))",
    ),
    "the old class of an instance whose class was defined anew": (
        "class O1: old = True\no2 = O1()\nclass O1: old = False\no3 = O1()",
        "print(o2.old, o3.old, isinstance(o2, O1), isinstance(o3, O1))",
    ),
    "enumerations, data classes, named tuples": (
        "import enum, dataclasses, collections\nclass E1(enum.Enum):\n    A = 1\n"
        "@dataclasses.dataclass\nclass D1:\n    x: int = 3\n"
        "T1 = collections.namedtuple('T1', 'x y'); t2 = T1(1, [2]); e2 = E1.A; d2 = D1(4)",
        "print(e2 is E1.A, d2 == D1(4), t2, type(t2) is T1, D1())",
    ),
    "a class that counts its subclasses": (
        "ae0 = []\nclass Ae1:\n    subs = []\n    def __init_subclass__(cls):\n"
        "        Ae1.subs.append(cls); ae0.append(cls)\nclass Ae2(Ae1): pass\nclass Ae3(Ae2): pass",
        "class Ae4(Ae2): pass\n"
        "print([c.__name__ for c in Ae1.subs + ae0], Ae1.subs[0] is Ae2, ae0[1] is Ae3)",
    ),
    "a metaclass that counts its classes": (
        "class Af1(type):\n    made = []\n    def __new__(mcs, name, bases, body):\n"
        "        cls = super().__new__(mcs, name, bases, body); Af1.made.append(cls); return cls\n"
        "class Af2(metaclass=Af1): pass\nclass Af3(Af2): pass\naf4 = Af3()",
        "class Af5(Af2): pass\n"
        "print([c.__name__ for c in Af1.made], Af1.made[0] is Af2, type(af4) is Af3)",
    ),
    "a class that counts its instances": (
        "class Ag1:\n    made = 0\n    def __new__(cls):\n        cls.made += 1\n"
        "        return super().__new__(cls)\nag2 = Ag1(); ag3 = [Ag1()]; ag2.x = 5",
        "print(Ag1.made, ag2.x, type(ag3[0]) is Ag1); Ag1(); print(Ag1.made)",
    ),
    "a field of a data class that says it has no state": (
        "@dataclasses.dataclass\nclass DD1:\n    x: int = 3\n"
        "    def __getstate__(self): return {}\ndd2 = DD1(4)",
        "print(dd2)",
    ),
    "a value that looks among its caller's variables when it comes back": (
        "def fr1(): return 5\nclass FR:\n    def __setstate__(self, _):\n"
        "        self.y = sys._getframe(2).f_globals['fr1']()\nfr2 = FR(); fr2.y = 5",
        "print(fr2.y)",
    ),
    "collections": (
        "import collections\no1 = [collections.deque([1], 3), collections.Counter('aab'),"
        " collections.defaultdict(list, a=[1]), collections.OrderedDict(b=1)]",
        "print(o1)",
    ),
    "iterators where they are": (
        "i1 = iter([1, 2, 3]); next(i1); i2 = zip(i1, 'ab')",
        "print(list(i2))",
    ),
    "a view of a dictionary": ("y1 = {'a': 1}; y2 = y1.keys()", "y1['b'] = 2; print(list(y2))"),
    "bound methods": ("b1 = []; b2 = b1.append", "b2(1); print(b1)"),
    "the state of random": ("randint(1, 10**9)", "print(randint(1, 10**9), random.random())"),
    "a function of the module random is still that one": (
        "s1 = randint",
        "random.seed(9); s2 = s1(1, 10**9); random.seed(9); print(s2 == randint(1, 10**9))",
    ),
    "the state of numpy's random numbers": (
        "g1 = np.random.default_rng(5); g1.random(); np.random.rand()",
        "print(g1.random(), np.random.rand())",
    ),
    "views of an array": (
        "n1 = np.arange(20.0); n2 = n1[::2]; n3 = n1.reshape(4, 5).T; n4 = n1[3:]\n"
        "n4.flags.writeable = False; n5 = n1[::-3]; n6 = n1.view('i8')",
        "n1[0] = 99; n1[3] = 7; n3[1, 1] = -1\n"
        "print(n1, n2, n3, n4, n5, n6, n4.flags.writeable, n2.base is n1, n1.flags.owndata)",
    ),
    "a large array and a part of it": (
        "n7 = np.zeros((300, 300)); n8 = n7[10:20, ::7]",
        "n7[10, 7] = 1; print(n8.sum(), n7.flags.writeable)",
    ),
    "arrays of many kinds": (
        "z1 = [np.array(3.5), np.float32(2), np.array(['a', 'bc']), np.arange(3).astype('M8[D]'),"
        " np.zeros(2, [('a', 'i4'), ('b', 'f8')]), np.asfortranarray(np.eye(3)[:, :2]),"
        " np.ma.masked_array([1, 2], [0, 1]), np.matrix([[1]]), np.array([]), np.zeros((0, 3))]",
        "print(z1, [(z.dtype, z.flags.f_contiguous, z.flags.writeable) for z in z1])",
    ),
    "a masked array in the memory of another": (
        "aa1 = np.arange(5.0); aa2 = np.ma.masked_array(aa1, [0, 1, 0, 0, 0], copy=False)",
        "aa1[0] = 99; aa2[2] = -1; print(aa1, aa2, aa2.mask)",
    ),
    "an array of a cell's class in the memory of another": (
        "class Ab1(np.ndarray): pass\nab2 = np.arange(4.0); ab3 = ab2.view(Ab1); ab3.tag = 'u'",
        "ab2[0] = 99; print(np.asarray(ab3), ab3.tag, type(ab3) is Ab1)",
    ),
    "an array of records and a field of it": (
        "ac1 = np.zeros(3, [('a', 'i4'), ('b', 'f8')]); ac2 = ac1['a']\n"
        "ac3 = ac1.view(np.recarray)",
        "ac2[1] = 5; ac3.b[2] = 7; print(ac1, ac3, type(ac3) is np.recarray)",
    ),
    "an array with its axes in another order, and a part of it": (
        "ad1 = np.arange(24).reshape(2, 3, 4).transpose(2, 0, 1) + 1; ad2 = ad1[1]; ad3 = [ad2]",
        "ad1[1, 0, 0] = -5; print(ad2, ad1.strides, ad1.flags.owndata, ad3[0] is ad2)",
    ),
    "arrays of objects": (
        "p1 = [1]; p2 = np.array([p1, None, 's'], dtype=object); p3 = p2[1:]",
        "p2[1] = 'new'; p1.append(2); print(p2, p3)",
    ),
    "an array in the memory of a bytearray": (
        "h1 = bytearray(b'123'); h2 = np.frombuffer(h1, np.uint8)",
        "h2[0] = 65; h1[1] = 66; print(h1, h2)",
    ),
    "frames": (
        "w1 = pd.DataFrame({'a': np.arange(9000.0), 'b': ['x', None, 'z'] * 3000,"
        " 'c': pd.Categorical(['u', 'v', 'u'] * 3000)}, index=pd.RangeIndex(5, 9005))\n"
        "w2 = w1['a']; w3 = w1[['a', 'b']]; w4 = w1.set_index(pd.date_range('2020', periods=9000))",
        "w1.iloc[0, 0] = 99; w2.iloc[1] = 7\n"
        "print(w1.iloc[0, 0], w2.iloc[0], w2.iloc[1], w1.iloc[1, 0], w3.iloc[0, 0], w1.dtypes)\n"
        "print([pd.util.hash_pandas_object(w).sum() for w in (w1, w2, w3, w4)], w4.index.freq)",
    ),
    "frames of polars and tables of arrow": (
        "u1 = polars.DataFrame({'a': [1, 2], 'b': ['x', None]})\n"
        "u2 = pyarrow.table({'q': list(range(50000))}); u3 = u2.slice(7, 3)",
        "print(u1, u3.to_pydict(), u2.num_rows)",
    ),
    "exceptions and types": (
        "x1 = ValueError('x', 1); x2 = [x1]; x3 = (list[int], type(None), int)",
        "print(repr(x1), x2[0] is x1, x3)",
    ),
    "directory, environment and path": (
        "os.makedirs('sub', exist_ok=True); os.chdir('sub'); os.environ['IVY_T'] = 'yes'\n"
        "os.environ.pop('HOME', None); sys.path.append('/somewhere'); j1 = os.environ",
        "print(os.path.basename(os.getcwd()), j1['IVY_T'], 'HOME' in os.environ, sys.path[-1], "
        "j1 is os.environ)",
    ),
    "options": (
        "pd.set_option('display.max_rows', 7); np.set_printoptions(precision=3)\n"
        "import decimal; decimal.getcontext().prec = 5; logging.getLogger('ivy.t').setLevel(10)\n"
        "warnings.filterwarnings('error', message='ivy'); sys.setrecursionlimit(4000)",
        "print(pd.get_option('display.max_rows'), np.array([1.23456]), decimal.Decimal(1) / 3, "
        "logging.getLogger('ivy.t').level, sys.getrecursionlimit(), "
        "any(f[0] == 'error' and 'ivy' in getattr(f[1], 'pattern', '') for f in warnings.filters))",
    ),
    "the lines of a cell in a traceback": (
        "def tb1():\n    raise KeyError('gone')",
        "import traceback\ntry: tb1()\n"
        "except KeyError: print('raise KeyError' in traceback.format_exc())",
    ),
}
"""What one cell makes, and what another prints of it: the same before and after."""

MISSING: dict[str, tuple[str, str]] = {
    "m_file": ("m_file = open(os.devnull)", "TextIOWrapper"),
    "m_generator": ("m_generator = (i for i in 'ab')", "generator"),
    "m_lock": ("m_lock = [threading.Lock()]", "lock"),
    "m_thread": ("m_thread = threading.Thread(target=print)", "Thread"),
    "m_view": ("m_view = memoryview(b'abc')", "memoryview"),
    "m_globals": ("m_globals = globals()", "all of the notebook's variables"),
    "m_class": ("class m_class:\n    lock = threading.Lock()", "lock"),
    "m_instance": ("m_instance = m_class()", "its class m_class cannot be saved"),
    "m_memmap": ("m_memmap = np.memmap('mm', 'u1', 'w+', shape=(3,))", "memmap"),
    "m_array": (
        "class Ma(np.ndarray): pass\nma1 = np.ndarray.__new__(Ma, (3,)); m_array = np.asarray(ma1)",
        "it shares memory with a Ma",
    ),
    "m_module": ("import types; m_module = types.ModuleType('made')", "was made here"),
    "m_broken": (
        "class Broken:\n    def __reduce__(self): return (int, ('x',))\nm_broken = Broken()",
        "could not be brought back: invalid literal",
    ),
    "m_other": (
        "class Other:\n    def __reduce__(self): return (list, ())\nm_other = Other()",
        "it comes back as a list",
    ),
    "m_deep": (
        "m_deep = []\nfor _ in range(5000): m_deep = [m_deep]",
        "nested too deeply",
    ),
}
"""What cannot be saved: the cell that makes it, and a part of the reason."""


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A working directory."""
    path = Path(tempfile.mkdtemp(prefix="ivy-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def kernels(place: Path) -> Iterator[tuple[BareKernel, BareKernel, Any, Any]]:
    """One that goes on, and one that got the other's variables, with what was said of them."""
    with contextlib.ExitStack() as stack:
        undisturbed = stack.enter_context(contextlib.closing(BareKernel(place)))
        undisturbed.configure()
        undisturbed.run(BEFORE)
        for made, _ in (*MISSING.values(), *SAVED.values()):
            undisturbed.run(made)
        summary = undisturbed.ask("checkpoint", now=True)
        restored = stack.enter_context(contextlib.closing(BareKernel(place)))
        restored.configure()
        yield undisturbed, restored, summary, restored.ask("restore")


@pytest.mark.parametrize("case", SAVED)
def test_what_a_cell_prints_is_the_same_after_a_restore(
    kernels: tuple[BareKernel, BareKernel, Any, Any], case: str
) -> None:
    """In a process that was given the variables, each cell prints what it prints undisturbed."""
    undisturbed, restored, _, _ = kernels
    check = SAVED[case][1]
    assert restored.run(check)["text"] == undisturbed.run(check)["text"]


@pytest.mark.parametrize("name", MISSING)
def test_what_cannot_be_saved_is_named_with_its_reason_and_cell(
    kernels: tuple[BareKernel, BareKernel, Any, Any], name: str
) -> None:
    """It is missing from the checkpoint and after the restore; everything else is not."""
    _, _, summary, reply = kernels
    assert MISSING[name][1] in summary["missing"][name]["why"]
    assert summary["missing"][name]["cell"] == 2 + list(MISSING).index(name)
    assert reply["missing"] == summary["missing"]
    assert set(reply["missing"]) == set(MISSING)
    assert not set(reply["restored"]) & set(MISSING)
    assert reply["number"] == 1 + len(MISSING) + len(SAVED)


def test_a_restore_names_variables_of_modules_and_what_is_not_of_the_checkpoint() -> None:
    """A module of the workspace is imported anew, and what a later cell has made stays."""
    with tempfile.TemporaryDirectory(prefix="ivy-") as directory, contextlib.ExitStack() as stack:
        first, second = (
            stack.enter_context(contextlib.closing(BareKernel(Path(directory)))) for _ in range(2)
        )
        first.configure()
        first.run(
            "open('ours.py', 'w').write('count = 0\\nsame = [1]\\n')\n"
            "import sys; sys.path.insert(0, ''); import ours; ours.count = 5; a = 1"
        )
        first.ask("checkpoint", now=True)
        second.configure()
        second.run("import sys; b = 2")
        reply = second.ask("restore")
    assert list(reply["missing"]) == ["ours.count"]
    assert "imported anew" in reply["missing"]["ours.count"]["why"]
    assert reply["others"] == ["b"]
