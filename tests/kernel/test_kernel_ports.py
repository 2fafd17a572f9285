"""A kernel keeps the ports of its connection file until it binds them."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.connect import LocalPortCache, write_connection_file
from kernel_driver import Home, KernelDriver

from ivy_kernel.kernel.ports import HeldPorts, PortTakenError, held_ports

NAMES = ("shell_port", "iopub_port", "stdin_port", "control_port", "hb_port")


@pytest.fixture
def connection_file(tmp_path: Path) -> str:
    """A connection file as jupyter_client writes it, with five free ports."""
    cache = LocalPortCache()
    ports = {name: cache.find_available_port("127.0.0.1") for name in NAMES}
    return write_connection_file(str(tmp_path / "kernel.json"), **ports)[0]


@pytest.fixture
def holding() -> Iterator[Callable[..., HeldPorts]]:
    """Holds ports for the time of a test."""
    all_held: list[HeldPorts] = []

    def hold(*arguments: Any, **options: Any) -> HeldPorts:
        all_held.append(HeldPorts(*arguments, **options))
        return all_held[-1]

    yield hold
    for held in all_held:
        held.release()


def is_free(port: int) -> bool:
    """Whether an ordinary socket can be bound to it."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


@pytest.mark.parametrize("form", ["-f FILE", "-f=FILE", "--f=FILE"])
def test_all_ports_of_the_file_are_kept_and_let_go(connection_file: str, form: str) -> None:
    """For each way to name the file; until they are let go, nobody gets them."""
    connection = json.loads(Path(connection_file).read_text())
    arguments = ["kernel", "--debug", *form.replace("FILE", connection_file).split(" ")]
    held = held_ports(arguments)
    assert [is_free(connection[name]) for name in NAMES] == [False] * 5
    held.release()
    assert [is_free(connection[name]) for name in NAMES] == [True] * 5


@pytest.mark.parametrize(
    "content", [None, "", "[1]", "{", '{"transport": "ipc", "shell_port": 1}', '{"shell_port": 0}']
)
def test_a_file_without_ports_is_left_to_ipykernel(tmp_path: Path, content: str | None) -> None:
    """No file, no JSON, another transport, ports still to be chosen: no error and no waiting."""
    file = tmp_path / "kernel.json"
    if content is not None:
        file.write_text(content)
    held_ports(["kernel", "-f", str(file)]).release()
    held_ports(["kernel"]).release()


def test_a_port_that_stays_taken_is_named(holding: Callable[..., HeldPorts]) -> None:
    """It is waited for, and then told; the others are let go."""
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        free = chosen.getsockname()[1]
        chosen.close()
        port = taken.getsockname()[1]
        with pytest.raises(PortTakenError, match=f"port {port} .hb_port of"):
            holding({"shell_port": free, "hb_port": port}, patience_seconds=0.2)
        assert is_free(free)


def test_an_address_that_is_none_is_left_to_ipykernel(holding: Callable[..., HeldPorts]) -> None:
    """What is wrong with it is not that it is taken: no waiting."""
    holding({"ip": "192.0.2.1", "shell_port": 1234}, patience_seconds=60)


@pytest.mark.parametrize("name", ["shell_port", "iopub_port", "hb_port"])
def test_a_kernel_whose_port_stays_taken_ends(connection_file: str, name: str) -> None:
    """With exit code 1 and one sentence, whichever port it is; it neither hangs nor lives on."""
    port = json.loads(Path(connection_file).read_text())[name]
    with socket.create_server(("127.0.0.1", port)):
        kernel = subprocess.run(
            [sys.executable, "-m", "ivy_kernel.kernel", "-f", connection_file],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert kernel.returncode == 1
    assert kernel.stderr.startswith(f"The kernel cannot start: its port {port} ({name} of")
    assert "Traceback" not in kernel.stderr


def test_a_kernel_starts_though_somebody_had_its_port_for_a_moment(tmp_path: Path) -> None:
    """Another program listened on it while the kernel's process began."""
    kernel = KernelDriver(Home(tmp_path))
    kernel.manager.cache_ports = False  # the port is given, not chosen
    with socket.create_server(("127.0.0.1", 0)) as other:
        kernel.manager.shell_port = other.getsockname()[1]
        leaves = threading.Timer(2.0, other.close)
        try:
            leaves.start()
            kernel.start()
            assert kernel.run("%%local\n1").reply["status"] == "ok"
            assert "Address already in use" not in kernel.log.read_text()
        finally:
            leaves.join()
            kernel.kill()
