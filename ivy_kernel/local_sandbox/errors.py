"""The error responses of the API."""

from __future__ import annotations


class ApiError(Exception):
    """An HTTP error response: raised anywhere below a handler, which sends it as JSON.

    Parameters
    ----------
    status_code
        The HTTP status code, one that the route documents.
    error
        One sentence that says what is wrong and what to do.
    code
        The machine-readable code, for example ``SANDBOX_NOT_READY``.
    retry_after
        The value of a ``Retry-After`` header; empty for none.
    """

    def __init__(self, status_code: int, error: str, code: str, retry_after: str = "") -> None:
        super().__init__(error)
        self.status_code = status_code
        self.error = error
        self.code = code
        self.retry_after = retry_after
