"""How a request is refused: one exception, which becomes a JSON error answer."""

from __future__ import annotations


class Refusal(Exception):  # noqa: N818 - it is an answer to a request, not a fault of the server
    """A request that gets an error status.

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
