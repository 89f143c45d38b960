"""What the bodies of files and of batches have in common."""

from __future__ import annotations

from ....errors import BadRequest
from ....types import Json
from ...fields import Field, FieldSet, Values, read
from .storage import RETENTION_S

SECONDS = Field("seconds", "uint", "an hour to 30 days", low=3600, high=RETENTION_S, required=True)


def expires_after(name: str) -> Field:
    """Returns the field that says how long a file stays."""
    anchor = Field("anchor", "string", "from when on", choices=("created_at",))
    return Field(
        name, "object", "how long the file, or the files of results, stay", fields=(anchor, SECONDS), read=_seconds
    )


def _seconds(value: Json) -> int:
    return int(complete(FieldSet((SECONDS,)), value)["seconds"])


def complete(fields: FieldSet, body: Json) -> Values:
    """Returns the values of a body that has all required fields. Raises BadRequest."""
    values = read(fields, body)
    for field in fields:
        if field.required and values[field.name] is None:
            raise BadRequest(f"{field.name} is missing", param=field.name)
    return values
