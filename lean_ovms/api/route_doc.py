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
    """The description of a handler: `@RouteDoc("The models served")`."""

    summary: str
    """What the endpoint does."""
    body: tuple[Field, ...] = ()
    """The fields of the body that the handler reads."""
    form: bool = False
    """Whether the body is multipart/form-data."""
    body_optional: bool = False
    """Whether a request may have no body."""
    query: tuple[Field, ...] = ()
    """The fields of the query that the handler reads."""
    answer: str = "object"
    """"object", "array" or both with "or", a media type, or "" for none."""
    stream: bool = False
    """Whether, with the field `stream`, the answer is server-sent events."""
    media: tuple[str, ...] = ()
    """Further media types of the answer."""
    errors: tuple[int, ...] = ()
    """Statuses in addition to those that follow from the other members."""
    rules: Json | None = None
    """Keywords of JSON Schema for the whole body."""
    upgrade: bool = False
    """Whether it opens a WebSocket."""

    def __call__(self, handler: H) -> H:
        _docs[handler] = self
        return handler


def doc_of(handler: Callable[..., Any]) -> RouteDoc:
    """Returns the description of a handler; of one without RouteDoc, the first line of its docstring."""
    return _docs.get(handler) or RouteDoc((handler.__doc__ or handler.__name__).strip().splitlines()[0])
