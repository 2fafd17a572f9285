"""Whether a refused key has been replaced, judged by its fingerprint."""

from __future__ import annotations

import pytest

from ivy_kernel.errors import CredentialsError, NoAnswerError
from ivy_kernel.status.polling import KeyCheck

REFUSED = CredentialsError("No.", status_code=401)


class Key:
    """The fingerprint of the key in use, which may be unreadable."""

    def __init__(self) -> None:
        self.value: object = "first"
        self.error: Exception | None = None

    def __call__(self) -> object:
        """The present one."""
        if self.error is not None:
            raise self.error
        return self.value


@pytest.fixture
def key() -> Key:
    """The key in use."""
    return Key()


def test_a_refused_key_has_changed_when_another_is_in_use(key: Key) -> None:
    """Not before, and not for as long as the same one is set."""
    check = KeyCheck(key)
    check.failed(REFUSED, check.fingerprint())
    assert not check.has_changed
    key.value = "second"
    assert check.has_changed


def test_a_key_replaced_while_the_request_ran_has_changed(key: Key) -> None:
    """The refusal is for what was sent, not for what is set when it arrives."""
    check = KeyCheck(key)
    sent = check.fingerprint()
    key.value = "second"
    check.failed(REFUSED, sent)
    assert check.has_changed


@pytest.mark.parametrize("error", [None, NoAnswerError("No answer.")])
def test_a_changed_key_that_nobody_refuses_is_no_reason(key: Key, error: Exception | None) -> None:
    """After an answer, or an error that no key would cure, a change calls for no haste."""
    check = KeyCheck(key)
    check.failed(REFUSED, check.fingerprint())
    if error is None:
        check.answered()
    else:
        check.failed(error, check.fingerprint())
    key.value = "second"
    assert not check.has_changed


def test_a_key_that_cannot_be_read_counts_as_unchanged(
    key: Key, caplog: pytest.LogCaptureFixture
) -> None:
    """Only the kind of the error is logged: what raised it handles credentials."""
    check = KeyCheck(key)
    check.failed(REFUSED, check.fingerprint())
    key.error = OSError("ivy_secret")
    assert not check.has_changed
    assert "OSError" in caplog.text
    assert "ivy_secret" not in caplog.text


def test_without_a_way_to_tell_no_key_ever_changes() -> None:
    """Then only ``refresh_soon`` makes a new key be tried."""
    check = KeyCheck(None)
    check.failed(REFUSED, check.fingerprint())
    assert not check.has_changed
