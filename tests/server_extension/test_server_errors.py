"""Which HTTP status each error gets, and that no text from elsewhere is shown."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tornado.web import HTTPError

from ivy_kernel import errors
from ivy_kernel.server_extension.errors import UnknownSandboxError, error_response

STATUSES = {
    "UsageError": 400,
    "VariableError": 500,
    "RefusedPathError": 400,
    "SettingError": 409,
    "MissingSettingError": 409,
    "ApiError": 502,
    "BadRequestError": 502,
    "CredentialsError": 502,
    "ForbiddenError": 502,
    "NotFoundError": 502,
    "RateLimitedError": 429,
    "CreationFailedError": 502,
    "SandboxBrokenError": 502,
    "NotReadyError": 503,
    "ToolTimeoutError": 504,
    "UnexpectedStatusError": 502,
    "NetworkError": 502,
    "NotSentError": 502,
    "UntrustedServerError": 502,
    "NoAnswerError": 504,
    "AnswerError": 502,
    "SandboxError": 409,
    "NoSandboxError": 409,
    "SandboxFailedError": 409,
    "SandboxLostError": 409,
    "OutcomeUnknownError": 409,
    "RouteError": 409,
    "WorkError": 409,
    "TamperedCheckpointError": 409,
    "SandboxFileError": 409,
    "NoSuchFileError": 404,
    "FileExistsInSandboxError": 409,
    "TransferInterruptedError": 409,
    "ChecksumError": 409,
    "ChangedFileError": 409,
}


def leaves(kind: type[errors.IvyError]) -> Iterator[type[errors.IvyError]]:
    """Every error of ours that is below one."""
    for sub in kind.__subclasses__():
        if sub.__module__ == errors.__name__:
            yield sub
            yield from leaves(sub)


@pytest.mark.parametrize("kind", list(leaves(errors.IvyError)), ids=lambda kind: kind.__name__)
def test_each_error_of_ours_has_its_status(kind: type[errors.IvyError]) -> None:
    """Its class is the kind, its sentence the message; and it never signs the browser out."""
    more = {"status_code": 401} if issubclass(kind, errors.ApiError) else {}
    status, body = error_response(kind("One sentence\n that helps.", **more))
    assert status == STATUSES[kind.__name__]
    assert status not in (401, 403)
    assert body == {"error": {"kind": kind.__name__, "message": "One sentence that helps."}}


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "BadRequest"),
        (403, "Forbidden"),
        (404, "NotFound"),
        (405, "MethodNotAllowed"),
        (500, "InternalServerError"),
        (503, "ServiceUnavailable"),
        (599, "HTTPError"),
    ],
)
def test_an_error_of_the_server_is_told_in_our_words(status: int, kind: str) -> None:
    """What was raised may quote addresses with tokens, so that it is not repeated."""
    got, body = error_response(HTTPError(status, "http://x/?token=secret", reason="secret"))
    assert (got, body["error"]["kind"]) == (status, kind)
    assert "secret" not in str(body)


def test_a_fault_tells_nothing_of_its_text() -> None:
    """An exception that is no error of ours becomes a 500 that points to the log."""
    status, body = error_response(ValueError("secret"))
    assert status == 500
    assert body["error"]["kind"] == "InternalServerError"
    assert "log" in body["error"]["message"]
    assert "secret" not in str(body)


def test_an_unknown_id_has_a_kind_of_its_own() -> None:
    """So that a front end can tell a sandbox that is gone from a route that never was."""
    status, body = error_response(UnknownSandboxError())
    assert (status, body["error"]["kind"]) == (404, "UnknownSandboxError")
