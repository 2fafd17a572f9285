"""Drives a browser window as a user does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from lab_server import TOKEN, RunningLab
from playwright.sync_api import BrowserContext, Error, Locator, Page, Response, expect
from sandbox_server import RunningSandbox, until

WAIT_MS = 60_000

_KERNEL_IS_READY = """() => {
  const context = window.jupyterapp?.shell.currentWidget?.context?.sessionContext;
  const kernel = context?.session?.kernel;
  return context?.isReady && kernel?.connectionStatus === 'connected' && kernel?.status === 'idle';
}"""

_IS_RESTORED = """() => {
  if (window.jupyterapp && window.isRestored === undefined) {
    window.isRestored = false;
    void window.jupyterapp.restored.then(() => { window.isRestored = true; });
  }
  return window.isRestored;
}"""

_TIDY = """() => {
  const { commands, shell } = window.jupyterapp;
  for (const widget of [...shell.widgets('main')]) {
    widget.dispose();
  }
  if (document.querySelector('#ivy-sandbox-panel')?.checkVisibility()) {
    void commands.execute('application:toggle-right-area');
  }
  for (const button of document.querySelectorAll('.jp-Notification-Toast-Close')) {
    button.click();
  }
  if (document.body.dataset.jpThemeName !== 'JupyterLab Light') {
    void commands.execute('apputils:change-theme', { theme: 'JupyterLab Light' });
  }
  shell.activateById('filebrowser');
}"""

_IS_TIDY = """() =>
  [...window.jupyterapp.shell.widgets('main')].length === 1 &&
  document.querySelector('.jp-LauncherCard') !== null &&
  document.querySelector('.Toastify__toast, .jp-Dialog') === null &&
  !document.querySelector('#ivy-sandbox-panel')?.checkVisibility() &&
  !document.querySelector('#ivy-drive')?.checkVisibility() &&
  document.body.dataset.jpThemeName === 'JupyterLab Light' &&
  document.querySelector('#jupyterlab-splash') === null
"""

_OF_JUPYTER = (
    # JupyterLab's own way of finding out that another tab has the same workspace.
    "Window name candidate",
    # Jupyter Notebook looks up settings of plugins that it does not have, lets go of a new
    # notebook that it opens in another tab, and (7.2) takes it that there is a checkpoint.
    "Cannot read properties of undefined (reading 'schema')",
    "Cannot read properties of undefined (reading 'last_modified')",
    "._handleNewSession",
)
"""Errors in the page that come without our extension too."""


class Lab:
    """A browser window on JupyterLab.

    Parameters
    ----------
    context
        The browser's profile, with cookies and storage of its own.
    running
        The server.
    path
        The page, below the server's base URL.
    """

    def __init__(self, context: BrowserContext, running: RunningLab, path: str) -> None:
        self.context = context
        self.running = running
        self.page_errors: list[str] = []
        self.responses: list[Response] = []
        self._path = path
        self._tabs: list[Page] = []
        self.page = self._open()

    def _open(self) -> Page:
        separator = "&" if "?" in self._path else "?"
        return self.open_tab(f"{self._path}{separator}token={TOKEN}")

    def reopen(self) -> None:
        """Open it anew, for a test of what happens when a page is loaded."""
        self.close()
        self.responses.clear()
        self.page = self._open()

    def close(self) -> None:
        """Close all its tabs."""
        while self._tabs:
            self._tabs.pop().close()

    def tidy(self) -> bool:
        """Reset it to how it was after loading; return ``False`` where that is not possible."""
        if self.page not in self._tabs:
            return False
        for tab in self._tabs[1:]:
            tab.close()
        del self._tabs[1:]
        try:
            self.page.evaluate(_TIDY)
            self.page.wait_for_function(_IS_TIDY, timeout=5000)
        except Error:
            return False
        # What happened while notebooks were thrown away is not the next test's concern.
        self.page_errors.clear()
        self.responses.clear()
        return True

    def open_tab(self, path: str) -> Page:
        """Another tab of the same browser."""
        page = self.context.new_page()
        self._tabs.append(page)
        page.set_default_timeout(WAIT_MS)
        page.on("pageerror", self._note_error)
        page.on("response", lambda response: self.responses.append(response))
        page.goto(self.running.url + path)
        page.wait_for_function(_IS_RESTORED)
        page.wait_for_selector("#jupyterlab-splash", state="detached")
        return page

    def _note_error(self, error: Error) -> None:
        if not any(words in f"{error}\n{error.stack}" for words in _OF_JUPYTER):
            self.page_errors.append(f"{error}\n{error.stack}")

    def execute(self, command: str, **arguments: Any) -> None:
        """Begin a command, without waiting for its effect."""
        # A promise that is returned here would be waited for without any time limit.
        self.page.evaluate(
            "([id, args]) => { void window.jupyterapp.commands.execute(id, args) }",
            [command, arguments],
        )

    def open_panel(self) -> Locator:
        """Clicks the item in the status bar, as a user does; returns the panel."""
        panel = self.panel
        self.page.get_by_role("button", name="Ivy:").click()
        expect(panel).to_be_visible()
        return panel

    @property
    def panel(self) -> Locator:
        """The side panel."""
        return self.page.locator("#ivy-sandbox-panel")

    @property
    def status_item(self) -> Locator:
        """The item in the status bar."""
        return self.page.locator(".jp-ivy-status")

    def wait_for_status(self, text: str) -> None:
        """Wait until the status bar says so."""
        expect(self.status_item).to_have_text(text)

    def open_notebook(self, name: str) -> None:
        """Open a notebook and wait until its kernel can run cells."""
        self.execute("docmanager:open", path=name)
        self.page.locator(".jp-NotebookPanel:visible").wait_for()
        self.wait_for_kernel()

    def wait_for_kernel(self) -> None:
        """Wait until the current notebook's kernel can run cells."""
        self.page.wait_for_function(_KERNEL_IS_READY)

    def run_all(self) -> None:
        """Run all cells of the current notebook."""
        self.execute("notebook:run-all-cells")

    def outputs(self) -> Locator:
        """The outputs of the current notebook."""
        return self.page.locator(".jp-NotebookPanel:visible .jp-OutputArea-output")

    def make_active(self, sandbox: RunningSandbox) -> None:
        """Create the chat's sandbox by the server extension, and wait until it is active."""
        (shown,) = self.running.call("GET", "ivy/sandboxes")["sandboxes"]
        self.running.call("POST", f"ivy/sandboxes/{shown['id']}/create", {})
        chat_id = shown["chat_id"]
        until(lambda: sandbox.status(chat_id)["status"] == "active", "the sandbox is active")
        until(self._is_known_active, "the server extension has seen that")

    def _is_known_active(self) -> bool:
        (shown,) = self.running.call("GET", "ivy/sandboxes")["sandboxes"]
        return bool(shown["status"]["state"] == "active")

    def sandbox_id(self) -> str:
        """The id of the one sandbox that the server extension knows."""
        (shown,) = self.running.call("GET", "ivy/sandboxes")["sandboxes"]
        return str(shown["id"])

    def reconnect(self) -> None:
        """Make the server extension ask for the sandbox's status, whatever state it is in."""
        self.running.call("POST", f"ivy/sandboxes/{self.sandbox_id()}/reconnect", {})

    def state(self, page: Page | None = None) -> Locator:
        """The state of the first sandbox in the panel."""
        return (page or self.page).locator("#ivy-sandbox-panel .jp-ivy-chip").first

    def notification(self, text: str) -> Locator:
        """The notification that says so."""
        return self.page.locator(".Toastify__toast", has_text=text)

    def check_accessible(
        self,
        axe_source: str,
        selector: str = "#ivy-sandbox-panel, .jp-ivy-status",
        *,
        exclude: Sequence[str] = (),
    ) -> None:
        """axe-core finds nothing to mend there, but in what is excluded, in either theme."""
        self.page.evaluate(f"{axe_source};0")
        for theme in ("JupyterLab Dark", "JupyterLab Light"):
            self.execute("apputils:change-theme", theme=theme)
            self.page.wait_for_selector(f"body[data-jp-theme-name='{theme}']", state="attached")
            # While it is there the keyboard focus gets lost.
            self.page.wait_for_selector("#jupyterlab-splash", state="detached")
            violations = self.page.evaluate(
                """async ([selector, exclude]) => {
                  const found = await axe.run({ include: [selector], exclude });
                  return found.violations.map(one => `${one.id}: ${one.nodes[0].html}`);
                }""",
                [selector, list(exclude)],
            )
            assert violations == [], theme

    @staticmethod
    def path_of(notebook: str) -> str:
        """The path that opens a notebook in a tab of its own."""
        return f"lab/workspaces/{quote(notebook, safe='')}/tree/{quote(notebook)}"
