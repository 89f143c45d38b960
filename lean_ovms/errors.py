"""Errors that a client can get, each with its HTTP status, and the response that carries one.

An error class carries its own status, type and code, so there is no table elsewhere that could miss a row.
Rendered as OpenAI's error object (https://platform.openai.com/docs/guides/error-codes); composition.py has the forms of
other APIs. The engine child sends errors over the pipe as `to_wire`; `from_wire` makes the same error again in the
front end. Numbers with their nouns, for these messages, are here as well, and the exit statuses of a process.
"""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Iterable
from enum import IntEnum
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from logging import Logger

    from .types import Response

CLIENT_LEFT = 499
"""The status of a request whose client did not wait for the response (nginx's number; it is never sent)."""
NO_VIDEO = "This servable does not support video input, but video_url has been provided"


@cache
def install_command(extra: str) -> str:
    """Returns how to install an extra of setup.cfg, for messages. Its packages are named where this one is installed:
    no index has it, and who installed a wheel has no source folder."""
    from importlib import metadata

    try:
        rows = [row.partition(";") for row in metadata.requires("lean-ovms") or ()]
    except metadata.PackageNotFoundError:
        return f'pip install ".[{extra}]" in the source folder of lean_ovms'
    packages = [f'"{name.strip()}"' for name, _, marker in rows if f'extra == "{extra}"' in marker.replace("'", '"')]
    return f"pip install {' '.join(packages)}"


def counted(count: int, one: str, many: str = "") -> str:
    """Returns a number with what it counts: "1 request", "2 requests".

    Args:
        count: The number.
        one: What follows a 1: a noun, and a verb if there is one ("request is waiting").
        many: What follows any other number; "" appends an s to `one`.
    """
    return f"{count} {one if count == 1 else many or one + 's'}"


def requests_waiting(count: int, whose: str = "") -> str:
    """Returns what a client reads that finds a full queue, such as "1 request is waiting already".

    Args:
        count: The requests in the queue.
        whose: A word on whose they are, such as " of this client".
    """
    return counted(count, f"request{whose} is waiting already", f"requests{whose} are waiting already")


class RequestError(Exception):
    """The base of errors of a request that cannot be served."""

    status = 400
    """The HTTP status."""
    kind = "invalid_request_error"
    """OpenAI's type of the error."""
    code: str | None = None
    """A word for programs; None: there is none."""
    retry_after_s: int | None = None
    """The seconds of Retry-After; None: there is none."""

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        status: int | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        """Makes an error of one request.

        Args:
            message: What is wrong, for the client: it has no paths and no traces.
            param: The field of the request that is at fault; None: there is no such field.
            code: A word for programs; None: that of the class.
            status: The HTTP status; None: that of the class.
            retry_after_s: The seconds of Retry-After; None: those of the class.
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
        """Returns the headers that go with this error."""
        return [] if self.retry_after_s is None else [("Retry-After", str(self.retry_after_s))]

    def to_wire(self) -> list[str | None]:
        """Returns [class name, message, param, code], for the engine pipe, and retry_after_s if it was set."""
        wait_s = [str(self.retry_after_s)] if "retry_after_s" in vars(self) else []
        return [type(self).__name__, self.message, self.param, self.code, *wait_s]


class BadRequest(RequestError):
    """400: malformed, out of range, or impossible together."""


TOO_LONG = "context_length_exceeded"


def too_long(what: str, most: int) -> BadRequest:
    """Returns the error for a prompt that does not fit the context, with status 400.

    OpenAI's and vLLM's texts follow OVMS's: LiteLLM and the agents built on it recognise them, not the code, and then
    shorten the conversation or go to a model with a longer context.

    Args:
        what: OVMS's text.
        most: How many tokens would fit.
    """
    advice = "Please reduce the length of the input prompt."
    return BadRequest(f"{what}. This model's maximum context length is {most} tokens. {advice}", code=TOO_LONG)


def prompt_too_long(tokens: int, most: int) -> BadRequest:
    """Returns the error for a prompt after which no token can be generated, with status 400.

    Args:
        tokens: How many tokens the prompt has.
        most: How many would fit.
    """
    how = "exceeds" if tokens > most else "leaves no room to generate within"
    return too_long(f"Number of prompt tokens: {tokens} {how} model max length: {most}", most)


def prompt_counts(error: RequestError) -> tuple[str, str] | None:
    """Returns how many tokens a prompt has and how many would fit, of an error of `prompt_too_long`; None for others.

    An error comes from the engine's process as its text, so that this is read from there.
    """
    found = _PROMPT_COUNTS.match(error.message)
    return None if found is None else (found[1], found[2])


_PROMPT_COUNTS = re.compile(r"Number of prompt tokens: (\d+) .*model max length: (\d+)")


def too_many_characters(count: int, most: int) -> BadRequest:
    """Returns the error for a prompt whose text cannot fit, found before it is tokenized, with status 400.

    Args:
        count: How many characters the text has.
        most: How many tokens would fit.
    """
    return too_long(f"Number of prompt characters: {count} exceeds model max length: {most} tokens", most)


class GrammarInvalid(BadRequest):
    """400: a schema, regular expression or grammar that is wrong, or uses what this server does not support."""

    code = "grammar_invalid"


class SchemaInvalid(GrammarInvalid):
    """400: a JSON schema that is none, or that has no value which ends."""


class GrammarTooComplex(BadRequest):
    """400: a schema, regular expression or grammar that exceeds a limit of this server."""

    code = "grammar_too_complex"


class Unauthorized(RequestError):
    """401: no API key, or the wrong one."""

    status = 401
    kind = "authentication_error"
    code = "invalid_api_key"

    def headers(self) -> list[tuple[str, str]]:
        return [("WWW-Authenticate", "Bearer")]


class Forbidden(RequestError):
    """403: not for this client, whatever its key."""

    status = 403
    kind = "permission_error"
    code = "forbidden"


class NotFound(RequestError):
    """404: unknown path."""

    status = 404
    kind = "not_found_error"
    code = "not_found"


class ModelNotFound(NotFound):
    """404: unknown model name."""

    code = "model_not_found"


class MethodNotAllowed(RequestError):
    """405: the path exists, not for this method."""

    status = 405
    code = "method_not_allowed"

    def __init__(self, message: str, *, allow: str = "") -> None:
        super().__init__(message)
        self.allow = allow

    def headers(self) -> list[tuple[str, str]]:
        return [("Allow", self.allow)]


class RequestTimeout(RequestError):
    """408: the client took too long to send its request, or the request outlived its deadline."""

    status = 408
    kind = "timeout_error"
    code = "request_timeout"


class PayloadTooLarge(RequestError):
    """413: the body is larger than the limit."""

    status = 413
    code = "payload_too_large"


class UnsupportedMediaType(RequestError):
    """415: a body of a media type that this endpoint does not accept."""

    status = 415
    code = "unsupported_media_type"


class TooManyRequests(RequestError):
    """429: the queue is full; try again later."""

    status = 429
    kind = "rate_limit_error"
    code = "queue_full"
    retry_after_s = 1


class HeadersTooLarge(RequestError):
    """Status 431: the request line and the headers are longer than the limit."""

    status = 431
    code = "headers_too_large"


class MissingExtra(RequestError):
    """501: a package is needed that is not installed on this server."""

    status = 501
    kind = "server_error"
    code = "not_installed"

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what}, which is not installed on this server: {install_command(extra)}")


class NotSupported(RequestError):
    """501: what the server was not started for; the message says how it can be."""

    status = 501
    kind = "not_supported_error"
    code = "not_supported"


class EngineFailure(RequestError):
    """500: the engine gave up on this request; the message gives the reason in one sentence."""

    status = 500
    kind = "server_error"
    code = "engine_error"


class InternalError(RequestError):
    """500: a bug of the server. The traceback is in the log, not in the message."""

    status = 500
    kind = "server_error"
    code = "internal_error"

    def __init__(self) -> None:
        super().__init__("internal error")


def reported(error: Exception, logger: Logger, text: str, *values: object) -> RequestError:
    """Returns the error for the client: a RequestError itself; for any other, which is logged, an InternalError."""
    if isinstance(error, RequestError):
        return error
    logger.error(text, *values, exc_info=error)
    return InternalError()


class StoreFailure(RequestError):
    """500: what a request stores could not be written, or cannot be read again."""

    status = 500
    kind = "server_error"
    code = "store_error"


class StoreFull(StoreFailure):
    """507: the disk is full, or what clients may store on it is."""

    status = 507
    code = "storage_full"


def is_disk_full(error: BaseException | None) -> bool:
    """Returns whether the operating system has said that a disk, or a user's share of it, is full."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def store_failure(error: Exception, full: str, otherwise: str) -> StoreFailure:
    """Returns the error for clients whose request could not be stored.

    Args:
        error: Why it could not be written.
        full: What clients are told where the disk, or a quota of it, is full.
        otherwise: What they are told in other cases.
    """
    return StoreFull(full) if is_disk_full(error) else StoreFailure(otherwise)


class Unavailable(RequestError):
    """503: the model is loading or restarting, or the server is shutting down."""

    status = 503
    kind = "server_error"
    code = "model_unavailable"
    retry_after_s = 2


_BY_NAME = {
    name: found
    for name, found in list(globals().items())
    if isinstance(found, type) and issubclass(found, RequestError) and "__init__" not in vars(found)
}
"""The errors that an engine child may send: those that are made as a RequestError is."""


def from_wire(fields: list[str | None]) -> RequestError:
    """Returns the error that `to_wire` described; an unknown class name is an engine failure."""
    name, message, param, code, *wait_s = fields
    retry_after_s = int(wait_s[0]) if wait_s and wait_s[0] else None
    error_class = _BY_NAME.get(name or "", EngineFailure)
    return error_class(message or "unknown error", param=param, code=code, retry_after_s=retry_after_s)


def with_param(error: RequestError) -> str:
    """Returns the message, with the name of the parameter before it unless it is in it: for forms of errors that have
    no place for the name."""
    named = error.param and error.param not in error.message
    return f"{error.param}: {error.message}" if named else error.message


def error_response(error: RequestError, headers: Iterable[tuple[str, str]] = ()) -> Response:
    """Returns an error as a response in OpenAI's form.

    Args:
        error: The error.
        headers: Headers that are sent besides the error's own.
    """
    from .types import Response  # the command line imports this module, and starts the engine before it needs types

    return Response(error.status, [("Content-Type", "application/json"), *error.headers(), *headers], error.to_bytes())


class ExitStatus(IntEnum):
    """Exit statuses of the process, for supervisors; docs/cli.md and docs/deploy have them too."""

    OK = 0
    """A command is done, or serving was stopped."""
    FAILED = 1
    """A command failed, or the server could not start for a reason that may pass (its port is in use, the network, a
    busy hub): a supervisor may try again."""
    USAGE = 2
    """Options that do not go together, or point to no model: the same start would fail again."""
    NEVER_SERVED = 3
    """The server could not start: the same start would fail again."""
    SIGNALLED = 128
    """Added to the number of the signal that stopped a command."""


class StartError(Exception):
    """The server, or one of its models, cannot start: a wrong option, a missing file, a model that does not load.

    Its text is for the operator.
    """

    def __init__(self, message: str, *, reason: str = "The server's log says why.", temporary: bool = False) -> None:
        """Makes the error.

        Args:
            message: What is wrong.
            reason: The same for clients, in one sentence without paths.
            temporary: Whether the same start may succeed later (a port in use, the network, a busy hub, a full disk).
        """
        super().__init__(message)
        self.reason = reason
        self.temporary = temporary

    @property
    def exit_status(self) -> ExitStatus:
        """The status of a server that could not start."""
        return ExitStatus.FAILED if self.temporary else ExitStatus.NEVER_SERVED


class WrongOptions(StartError):
    """Options that do not go together, or that point to nothing: the same start would fail again."""

    @property
    def exit_status(self) -> ExitStatus:
        return ExitStatus.USAGE
