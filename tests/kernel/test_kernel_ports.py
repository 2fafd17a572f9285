"""A kernel keeps the ports of its connection file until it binds them."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.connect import write_connection_file
from kernel_driver import Home, KernelDriver

from ivy_kernel.kernel.ports import HeldPorts, held_ports

NAMES = ("shell_port", "iopub_port", "stdin_port", "control_port", "hb_port")


@pytest.fixture
def connection_file(tmp_path: Path) -> str:
    """A connection file as jupyter_client writes it, with five free ports."""
    return write_connection_file(str(tmp_path / "kernel.json"))[0]


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


def test_a_port_that_stays_taken_is_given_up(holding: Callable[..., HeldPorts]) -> None:
    """It is waited for, and then left to ipykernel; the others are kept."""
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        free = chosen.getsockname()[1]
        chosen.close()
        connection = {"shell_port": taken.getsockname()[1], "hb_port": free}
        holding(connection, patience_seconds=0.2)
        assert not is_free(free)


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
