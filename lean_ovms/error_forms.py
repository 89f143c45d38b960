"""The response for an error, in the form that the client of a request reads: that of a feature's API, or OpenAI's."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from .errors import RequestError, error_response
from .manifest import ErrorForm, named

if TYPE_CHECKING:
    from .types import Response


class RequestStart(Protocol):
    """The part of a request that decides the form of its errors."""

    @property
    def path(self) -> str: ...

    @property
    def headers(self) -> Mapping[str, str]: ...


def below_root(path: str, root: str) -> str:
    """Returns a path without --root_path, where it begins with it."""
    return path.removeprefix(root) if root and path.startswith(root + "/") else path


class ErrorForms:
    """The forms that a server has besides OpenAI's."""

    def __init__(self, rows: Iterable[ErrorForm] = (), root: str = "") -> None:
        """Keeps the forms of errors.

        Args:
            rows: The forms and the paths that they are for.
            root: The server's --root_path, which the paths of requests may begin with.
        """
        self.rows = tuple(rows)
        self._root = root

    def below(self, root: str) -> ErrorForms:
        """Returns the same forms for a server with this --root_path."""
        return ErrorForms(self.rows, root)

    def of(self, request: RequestStart) -> ErrorForm | None:
        """Returns the form that the client reads, by its path or a header that only such clients send; None:
        OpenAI's."""
        path = below_root(request.path, self._root)
        for row in self.rows:
            if path.startswith(row.paths) or (row.header and row.header in request.headers):
                return row
        return None

    def response(
        self,
        error: RequestError,
        headers: Iterable[tuple[str, str]] = (),
        *,
        request: RequestStart | None,
        request_id: str = "",
    ) -> Response:
        """Returns the response for an error as JSON.

        Args:
            error: The error.
            headers: Headers that are sent besides the error's own.
            request: The request, whose client reads the response; None where it could not be read: OpenAI's form.
            request_id: The id of the request, for forms that show it.
        """
        response = error_response(error, headers)
        if request is not None and (row := self.of(request)) is not None:
            response.status = row.statuses.get(error.status, error.status)
            body: Mapping[str, Any] = named(row.package, row.body)(error, request_id)
            response.body = json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
        return response


OPENAI_ONLY = ErrorForms()
"""No form but OpenAI's."""
