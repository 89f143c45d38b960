"""Calls models for a Python program, in place of an endpoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from ..types import Json
from .fields import FieldSet
from .services import Services

T = TypeVar("T")


class Caller(Protocol):
    """Reads the fields of a call as an endpoint reads those of a request, and has the model."""

    @property
    def services(self) -> Services:
        """What endpoints work with."""

    async def read(self, parse: Callable[[Json, Services], T], known: FieldSet, given: Json, fields: Json) -> T:
        """Returns what `parse` makes of the fields.

        Args:
            parse: The function that reads a body.
            known: The fields of the endpoint.
            given: Fields that are arguments of the method.
            fields: The others, by their names.

        Raises:
            RequestError: A value is wrong.
            TypeError: There is no such field.
        """
