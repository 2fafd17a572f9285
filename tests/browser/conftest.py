"""A real JupyterLab with a real local sandbox behind it, in a real Chromium."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from lab_server import REPOSITORY, RunningLab, running_lab
from lab_window import WAIT_MS, Lab
from sandbox_server import RunningSandbox, running_sandbox

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Playwright

OpenWindow = Callable[[RunningLab, str], Lab]

CHAT = "chat-in-browser"
CAMPAIGN = "campaign-in-browser"
SESSION = "session-in-browser"

CHROMIUM_ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

CONFIG = {"provision_seconds": {"compute": 0.3, "mount": 0.3}, "hibernating_seconds": 0.1}
"""How the local sandbox is at the start of each test."""


def _missing() -> str:
    """Why no browser test can run here; empty when they can."""
    for module in ("jupyterlab", "playwright", "ivy_kernel.server_extension"):
        if importlib.util.find_spec(module) is None:
            return f"{module} is not installed"
    if not (REPOSITORY / "ivy_kernel/labextension/package.json").is_file():
        return "the panel is not built: run `python hatch_build.py`"
    return "" if chromium() else "there is no Chromium"


def chromium() -> str | None:
    """The path of the Chromium to drive."""
    return os.environ.get("IVY_TEST_CHROMIUM") or shutil.which("chromium")


class Chromium:
    """The browser of all tests here, which is started when one needs it.

    Parameters
    ----------
    profile
        The directory of its profile, whose cache makes loading JupyterLab twice as fast.
    """

    def __init__(self, profile: Path) -> None:
        self._profile = profile
        self._playwright: Playwright | None = None
        self._context: BrowserContext | None = None
        self.kept_windows: list[Lab] = []
        """The window of the test before, if it could be tidied: loading JupyterLab takes long."""

    @property
    def context(self) -> BrowserContext:
        """Its one profile, with the windows."""
        from playwright.sync_api import expect, sync_playwright

        if self._context is None:
            expect.set_options(timeout=WAIT_MS)
            self._playwright = sync_playwright().start()
            self._context = self._playwright.chromium.launch_persistent_context(
                self._profile,
                executable_path=chromium(),
                args=CHROMIUM_ARGUMENTS,
                viewport={"width": 1400, "height": 900},
                reduced_motion="reduce",  # each frame is drawn by the processor here
            )
        return self._context

    def stop(self) -> None:
        """End it, and its event loop."""
        self.kept_windows.clear()
        context, self._context = self._context, None
        playwright, self._playwright = self._playwright, None
        if context is not None:
            context.close()
        if playwright is not None:
            playwright.stop()


_CHROMIUM = pytest.StashKey[Chromium]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """End the browser after the last test here: its event loop must not run during others."""
    try:
        yield
    finally:
        browser = item.config.stash.get(_CHROMIUM, None)
        if browser and (nextitem is None or nextitem.path.parent != item.path.parent):
            browser.stop()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each browser test the time for several of its waits."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.timeout(5 * WAIT_MS / 1000))


@pytest.fixture(scope="session", autouse=True)
def _required() -> None:
    """Skip, with the reason, where the tests cannot run; fail where they must (in CI)."""
    if why := _missing():
        if os.environ.get("CI"):
            pytest.fail(f"The browser tests cannot run: {why}")
        pytest.skip(why)


@pytest.fixture(scope="session")
def _shared_sandbox(_required: None) -> Iterator[RunningSandbox]:
    with running_sandbox(CONFIG) as server:
        yield server


@pytest.fixture
def sandbox(_shared_sandbox: RunningSandbox) -> Iterator[RunningSandbox]:
    """The server of the chat's sandbox, which is not started; settings as in ``CONFIG``."""
    server = _shared_sandbox
    defaults = {
        "hibernate_seconds": None,
        "runtime_seconds": None,
        "expiry_margin_seconds": 0,
        "provision_fails_in": "",
        "rate_limit": None,
    }
    server.control({**defaults, **CONFIG})
    yield server
    server.control({**defaults, **CONFIG})
    server.call("POST", f"/v1/sandbox/{CHAT}/terminate")


@pytest.fixture(scope="session")
def running(
    _shared_sandbox: RunningSandbox, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningLab]:
    """JupyterLab behind a prefix, as a hub gives it, with the extension as it is shipped."""
    server = _shared_sandbox
    settings = {
        "IVY_API_URL": server.url,
        "IVY_API_KEY": server.token,
        "IVY_CHAT_ID": CHAT,
        "IVY_CAMPAIGN_ID": CAMPAIGN,
        "IVY_SESSION_ID": SESSION,
    }
    with running_lab(tmp_path_factory.mktemp("lab"), settings) as lab:
        yield lab


@pytest.fixture(scope="session")
def _shared_newcomer(
    _required: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningLab]:
    if importlib.util.find_spec("notebook") is None:
        if os.environ.get("CI"):
            pytest.fail("Jupyter Notebook is not installed")
        pytest.skip("Jupyter Notebook is not installed")
    with running_lab(tmp_path_factory.mktemp("newcomer"), {}, app="notebook") as server:
        yield server


@pytest.fixture
def newcomer(_shared_newcomer: RunningLab) -> Iterator[RunningLab]:
    """A Jupyter Notebook without an account; no local sandbox runs yet."""
    server = _shared_newcomer
    yield server
    server.shut_down_kernels()
    server.home.stop_sandbox()


@pytest.fixture
def countdowns(running: RunningLab, sandbox: RunningSandbox) -> Iterator[None]:
    """The status comes from Recoup's API, which knows the deadlines (but no phases)."""
    recoup = {
        "recoup_api_url": sandbox.url.removesuffix("/api"),
        "recoup_api_key": sandbox.token,
        "recoup_session_id": SESSION,
    }
    running.home.settings_file.write_text(json.dumps({"Ivy": recoup}), "utf-8")
    yield
    running.home.settings_file.unlink()


@pytest.fixture(scope="session")
def _chromium(
    _required: None, pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Chromium]:
    browser = Chromium(tmp_path_factory.mktemp("profile"))
    pytestconfig.stash[_CHROMIUM] = browser
    yield browser
    browser.stop()


@pytest.fixture
def _browser(_chromium: Chromium) -> BrowserContext:
    return _chromium.context


@pytest.fixture
def open_window(_browser: BrowserContext) -> Iterator[OpenWindow]:
    """Opens signed-in browser windows; no error may happen in their pages."""
    windows: list[Lab] = []
    before = set(_browser.pages)

    def open_window(server: RunningLab, path: str) -> Lab:
        windows.append(Lab(_browser, server, path))
        return windows[-1]

    try:
        yield open_window
        assert [error for window in windows for error in window.page_errors] == []
    finally:
        for page in set(_browser.pages) - before:
            page.close()


@pytest.fixture
def lab(
    _chromium: Chromium,
    running: RunningLab,
    sandbox: RunningSandbox,
) -> Iterator[Lab]:
    """A window on JupyterLab, as good as new, whose sandbox is not started.

    No error may happen in its page.
    """
    kept, context = _chromium.kept_windows, _chromium.context
    window = kept.pop() if kept else Lab(context, running, "lab?reset")
    # The sandbox was terminated behind the server's back, who would notice later.
    window.reconnect()
    window.wait_for_status("Ivy: Not started")
    try:
        yield window
        assert window.page_errors == []
    finally:
        context.set_offline(False)
        if window.tidy():
            kept.append(window)
        else:
            window.close()
        running.shut_down_kernels()


@pytest.fixture
def axe_source() -> str:
    """The accessibility checker axe-core."""
    path: Path = REPOSITORY / "labextension/node_modules/axe-core/axe.min.js"
    if not path.is_file():
        pytest.skip("axe-core is not installed: run `npm ci` in labextension/")
    return path.read_text("utf-8")
