"""What /openapi.json says of an endpoint: a decorator of its handler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from ..types import Json
from .fields import Field

H = TypeVar("H", bound=Callable[..., Any])
_docs: dict[Callable[..., Any], RouteDoc] = {}


@dataclass(frozen=True, slots=True)
class RouteDoc:
    """The description of a handler: `@RouteDoc("The models served")`.

    body, query: the fields that the handler reads; form: the body is multipart/form-data. answer: "object", "array" or
    both with "or", a media type, or "" for none. stream: with `stream` it is server-sent events. media: further media
    types of the answer. errors: statuses in addition to those that follow from the other fields. rules: JSON Schema
    keywords for the whole body. upgrade: it opens a WebSocket.
    """

    summary: str
    body: tuple[Field, ...] = ()
    form: bool = False
    body_optional: bool = False
    query: tuple[Field, ...] = ()
    answer: str = "object"
    stream: bool = False
    media: tuple[str, ...] = ()
    errors: tuple[int, ...] = ()
    rules: Json | None = None
    upgrade: bool = False

    def __call__(self, handler: H) -> H:
        _docs[handler] = self
        return handler


def doc_of(handler: Callable[..., Any]) -> RouteDoc:
    """Returns the description of a handler; of one without RouteDoc, the first line of its docstring."""
    return _docs.get(handler) or RouteDoc((handler.__doc__ or handler.__name__).strip().splitlines()[0])
