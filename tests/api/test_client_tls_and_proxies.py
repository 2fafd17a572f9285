"""Certificates, ``SSL_CERT_FILE``, ``ca_bundle``, and the usual proxy variables."""

from __future__ import annotations

import asyncio
import base64
import ssl
import time
from pathlib import Path

import pytest
import trustme
from api_calls import CALLS, CHAT, ivy
from scripted_server import KEY, ConnectProxy, ScriptedServer, json_answer

from ivy_kernel.api.clients import may_repeat
from ivy_kernel.errors import NotSentError, SettingError

NAME = "platform.example.test"
GOOD = json_answer({"good": True})
PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


@pytest.fixture(autouse=True)
def _no_proxy_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*PROXY_VARIABLES, "SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    """An organisation's own certificate authority."""
    return trustme.CA()


@pytest.fixture(scope="module")
def tls(authority: trustme.CA) -> ssl.SSLContext:
    """A server's certificate from it, for this machine and for a made-up name."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1", NAME).configure_cert(context)
    return context


@pytest.fixture
def bundle(authority: trustme.CA, tmp_path: Path) -> str:
    """A file with the authority's certificate."""
    path = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(path))
    return str(path)


async def test_a_ca_bundle_is_trusted(tls: ssl.SSLContext, bundle: str) -> None:
    """The setting alone makes an organisation's certificate good."""
    async with (
        ScriptedServer(GOOD, tls=tls) as server,
        ivy(server.url, ca_bundle=bundle) as client,
    ):
        assert await CALLS["tool"](client) == {"good": True}


async def test_ssl_cert_file_is_trusted(
    tls: ssl.SSLContext, bundle: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So does the usual variable."""
    monkeypatch.setenv("SSL_CERT_FILE", bundle)
    async with ScriptedServer(GOOD, tls=tls) as server, ivy(server.url) as client:
        assert await CALLS["tool"](client) == {"good": True}


async def test_the_ca_bundle_beats_ssl_cert_file(
    tls: ssl.SSLContext, bundle: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The setting is the nearer one."""
    other = tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(str(other))
    monkeypatch.setenv("SSL_CERT_FILE", bundle)
    async with (
        ScriptedServer(GOOD, tls=tls) as server,
        ivy(server.url, ca_bundle=str(other)) as client,
    ):
        with pytest.raises(NotSentError, match="ca_bundle"):
            await CALLS["tool"](client)


async def test_an_unknown_certificate_is_refused_and_the_fix_named(tls: ssl.SSLContext) -> None:
    """The key is not sent, the sentence names ca_bundle, and nobody waits for repetitions."""
    async with (
        ScriptedServer(GOOD, tls=tls) as server,
        ivy(server.url, retry_seconds=60) as client,
    ):
        start = time.monotonic()
        with pytest.raises(NotSentError) as caught:
            await CALLS["tool"](client)
    assert "CERTIFICATE_VERIFY_FAILED" in str(caught.value)
    assert "set ca_bundle to a file with your organisation's CA certificates" in str(caught.value)
    assert not may_repeat(caught.value, idempotent=True)
    assert time.monotonic() - start < 5
    assert server.requests == []


async def test_a_certificate_for_another_name_is_refused(
    authority: trustme.CA, bundle: str
) -> None:
    """A trusted authority is not enough."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("another.example.test").configure_cert(context)
    async with (
        ScriptedServer(GOOD, tls=context) as server,
        ivy(server.url, ca_bundle=bundle) as client,
    ):
        with pytest.raises(NotSentError, match="cannot be trusted"):
            await CALLS["tool"](client)
    assert server.requests == []


async def test_plain_http_where_tls_was_expected_was_not_sent() -> None:
    """The wrong port, or a portal that speaks no TLS."""

    async def greet(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    async with server, ivy(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}") as client:
        with pytest.raises(NotSentError, match="cannot be reached"):
            await CALLS["tool"](client)


@pytest.mark.parametrize("content", ["", "no certificate", None])
async def test_a_ca_bundle_that_holds_no_certificate_is_named(
    content: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The setting, or the variable, its value and what it must be."""
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_text(content)
    async with ivy("https://127.0.0.1:1", ca_bundle=str(path)) as client:
        with pytest.raises(SettingError, match=r"setting ca_bundle cannot be .*PEM") as caught:
            await client.status(CHAT)
    assert str(path) in str(caught.value)
    monkeypatch.setenv("SSL_CERT_FILE", str(path))
    async with ivy("https://127.0.0.1:1") as client:
        with pytest.raises(SettingError, match=r"variable SSL_CERT_FILE cannot be .*PEM"):
            await client.status(CHAT)


@pytest.mark.parametrize("variable", ["HTTPS_PROXY", "https_proxy", "ALL_PROXY"])
async def test_a_proxy_variable_is_honoured(
    variable: str, tls: ssl.SSLContext, bundle: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request goes through the proxy's tunnel; the proxy sees a name, and never the key."""
    async with ScriptedServer(GOOD, tls=tls) as server, ConnectProxy(server.port) as proxy:
        monkeypatch.setenv(variable, proxy.url)
        async with ivy(f"https://{NAME}", ca_bundle=bundle) as client:
            assert await CALLS["tool"](client) == {"good": True}
            assert (await client.status(CHAT)).body == {"good": True}
    assert [first for first, _ in proxy.heads] == [f"CONNECT {NAME}:443 HTTP/1.1"]
    assert KEY not in str(proxy.heads)
    assert [r.header("Authorization") for r in server.requests] == [[f"Bearer {KEY}"]] * 2


async def test_the_proxys_own_password_is_sent_to_it(
    tls: ssl.SSLContext, bundle: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy that asks for a name and a password gets them, and the platform does not."""
    async with ScriptedServer(GOOD, tls=tls) as server, ConnectProxy(server.port) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url.replace("//", "//anna:pa55word@"))
        async with ivy(f"https://{NAME}", ca_bundle=bundle) as client:
            await CALLS["tool"](client)
    expected = "Basic " + base64.b64encode(b"anna:pa55word").decode()
    assert ("Proxy-Authorization", expected) in proxy.heads[0][1]
    assert server.requests[0].header("Proxy-Authorization") == []


@pytest.mark.parametrize("status", [403, 407, 502, 503])
async def test_a_proxy_that_refuses_means_not_sent(
    status: int, tls: ssl.SSLContext, bundle: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing reached the platform; the sentence speaks of the proxy, and not of its password."""
    async with (
        ScriptedServer(GOOD, tls=tls) as server,
        ConnectProxy(server.port, status) as proxy,
    ):
        monkeypatch.setenv("HTTPS_PROXY", proxy.url.replace("//", "//anna:pa55word@"))
        async with ivy(f"https://{NAME}", ca_bundle=bundle) as client:
            with pytest.raises(NotSentError) as caught:
                await CALLS["tool"](client)
    assert f"ProxyError: {status}" in str(caught.value)
    assert "the proxy" in str(caught.value)
    assert "pa55word" not in str(caught.value)
    assert server.connections == 0


@pytest.mark.parametrize("exception", ["127.0.0.1", "*", "example.org,127.0.0.1"])
async def test_no_proxy_is_honoured(
    exception: str, tls: ssl.SSLContext, bundle: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host in NO_PROXY is reached directly."""
    async with ScriptedServer(GOOD, tls=tls) as server, ConnectProxy(server.port) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        monkeypatch.setenv("NO_PROXY", exception)
        async with ivy(server.url, ca_bundle=bundle) as client:
            assert await CALLS["tool"](client) == {"good": True}
    assert proxy.heads == []


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
async def test_this_machine_is_reached_without_a_proxy(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The local sandbox works behind a corporate proxy, which never sees its token."""
    async with ScriptedServer(GOOD) as server, ConnectProxy(server.port) as proxy:
        monkeypatch.setenv(variable, proxy.url)
        async with ivy(server.url) as client:
            assert await CALLS["tool"](client) == {"good": True}
    assert proxy.heads == []


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("ftp://anna:pa55word@proxy:21", "must be a URL"),
        ("http://anna:pa55word@proxy:port", "must be a URL"),
    ],
)
async def test_a_proxy_variable_that_cannot_be_used_is_a_setting_error(
    value: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The variables are named, the value is not, since it may hold a password."""
    monkeypatch.setenv("HTTPS_PROXY", value)
    async with ivy(f"https://{NAME}") as client:
        with pytest.raises(SettingError, match=words) as caught:
            await client.status(CHAT)
    assert "HTTPS_PROXY" in str(caught.value)
    assert "pa55word" not in str(caught.value)


async def test_a_socks_proxy_without_its_package_is_a_setting_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Says what to install."""
    monkeypatch.setitem(__import__("sys").modules, "socksio", None)
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:9")
    async with ivy(f"https://{NAME}") as client:
        with pytest.raises(SettingError, match=r"httpx\[socks\]"):
            await client.status(CHAT)
