"""Declares the fields that the bodies of files and of batches share."""

from __future__ import annotations

from ...api.fields import Field, FieldSet, read, require
from ...errors import errors_of
from ...types import Json
from .storage import RETENTION_S

EXPIRY = FieldSet((
    Field("anchor", "string", "time from which the seconds count", choices=("created_at",)),
    Field("seconds", "uint", "seconds, from one hour to 30 days", low=3600, high=RETENTION_S, required=True),
))  # fmt: skip


def expires_after(name: str) -> Field:
    """Returns a field that says how long a file is kept. Its value is a number of seconds."""

    def read_seconds(value: Json) -> int:
        with errors_of(name, member=True):
            return int(require(EXPIRY, read(EXPIRY, value))["seconds"])

    return Field(
        name, "object", "how long the file, or the files with the results, are kept", fields=EXPIRY, read=read_seconds
    )
