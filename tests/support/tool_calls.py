"""A tool runner over plain httpx, which translates errors into our error tree."""

from __future__ import annotations

import asyncio
import email.utils
import time
from typing import Any

import httpx

from ivy_kernel import errors

STATUS_ERRORS: dict[int, type[errors.ApiError]] = {
    400: errors.BadRequestError,
    401: errors.CredentialsError,
    403: errors.ForbiddenError,
    404: errors.NotFoundError,
    429: errors.RateLimitedError,
    502: errors.SandboxBrokenError,
    503: errors.NotReadyError,
    504: errors.ToolTimeoutError,
}


def retry_after_seconds(response: httpx.Response) -> float | None:
    """Both forms of ``Retry-After``: seconds, or a date."""
    text = response.headers.get("Retry-After")
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())


class HttpTools:
    """A tool runner, as the route wants it, that counts its calls."""

    def __init__(self, url: str, token: str, chat_id: str, *, margin_seconds: float = 5.0) -> None:
        self.calls = 0
        self.log: list[tuple[float, str, str]] = []
        self._margin_seconds = margin_seconds
        self._path = f"/v1/sandbox/{chat_id}/tool/"
        self._client = httpx.AsyncClient(
            base_url=url,
            headers={"Authorization": f"Bearer {token}"},
            trust_env=False,
            verify=False,  # plain http, and loading the authorities takes longer than a cell
            limits=httpx.Limits(keepalive_expiry=300),
        )

    async def __call__(self, tool: str, code: str, timeout_seconds: float) -> object:
        """Run code by a tool."""
        self.calls += 1
        started = time.monotonic()
        read = timeout_seconds + self._margin_seconds
        try:
            # read times out between bytes only; a drip needs a deadline over everything
            response = await asyncio.wait_for(
                self._client.post(
                    self._path + tool,
                    json={"code": code, "timeout": timeout_seconds},
                    timeout=httpx.Timeout(read, connect=10),
                ),
                read,
            )
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            raise errors.NotSentError(f"not sent: {error!r}") from error
        except (httpx.HTTPError, asyncio.TimeoutError) as error:
            raise errors.NoAnswerError(f"no answer: {error!r}") from error
        finally:
            self.log.append((started, tool, f"{time.monotonic() - started:.3f}"))
        if response.status_code != 200:
            kind = STATUS_ERRORS.get(response.status_code, errors.UnexpectedStatusError)
            raise kind(
                f"{tool}: HTTP {response.status_code} {response.text[:200]}",
                status_code=response.status_code,
                retry_after_seconds=retry_after_seconds(response),
            )
        try:
            result: Any = response.json()
        except ValueError as error:
            raise errors.AnswerError(f"{tool}: answer is no JSON") from error
        return result

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.aclose()
