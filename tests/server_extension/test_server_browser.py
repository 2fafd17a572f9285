"""A browser that has signed in, below a prefix as hubs give one."""

from __future__ import annotations

import http.cookiejar
import json
import urllib.error
import urllib.request
from typing import Any

import pytest
from jupyter_server_driver import TOKEN, RunningJupyter
from test_server_actions import state_of
from test_server_routes import ROUTES, check_error


class Browser:
    """Keeps cookies, as a browser that has signed in with the token."""

    def __init__(self, server: RunningJupyter) -> None:
        self._url = server.url
        self.jar = http.cookiejar.CookieJar()
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPCookieProcessor(self.jar)
        )
        self.send("GET", f"login?token={TOKEN}")

    @property
    def xsrf(self) -> str:
        """The value of the XSRF cookie."""
        return next(cookie.value or "" for cookie in self.jar if cookie.name == "_xsrf")

    @property
    def cookies(self) -> str:
        """All cookies, for a request made otherwise."""
        return "; ".join(f"{cookie.name}={cookie.value}" for cookie in self.jar)

    def send(self, method: str, path: str, **headers: str) -> tuple[int, Any]:
        """Status and body of an answer."""
        data = b"{}" if method == "POST" else None
        request = urllib.request.Request(self._url + path, data, headers, method=method)
        try:
            with self._opener.open(request, timeout=30) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_every_route_asks_the_servers_authorizer(
    local_jupyter: RunningJupyter, method: str, path: str
) -> None:
    """Who is signed in but not allowed the resource ``ivy`` is refused, in the one shape."""
    action = "read" if method == "GET" else "write"
    headers = {"Authorization": f"token {TOKEN}", "X-Refuse": f"{action} ivy"}
    status, _, body = local_jupyter.call(method, path, headers=headers)
    assert status == (404 if "anything" in path else 403)
    check_error(body, "NotFound" if "anything" in path else "Forbidden")


def test_a_signed_in_browser_may_look_but_needs_its_xsrf_token_to_act(
    local_jupyter: RunningJupyter,
) -> None:
    """Under a prefix and by cookie: reading works, an action without XSRF token is refused."""
    assert local_jupyter.url.endswith("/user/x/")
    browser = Browser(local_jupyter)
    status, raw = browser.send("GET", "ivy/sandboxes")
    assert status == 200
    sandbox_id = json.loads(raw)["sandboxes"][0]["id"]
    create = f"ivy/sandboxes/{sandbox_id}/create"

    status, body = browser.send("POST", create)
    assert status == 403
    assert "X-XSRFToken" in check_error(body, "Forbidden")
    status, body = browser.send("POST", create, **{"X-XSRFToken": "wrong"})
    assert status == 403
    check_error(body, "Forbidden")
    assert not local_jupyter.home.sandbox_file.exists()

    status, raw = browser.send("POST", create, **{"X-XSRFToken": browser.xsrf})
    assert status == 200
    with local_jupyter.events({"Cookie": browser.cookies}) as events:
        events.until(lambda found: state_of(found) == "active", "it is active")
