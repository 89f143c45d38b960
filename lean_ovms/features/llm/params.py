"""SamplingParams, with vLLM's names, which are checked by the fields of a completions request.

https://docs.vllm.ai/en/stable/api/vllm/sampling_params.html
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ...api.fields import FieldSet, read_one
from ...api.generation.common_fields import (
    NUM_LOGPROBS,
    PROMPT_LOGPROBS,
    RESPONSE_FORMAT,
    STRUCTURED,
    UNSUPPORTED,
    similar,
)
from ...api.generation.sampling import SAMPLING
from ...errors import BadRequest
from ...types import Json
from .requests import as_given

FIELDS = FieldSet((*SAMPLING, NUM_LOGPROBS, PROMPT_LOGPROBS, *STRUCTURED, RESPONSE_FORMAT))
_UNSUPPORTED = FieldSet(field for field in UNSUPPORTED if field.name not in FIELDS.names)


class SamplingParams:
    """The sampling fields of a request, by name.

    Fields that are not given have the values of the model's generation_config.json, or else the server's defaults.
    Raises TypeError for an unknown name, and ValueError for a value that is not allowed.
    """

    def __init__(self, **fields: Any) -> None:
        for name, value in fields.items():
            setattr(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        check_names((name,), FIELDS.names | _UNSUPPORTED.names, "SamplingParams")
        fields, value = FIELDS if name in FIELDS.places else _UNSUPPORTED, as_given(value)
        try:
            read_one(fields.named(name), value)
        except BadRequest as error:
            raise ValueError(error.message) from None
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        if name not in FIELDS.places:
            raise AttributeError(f"SamplingParams have no {name}")
        return FIELDS.defaults[name]

    def __repr__(self) -> str:
        return f"SamplingParams({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SamplingParams) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]  # its fields can be set


def for_chat(fields: Mapping[str, Any]) -> Json:
    """Converts the fields to those of a chat request, in which log probabilities have two fields."""
    body = dict(fields)
    if (top := body.get("logprobs")) is not None:
        body |= {"logprobs": True, "top_logprobs": top}
    return body


def check_names(names: Iterable[str], known: frozenset[str], what: str, others: frozenset[str] = frozenset()) -> None:
    """Raises TypeError for a name that is not known, as Python does for a wrong keyword.

    Args:
        names: The names that were given.
        known: The known names.
        what: The name of the called function, for the error.
        others: Other arguments of the function, which the error may suggest as well.

    Raises:
        TypeError: A name is not known.
    """
    for name in names:
        if name not in known:
            near = similar(name, known | others)
            hint = f"; did you mean {near}?" if near else ""
            raise TypeError(f"{what} has no argument {name!r}{hint}")
