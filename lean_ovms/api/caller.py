"""Calls models for a Python program, in place of an endpoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from ..types import Json
from .fields import FieldSet
from .services import Services

T = TypeVar("T")


class Caller(Protocol):
    """Reads the arguments of a Python call as an endpoint reads a request's fields, and finds the model."""

    @property
    def services(self) -> Services:
        """The state of the server that endpoints work with."""

    async def read(self, parse: Callable[[Json, Services], T], known: FieldSet, given: Json, fields: Json) -> T:
        """Checks the fields of a call and returns what `parse` makes of them.

        Args:
            parse: The function that reads a body.
            known: The fields of the endpoint.
            given: The fields that the caller's method has as named arguments.
            fields: All other fields, by name.

        Raises:
            RequestError: The value of a field is wrong.
            TypeError: The endpoint has no field of that name.
        """
