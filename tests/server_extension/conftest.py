"""One Jupyter server on one sandbox server for most tests of the extension."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from jupyter_server_driver import (
    MARKED_KEY,
    RunningJupyter,
    ServerHome,
    running_jupyter,
)
from sandbox_server import RunningSandbox, running_sandbox, until

LOCAL_PROGRAM = """
from jupyter_server.auth import Authorizer
from jupyter_server.serverapp import main
from ivy_kernel.server_extension import sandboxes

class RefusesOnRequest(Authorizer):
    def is_authorized(self, handler, user, action, resource):
        return handler.request.headers.get("X-Refuse") != f"{action} {resource}"

sandboxes.HEARTBEAT_SECONDS = 0.4
main()
"""
"""As ``python -m jupyter_server``, but with heartbeats and refusals that a test can wait for."""


@pytest.fixture(scope="session")
def platform() -> Iterator[RunningSandbox]:
    """What the Jupyter server takes for the platform; its key is a marked one."""
    with running_sandbox(token=MARKED_KEY) as running:
        yield running


@pytest.fixture(scope="session")
def shared_jupyter(
    platform: RunningSandbox, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningJupyter]:
    """A Jupyter server for all tests that only change its settings file."""
    home = ServerHome(tmp_path_factory.mktemp("jupyter") / "home")
    variables = {"IVY_API_KEY": MARKED_KEY, "IVY_API_URL": platform.url, "IVY_ROUTE": "notebook"}
    with running_jupyter(home, variables) as running:
        yield running


@pytest.fixture
def jupyter(shared_jupyter: RunningJupyter, chat_id: str) -> Iterator[RunningJupyter]:
    """The shared Jupyter server, whose settings name a chat without a sandbox."""
    shared_jupyter.home.configure({"chat_id": chat_id, "campaign_id": f"campaign-of-{chat_id}"})
    until(lambda: shared_jupyter.default()["chat_id"] == chat_id, "the settings were read again")
    yield shared_jupyter
    shared_jupyter.home.configure(None)


@pytest.fixture(scope="session")
def _local_jupyter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningJupyter]:
    home = ServerHome(tmp_path_factory.mktemp("local") / "home")
    variables = {"IVY_CHAT_ID": "chat-of-the-environment"}
    flags = (
        "--ServerApp.base_url=/user/x/",
        "--ServerApp.authorizer_class=__main__.RefusesOnRequest",
        "--Ivy.chat_id=chat-of-a-flag",
    )
    with running_jupyter(home, variables, *flags, program=LOCAL_PROGRAM) as running:
        yield running


@pytest.fixture
def local_jupyter(_local_jupyter: RunningJupyter) -> Iterator[RunningJupyter]:
    """A Jupyter server below a prefix, without a key; no local sandbox runs yet."""
    yield _local_jupyter
    _local_jupyter.home.stop_sandbox()
    _local_jupyter.act("reconnect")


@pytest.fixture(scope="session")
def server(platform: RunningSandbox) -> RunningSandbox:
    """The platform, for the fixture ``changed``."""
    return platform


@pytest.fixture
def server_home(tmp_path: Path) -> ServerHome:
    """Directories for one more Jupyter server."""
    return ServerHome(tmp_path / "home")
