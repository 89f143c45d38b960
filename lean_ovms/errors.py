"""The errors that a client can get, each with its HTTP status, and the response for an error.

An error class has its own status, type and code, so no separate table can miss one. An error is rendered as OpenAI's
error object (https://platform.openai.com/docs/guides/error-codes); composition.py has the forms of other APIs. The
engine process sends an error over the pipe with `to_wire`, and `from_wire` recreates it in the front end. The module
also has helpers for numbers in messages, exit statuses, and errors that stay inside the engine process.
"""

from __future__ import annotations

import errno
import json
import logging
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import IntEnum
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .types import Response

log = logging.getLogger("lean_ovms.engine")

CLIENT_LEFT = 499
"""The status of a request whose client did not wait for the response (nginx's number; it is never sent)."""
MOST_RETRY_AFTER_S = 60
"""The most seconds that a client is told to wait."""
NO_VIDEO = "This servable does not support video input, but video_url has been provided"


@cache
def install_command(extra: str) -> str:
    """Returns how to install an extra of setup.cfg, for messages.

    In an installed package, the extra's requirements are listed by name: the package is in no index, and who installed
    a wheel has no source folder.
    """
    from importlib import metadata

    try:
        rows = [row.partition(";") for row in metadata.requires("lean-ovms") or ()]
    except metadata.PackageNotFoundError:
        return f'pip install ".[{extra}]" in the source folder of lean_ovms'
    packages = [f'"{name.strip()}"' for name, _, marker in rows if f'extra == "{extra}"' in marker.replace("'", '"')]
    return f"pip install {' '.join(packages)}"


def counted(count: int, one: str, many: str = "") -> str:
    """Returns a number with the noun that it counts: "1 request", "2 requests".

    Args:
        count: The number.
        one: The words after 1: a noun, and possibly a verb ("request is waiting").
        many: The words after any other number; "" for `one` with an s appended.
    """
    return f"{count} {one if count == 1 else many or one + 's'}"


def requests_waiting(count: int, whose: str = "") -> str:
    """Returns the message for a full queue, such as "1 request of this client is already waiting"."""
    return counted(count, f"request{whose} is already waiting", f"requests{whose} are already waiting")


class RequestError(Exception):
    """The base class of errors with which a request fails."""

    status = 400
    """The HTTP status."""
    kind = "invalid_request_error"
    """OpenAI's type of the error."""
    code: str | None = None
    """A machine-readable code; None for none."""
    retry_after_s: int | None = None
    """The value of the Retry-After header in seconds; None if the header is not sent."""

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        status: int | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        """Creates the error.

        Args:
            message: The message for the client, without file paths or tracebacks.
            param: The request field at fault; None if it is not a matter of one field.
            code: A machine-readable code; None for that of the class.
            status: The HTTP status; None for that of the class.
            retry_after_s: The seconds of Retry-After; None for those of the class.
        """
        super().__init__(message)
        self.message = message
        self.param = param
        if code is not None:
            self.code = code
        if status is not None:
            self.status = status
        if retry_after_s is not None:
            self.retry_after_s = retry_after_s

    def body(self) -> dict[str, dict[str, str | None]]:
        """Returns OpenAI's error object."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    def to_bytes(self) -> bytes:
        """Returns the error object as UTF-8 JSON."""
        return json.dumps(self.body(), ensure_ascii=False).encode("utf-8", "replace")

    def headers(self) -> list[tuple[str, str]]:
        """Returns the headers that a response with this error has."""
        return [] if self.retry_after_s is None else [("Retry-After", str(self.retry_after_s))]

    def to_wire(self) -> list[Any]:
        """Returns [class name, message, param, code, attributes set besides these], as JSON for the engine pipe."""
        more = {name: value for name, value in vars(self).items() if name not in ("message", "param", "code")}
        return [type(self).__name__, self.message, self.param, self.code, more]


@contextmanager
def errors_of(param: str, *, member: bool = False) -> Iterator[None]:
    """Sets the field of every RequestError raised in the block, or the object that has it as a `member`."""
    try:
        yield
    except RequestError as error:
        error.param = f"{param}.{error.param}" if member else param
        raise


class BadRequest(RequestError):
    """Status 400: the request is malformed, a value is out of range, or values are incompatible."""


TOO_LONG = "context_length_exceeded"


def too_long(what: str, most: int, param: str | None = None) -> BadRequest:
    """Returns the error (400) for a prompt that does not fit, given OVMS's text and the tokens that would.

    OpenAI's and vLLM's texts follow: LiteLLM and the agents built on it recognise these rather than the code, and then
    shorten the conversation or use a model with a longer context.
    """
    advice = "Please reduce the length of the input prompt."
    text = f"{what}. This model's maximum context length is {most} tokens. {advice}"
    return BadRequest(text, param=param, code=TOO_LONG)


def prompt_too_long(tokens: int, most: int) -> BadRequest:
    """Returns the error (400) for a prompt of these tokens, which leaves no room for another one; `most` would fit."""
    how = "exceeds" if tokens > most else "leaves no room to generate within"
    return too_long(f"Number of prompt tokens: {tokens} {how} model max length: {most}", most)


def too_many_characters(count: int, most: int, param: str | None = None) -> BadRequest:
    """Returns the error (400) for a text that is too long even before it is tokenized; `most` tokens would fit."""
    return too_long(f"Number of prompt characters: {count} exceeds model max length: {most} tokens", most, param)


class GrammarRefused(BadRequest):
    """Status 400: a schema, regular expression or grammar cannot be used."""

    reasons: Mapping[str, str] = {}
    """The reason for each expression of a structural tag that is refused alone, too, by its number; not for clients."""


class GrammarInvalid(GrammarRefused):
    """Status 400: a schema, regular expression or grammar is invalid, or uses something that is not supported."""

    code = "grammar_invalid"


class SchemaInvalid(GrammarInvalid):
    """Status 400: a JSON Schema is invalid, or no finite value satisfies it."""


class GrammarTooComplex(GrammarRefused):
    """Status 400: a schema, regular expression or grammar exceeds a limit of this server."""

    code = "grammar_too_complex"


class Unauthorized(RequestError):
    """Status 401: the request has no API key, or a wrong one."""

    status = 401
    kind = "authentication_error"
    code = "invalid_api_key"

    def headers(self) -> list[tuple[str, str]]:
        return [("WWW-Authenticate", "Bearer")]


class Forbidden(RequestError):
    """Status 403: the client may not do this, whatever its key."""

    status = 403
    kind = "permission_error"
    code = "forbidden"


class NotFound(RequestError):
    """Status 404: the path is unknown."""

    status = 404
    kind = "not_found_error"
    code = "not_found"


class ModelNotFound(NotFound):
    """Status 404: the model name is unknown."""

    code = "model_not_found"


class MethodNotAllowed(RequestError):
    """Status 405: the path exists, but does not accept this method."""

    status = 405
    code = "method_not_allowed"

    def __init__(self, message: str, *, allow: str = "") -> None:
        super().__init__(message)
        self.allow = allow

    def headers(self) -> list[tuple[str, str]]:
        return [("Allow", self.allow.replace("GET", "GET, HEAD"))]  # every path that has the one has the other


class RequestTimeout(RequestError):
    """Status 408: the client took too long to send its request, or the request exceeded its deadline."""

    status = 408
    kind = "timeout_error"
    code = "request_timeout"


def too_slow() -> RequestTimeout:
    """Returns the error for a request that has taken longer than request_timeout_s."""
    return RequestTimeout("the request exceeded this server's time limit (--request_timeout_s)")


class PayloadTooLarge(RequestError):
    """Status 413: the body is larger than the limit."""

    status = 413
    code = "payload_too_large"


class UnsupportedMediaType(RequestError):
    """Status 415: the endpoint does not accept a body of this media type."""

    status = 415
    code = "unsupported_media_type"


class TooManyRequests(RequestError):
    """Status 429: the queue is full, and the client should try again later."""

    status = 429
    kind = "rate_limit_error"
    code = "queue_full"
    retry_after_s = 1


class HeadersTooLarge(RequestError):
    """Status 431: the request line and the headers exceed the size limit."""

    status = 431
    code = "headers_too_large"


class MissingExtra(RequestError):
    """Status 501: the request needs a package that is not installed on this server."""

    status = 501
    kind = "server_error"
    code = "not_installed"

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what}, which is not installed on this server: {install_command(extra)}")


class NotSupported(RequestError):
    """Status 501: the server was started without what the request needs. The message says which options it needs."""

    status = 501
    kind = "not_supported_error"
    code = "not_supported"


class EngineFailure(RequestError):
    """Status 500: the engine gave up on this request. The message gives the reason in one sentence."""

    status = 500
    kind = "server_error"
    code = "engine_error"


class InternalError(RequestError):
    """Status 500: a bug of the server. The traceback is in the log, not in the message."""

    status = 500
    kind = "server_error"
    code = "internal_error"

    def __init__(self) -> None:
        super().__init__("internal error")


def reported(error: Exception, logger: logging.Logger, text: str, *values: object) -> RequestError:
    """Returns the error to send to the client for an exception.

    A RequestError is returned itself. Any other exception is logged, and an InternalError is returned.

    Args:
        error: The exception.
        logger: The logger for unexpected exceptions.
        text: The format of the log message.
        *values: The values in it.
    """
    if isinstance(error, RequestError):
        return error
    logger.error(text, *values, exc_info=error)
    return InternalError()


class StoreFailure(RequestError):
    """Status 500: the request's data could not be written to the store, or cannot be read back."""

    status = 500
    kind = "server_error"
    code = "store_error"


class StoreFull(StoreFailure):
    """Status 507: the disk or the client's share of the store is full."""

    status = 507
    code = "storage_full"


def is_disk_full(error: BaseException | None) -> bool:
    """Returns whether an error of the operating system says that a disk or a user's quota is full."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def store_failure(error: Exception, full: str, otherwise: str) -> StoreFailure:
    """Returns the error for a request whose data could not be stored.

    Args:
        error: The reason why it could not be written.
        full: The message if the disk or a quota is full.
        otherwise: The message in all other cases.
    """
    return StoreFull(full) if is_disk_full(error) else StoreFailure(otherwise)


class Unavailable(RequestError):
    """Status 503: the model is loading or restarting, or the server is shutting down."""

    status = 503
    kind = "server_error"
    code = "model_unavailable"
    retry_after_s = 2


def sleeping() -> Unavailable:
    """Returns the error for requests while the server sleeps or is paused."""
    message = "The server is asleep or paused; POST /wake_up ends both."
    return Unavailable(message, code="sleeping", retry_after_s=MOST_RETRY_AFTER_S)


def not_loaded(failure: StartError, retry_after_s: float | None = None) -> Unavailable:
    """Returns the error for a request whose model could not be loaded; it may be sent again after retry_after_s."""
    after_s = None if retry_after_s is None else retry_after(retry_after_s)
    return Unavailable(
        f"The model could not be loaded. {failure.reason}", code="model_not_loaded", retry_after_s=after_s
    )


def retry_after(seconds: float) -> int:
    """Returns the seconds as a value for Retry-After."""
    return max(1, min(MOST_RETRY_AFTER_S, math.ceil(seconds)))


_BY_NAME = {
    name: found
    for name, found in list(globals().items())
    if isinstance(found, type) and issubclass(found, RequestError) and "__init__" not in vars(found)
}
"""The errors that an engine child may send: those that are made as a RequestError is."""


def from_wire(fields: list[Any]) -> RequestError:
    """Recreates an error from what `to_wire` returned. An unknown class name gives an EngineFailure."""
    name, message, param, code, *more = fields
    error = _BY_NAME.get(name, EngineFailure)(message or "unknown error", param=param, code=code)
    vars(error).update(*more)
    return error


def with_param(error: RequestError) -> str:
    """Returns the message of an error, preceded by the parameter's name unless it contains it.

    It is for forms of errors that have no place for the name.
    """
    named = error.param and error.param not in error.message
    return f"{error.param}: {error.message}" if named else error.message


def error_response(error: RequestError, headers: Iterable[tuple[str, str]] = ()) -> Response:
    """Returns an error as a response in OpenAI's form, with the error's headers and these."""
    from .types import Response  # the command line imports this module, and starts the engine before it needs types

    return Response(error.status, [("Content-Type", "application/json"), *error.headers(), *headers], error.to_bytes())


class ExitStatus(IntEnum):
    """The exit statuses of the process, for supervisors. They are documented in docs/cli.md and docs/deploy."""

    OK = 0
    """A command is done, or serving was stopped."""
    FAILED = 1
    """A command or the start failed for a reason that may pass (a used port, the network): it may be tried again."""
    USAGE = 2
    """Options that do not go together, or point to no model: the same start would fail again."""
    NEVER_SERVED = 3
    """The server could not start: the same start would fail again."""
    SIGNALLED = 128
    """A command that a signal stopped exits with this and the number of the signal."""


class StartError(Exception):
    """Raised if the server or a model cannot start: a wrong option, a missing file, a model that fails to load.

    The message is for the operator.
    """

    def __init__(self, message: str, *, reason: str = "The server's log says why.", temporary: bool = False) -> None:
        """Creates the error.

        Args:
            message: The message for the operator.
            reason: The message for clients, one sentence without file paths.
            temporary: Whether a retry may succeed: a port in use, the network, a busy hub, a full disk.
        """
        super().__init__(message)
        self.reason = reason
        self.temporary = temporary

    @property
    def exit_status(self) -> ExitStatus:
        """The exit status of a server that could not start."""
        return ExitStatus.FAILED if self.temporary else ExitStatus.NEVER_SERVED


class WrongOptions(StartError):
    """Raised if options are incompatible, or name files that do not exist, so that a retry would fail again."""

    @property
    def exit_status(self) -> ExitStatus:
        return ExitStatus.USAGE


class CommandFailed(Exception):
    """Reports that a command failed: a server cannot be reached, or it answers with an error."""


# --- inside the engine process

NOT_UNICODE = "the text is not valid Unicode (lone surrogates)"
RESTARTING = "The engine failed and is being restarted; please try again."
"""The message for each request that is lost together with its pipeline."""


class EngineLost(Exception):
    """Raised if the pipeline cannot be used any more, so that the process has to be replaced."""


def last_line(error: Exception) -> str:
    """Returns the last line of a message of GenAI. The lines before it have source paths of its build machine."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def for_client(error: Exception, what: str) -> RequestError:
    """Returns the error for the client of a failed request or command. It logs an error of any other kind."""
    if isinstance(error, RequestError):
        return error
    log.error("%s failed", what, exc_info=error)
    return EngineFailure("The engine could not process this request.")
