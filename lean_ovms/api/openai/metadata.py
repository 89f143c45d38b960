"""The field with which clients name what they store (https://platform.openai.com/docs/api-reference)."""

from __future__ import annotations

from ...errors import BadRequest
from ...types import Json
from ..fields import Field

MAX_METADATA, MAX_METADATA_KEY, MAX_METADATA_VALUE = 16, 64, 512


def _metadata(value: Json) -> Json:
    if len(value) > MAX_METADATA:
        raise BadRequest(f"metadata must have no more than {MAX_METADATA} entries", param="metadata")
    for key, text in value.items():
        if len(key) > MAX_METADATA_KEY:
            raise BadRequest(f"a metadata key must have no more than {MAX_METADATA_KEY} characters", param="metadata")
        if not isinstance(text, str) or len(text) > MAX_METADATA_VALUE:
            raise BadRequest(
                f"a metadata value must be a string of no more than {MAX_METADATA_VALUE} characters", param="metadata"
            )
    return value


METADATA = Field("metadata", "object", "up to 16 strings by name; kept, and returned as they came", read=_metadata,
    schema={"maxProperties": MAX_METADATA, "propertyNames": {"maxLength": MAX_METADATA_KEY},
        "additionalProperties": {"type": "string", "maxLength": MAX_METADATA_VALUE}})  # fmt: skip
