"""Which base URLs a key may be sent to."""

from __future__ import annotations

import pytest

from ivy_kernel.settings.urls import check_url, is_loopback


@pytest.mark.parametrize(
    ("url", "clean"),
    [
        ("https://ivybiosciences.com/api", "https://ivybiosciences.com/api"),
        ("https://example.org/", "https://example.org"),
        ("https://example.org:8443/a/b//", "https://example.org:8443/a/b"),
        ("HTTPS://Example.org", "HTTPS://Example.org"),
        ("https://münchen.example", "https://münchen.example"),
        ("http://127.0.0.1:8000/api/", "http://127.0.0.1:8000/api"),
        ("http://127.1.2.3", "http://127.1.2.3"),
        ("http://[::1]:8000", "http://[::1]:8000"),
        ("http://localhost:1", "http://localhost:1"),
        ("http://LOCALHOST", "http://LOCALHOST"),
    ],
)
def test_a_good_url_loses_its_trailing_slash(url: str, clean: str) -> None:
    """Safe HTTP anywhere, plain HTTP to this machine."""
    assert check_url(url) == clean


@pytest.mark.parametrize(
    "url",
    [
        "http://example.org",
        "http://localhost.example.org",
        "http://127.0.0.1.example.org",
        "http://0.0.0.0",
        "http://10.0.0.1",
        "http://2130706433",
        "http://0x7f.1",
        "http://[::2]",
        "http://ip6-localhost",
    ],
)
def test_http_is_for_this_machine_only(url: str) -> None:
    """Whatever looks like this machine but may be another one is refused."""
    with pytest.raises(ValueError, match="http:// is for this machine only"):
        check_url(url)


@pytest.mark.parametrize(
    "url",
    [
        *("", "example.org", "//example.org", "ftp://example.org", "file:///etc", "https://"),
        *("https:///path", "https://example.org:99999", "https://example.org:x", "https://[::1"),
        *("https://a..b", "https://.a", f"https://{'a' * 64}.org", "javascript:alert(1)"),
        *("https:\\\\example.org", "https://example.org\\@other.org", "local"),
    ],
)
def test_what_is_no_web_address_is_refused(url: str) -> None:
    """Before anything is looked up."""
    with pytest.raises(ValueError, match=r"begins with https://$|may not contain a user name"):
        check_url(url)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("https://u:p@example.org", "user name or password"),
        ("https://u@example.org", "user name or password"),
        ("https://@example.org", "user name or password"),
        ("http://127.0.0.1@example.org", "user name or password"),
        ("https://example.org?", "query or fragment"),
        ("https://example.org/?a=b", "query or fragment"),
        ("https://example.org#", "query or fragment"),
        ("https://exam ple.org", "spaces"),
        ("https://example.org/a b", "spaces"),
        ("https://example.org\n", "spaces or control"),
        ("https://exam\u200bple.org", "spaces or control"),
    ],
)
def test_what_does_not_belong_in_a_base_url_is_named(url: str, words: str) -> None:
    """Passwords, queries, fragments, spaces."""
    with pytest.raises(ValueError, match=words):
        check_url(url)


def test_the_word_local_is_a_url_only_where_it_is_meant_to_be() -> None:
    """Recoup has no local form."""
    assert check_url("local", allow_local=True) == "local"
    assert check_url("LoCaL", allow_local=True) == "local"
    with pytest.raises(ValueError, match="or the word local"):
        check_url("locally", allow_local=True)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.9.9.9", "::1"])
def test_loopback_hosts(host: str) -> None:
    """Names and addresses of this machine."""
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["", "localhost.", "example.org", "0.0.0.0", "::", "127.1"])
def test_hosts_that_are_not_surely_loopback(host: str) -> None:
    """In doubt it is another machine."""
    assert not is_loopback(host)
