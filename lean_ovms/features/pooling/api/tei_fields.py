"""Request fields of text-embeddings-inference that embed and rerank share.

https://huggingface.github.io/text-embeddings-inference/
"""

from __future__ import annotations

from ....api.fields import Field, Values
from ....errors import BadRequest
from ....types import Json


def _direction(value: str) -> str:
    if value.lower() not in ("left", "right"):
        raise BadRequest("truncation_direction should be either Left or Right", param="truncation_direction")
    return value.lower()


TRUNCATION = (
    Field("truncate", "bool", "text-embeddings-inference's: cut an input that is too long"),
    Field("truncation_direction", "string", "text-embeddings-inference's: which side is cut: Left or Right",
        read=_direction, schema={"enum": ["Left", "Right", "left", "right"]}),
)  # fmt: skip


def truncation(values: Values) -> Json:
    """Returns the values of vLLM's fields that these two stand for."""
    return {
        **({"truncate_prompt_tokens": -1} if values["truncate"] else {}),
        **({"truncation_side": values["truncation_direction"]} if values["truncation_direction"] else {}),
    }
