"""Set-up of all tests: the developer's own Jupyter and Ivy configuration is not seen."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from home import NO_IRI_GRAMMAR
from hypothesis import settings
from quiet_ports import use_quiet_ports
from thoroughness import THOROUGH

pytest_plugins = ["shared_fixtures"]

use_quiet_ports()

# For this process and those that it starts.
sys.path.insert(0, str(NO_IRI_GRAMMAR))
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(NO_IRI_GRAMMAR), *filter(None, [os.environ.get("PYTHONPATH")])]
)

# A shell that runs the suite in the background has it, and all that it starts, ignore Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No test is timed: machines are shared.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

LONGEST_FIRST = [
    "fidelity/test_upstream_suites.py",
    "routes/agent/test_agent_faults.py",
    "session/test_told_losses.py",
    "kernel/test_nothing_left_running.py",
    "kernel/test_kernel_losses.py",
    "kernel/test_kernel_network.py",
    "routes/agent/test_agent_background.py",
    "server_extension/test_server_truth.py",
    "kernel/test_kernel_bursts.py",
    "magics/test_magic_batch.py",
]
"""Files that take a minute or longer: begun last, one of them would keep all others waiting."""


# The browser tests have an extra of their own ("browser").
collect_ignore = [] if importlib.util.find_spec("playwright") else ["browser"]


def pytest_configure(config: pytest.Config) -> None:
    """Have pytest-xdist hand out files in our order, and not by their number of tests."""
    config.option.loadscopereorder = False
    config.addinivalue_line(
        "markers", "thorough: takes minutes, or is one more of a kind; IVY_TEST_THOROUGH=1 runs it"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files of `LONGEST_FIRST` first, and leave out what is thorough unless asked for."""
    here = Path(__file__).parent
    rank = {here / name: number for number, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: rank.get(item.path, len(rank)))
    for item in items:
        if item.get_closest_marker("thorough") and not THOROUGH:
            item.add_marker(pytest.mark.skip(reason="thorough: set IVY_TEST_THOROUGH=1"))


@pytest.fixture(autouse=True)
def _private_environment(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch):
    """Each test has Jupyter and IPython directories of its own, and no Ivy variables."""
    for name in list(os.environ):
        if name.startswith(("IVY_", "RECOUP_", "JPY_")) and name != "IVY_SHARED":
            monkeypatch.delenv(name)
    home = tmp_path_factory.mktemp("home")
    directories = {
        "JUPYTER_CONFIG_DIR": home / "config",
        "JUPYTER_DATA_DIR": home / "data",
        "JUPYTER_RUNTIME_DIR": home / "runtime",
        "IPYTHONDIR": home / "ipython",
    }
    for name, directory in directories.items():
        Path(directory).mkdir(mode=0o700)
        monkeypatch.setenv(name, str(directory))


@pytest.fixture
def place() -> Iterator[Path]:
    """An empty directory with a short path, as sockets need it."""
    path = Path(tempfile.mkdtemp(prefix="ivy-"))
    yield path
    for process in _processes_of(path):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    shutil.rmtree(path, ignore_errors=True)


def _processes_of(path: Path) -> list[psutil.Process]:
    """Agents that a test has left there, and their kernels."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if any(str(path) in word for word in process.info["cmdline"] or ())
    ]
