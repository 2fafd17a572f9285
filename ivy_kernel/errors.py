"""Every error that Ivy Kernel raises, as one tree.

::

    IvyError                      base; ``str()`` is one sentence that a user can act on
    ├── UsageError                a command or magic was used wrongly; nothing was done
    │   └── RefusedPathError      a path leads out of where it must stay, or no file can have it
    ├── SettingError              a setting has a value that cannot be used
    │   └── MissingSettingError   a setting that this action needs has no value
    ├── VariableError             a variable cannot travel, or did not arrive
    ├── ApiError                  the platform answered with an error status
    │   ├── BadRequestError       400: an id is missing or wrong, unknown tool, no JSON object
    │   ├── CredentialsError      401: no key, or a key that is not accepted
    │   ├── ForbiddenError        403: not the chat's owner, or outside the key's project scope
    │   ├── NotFoundError         404: no such resource
    │   ├── RateLimitedError      429: too many requests
    │   ├── CreationFailedError   500 on create: the sandbox could not be made
    │   ├── SandboxBrokenError    502 on a tool: the sandbox failed to start and will not recover
    │   ├── NotReadyError         503: the sandbox is still starting
    │   ├── ToolTimeoutError      504: the tool exceeded its time budget
    │   └── UnexpectedStatusError any status that the operation does not document
    ├── NetworkError              no usable answer arrived
    │   ├── NotSentError          the request provably never reached the platform
    │   │   └── UntrustedServerError  the server's certificate is not trusted
    │   ├── NoAnswerError         it was sent, no whole answer came: its outcome is unknown
    │   └── AnswerError           an answer came that is not what the operation documents
    └── SandboxError              the sandbox cannot run this cell
        ├── NoSandboxError        there is none, and this request may not start one
        ├── SandboxFailedError    it failed while starting
        ├── SandboxLostError      it, or its Python, is gone and the variables with it
        ├── OutcomeUnknownError   a cell was sent, and how it ended cannot be found out
        ├── RouteError            no route can run cells there
        ├── WorkError             its kernel could not do what was asked beside cells
        └── SandboxFileError      a file in the sandbox cannot be used so
            ├── NoSuchFileError   there is none of this name
            ├── FileExistsInSandboxError  there is one already, and nothing says to replace it
            ├── TransferInterruptedError  no progress for too long; the same command goes on
            ├── ChecksumError     what arrived is not what was sent
            ├── ChangedFileError  it changed while it was read
            └── TamperedCheckpointError  a checkpoint is not what was written; it is not used

A user's own exception is an output of a cell, never one of these.
"""

from __future__ import annotations

import errno


class IvyError(Exception):
    """Base of every error of this package."""


class UsageError(IvyError):
    """A command or magic was used wrongly; nothing was done."""


class RefusedPathError(UsageError):
    """A path leads out of the directory that it must stay in, or no file can have it."""


class SettingError(IvyError):
    """A setting has a value that cannot be used.

    Parameters
    ----------
    message
        The sentence for the user: setting, value, where it came from, what is allowed.
    setting
        The name of the setting, for example ``chat_id``.
    """

    def __init__(self, message: str, *, setting: str = "") -> None:
        super().__init__(message)
        self.setting = setting


class MissingSettingError(SettingError):
    """A setting that this action needs has no value."""


class VariableError(IvyError):
    """A variable cannot travel to the sandbox or from it, or did not arrive: which, and why."""


class ApiError(IvyError):
    """The platform answered with an error status.

    Parameters
    ----------
    message
        The sentence for the user.
    status_code
        The HTTP status code.
    operation
        Method and path template of the API operation, for example
        ``POST /v1/sandbox/{chatId}/tool/{toolName}``.
    detail
        The platform's own words from the body, shortened; empty when it gave none.
    code
        The platform's machine-readable code, for example ``SANDBOX_NOT_READY``; empty when none.
    retry_after_seconds
        What ``Retry-After`` asked for; ``None`` when it was absent or unreadable.
    """

    def __init__(
        self,
        message: str,
        *,
        status_code: int,
        operation: str = "",
        detail: str = "",
        code: str = "",
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status_code = status_code
        self.operation = operation
        self.detail = detail
        self.code = code
        self.retry_after_seconds = retry_after_seconds


class BadRequestError(ApiError):
    """400: an id is missing or wrong, the tool is unknown, or the body is no JSON object."""


class CredentialsError(ApiError):
    """401: no key, or a key that the platform does not accept."""


class ForbiddenError(ApiError):
    """403: not the chat's owner, or the key's project scope excludes the chat."""


class NotFoundError(ApiError):
    """404: no such resource."""


class RateLimitedError(ApiError):
    """429: too many requests."""


class CreationFailedError(ApiError):
    """500 on create: the sandbox could not be made."""


class SandboxBrokenError(ApiError):
    """502 on a tool: the sandbox failed to start and will not recover on retry."""


class NotReadyError(ApiError):
    """503: the sandbox is still starting, or creation failed for the moment."""


class ToolTimeoutError(ApiError):
    """504: the tool exceeded its time budget."""


class UnexpectedStatusError(ApiError):
    """A status code that the operation does not document."""


class NetworkError(IvyError):
    """No usable answer arrived."""


class NotSentError(NetworkError):
    """The request provably never reached the platform, so nothing ran; safe to send again."""


class UntrustedServerError(NotSentError):
    """The server's certificate is not trusted; a retry would not change that."""


class NoAnswerError(NetworkError):
    """The request was sent but no whole answer came: whether it ran is unknown."""


class AnswerError(NetworkError):
    """An answer came that is not what the operation documents (no JSON, too large, …)."""


class SandboxError(IvyError):
    """The sandbox cannot run this cell."""


class NoSandboxError(SandboxError):
    """There is no sandbox, and this request may not start one."""


class SandboxFailedError(SandboxError):
    """The sandbox failed while starting."""


class SandboxLostError(SandboxError):
    """The sandbox, or the Python in it, is gone, and the variables with it.

    Raised for a cell only while nothing of it has run: what shows the error says that too.

    Parameters
    ----------
    message
        The sentence for the user: what is gone, and why.
    advice
        What the user can do; shown last.
    """

    def __init__(self, message: str, *, advice: str = "") -> None:
        super().__init__(message)
        self.advice = advice


class OutcomeUnknownError(SandboxError):
    """A cell was sent to the sandbox, and how it ended cannot be found out."""


class RouteError(SandboxError):
    """No route can run cells in this sandbox."""


class WorkError(SandboxError):
    """The sandbox's kernel could not do what it was asked beside cells; says what went wrong."""


class SandboxFileError(SandboxError):
    """A file in the sandbox cannot be used so; says which, and why."""


class NoSuchFileError(SandboxFileError):
    """There is no file or directory of this name."""


class FileExistsInSandboxError(SandboxFileError):
    """There is one of this name already, here or there, and nothing says to replace it."""


class TransferInterruptedError(SandboxFileError):
    """A transfer made no progress for too long; what has arrived is kept, and taken up again."""


class ChecksumError(SandboxFileError):
    """What arrived is not what was sent."""


class ChangedFileError(SandboxFileError):
    """A file changed while it was read."""


class TamperedCheckpointError(SandboxFileError):
    """A checkpoint, or its copy on this machine, is not what was written; it is not used."""


def is_out_of_files(error: BaseException | None) -> bool:
    """Whether an error comes from the limit on open files and connections of this process."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            return True
        error = error.__cause__ or error.__context__
    return False


def local_fault(error: BaseException) -> str:
    """Return what a fault of this process is, with what to do; completes "Nothing was run: …"."""
    if is_out_of_files(error):
        return (
            "this process may not open another file or connection; restart the kernel, or raise "
            "the limit (ulimit -n) before Jupyter is started"
        )
    return f"{type(error).__name__}: {error}"
