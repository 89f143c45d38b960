"""Declares the objects that programs pass besides SamplingParams in vLLM: constraints, beam searches, adapters.

https://docs.vllm.ai/en/stable/api/vllm/sampling_params.html and https://docs.vllm.ai/en/stable/features/lora.html
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

from ...types import Json

CONSTRAINTS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
"""Attributes of StructuredOutputsParams of which one is given."""
NO_EFFECT = ("disable_any_whitespace", "disable_additional_properties", "whitespace_pattern")
"""Attributes that have no effect here: a schema alone says which properties and which white space are allowed."""


@dataclass
class StructuredOutputsParams:
    """The form of an answer, for `SamplingParams(structured_outputs=...)`. Raises ValueError unless one is given."""

    json: str | Json | None = None
    """A JSON schema, as an object or as text."""
    regex: str | None = None
    """A regular expression that the whole answer matches."""
    choice: list[str] | None = None
    """Texts, one of which is the answer."""
    grammar: str | None = None
    """A grammar (EBNF or Lark)."""
    json_object: bool | None = None
    """Whether the answer is any JSON object."""
    disable_any_whitespace: bool = False
    """Whether JSON has no white space between its tokens."""
    disable_additional_properties: bool = False
    """Whether objects have only the properties of their schemas."""
    whitespace_pattern: str | None = None
    """A regular expression of the white space in JSON."""
    structural_tag: str | Json | None = None
    """A structural tag, in the form of vLLM and XGrammar."""

    def __post_init__(self) -> None:
        given = [name for name in CONSTRAINTS if getattr(self, name) is not None]
        if len(given) != 1:
            found = " and ".join(given) or "none"
            raise ValueError(f"StructuredOutputsParams need exactly one of {', '.join(CONSTRAINTS)}, not {found}")
        for name in NO_EFFECT:
            if getattr(self, name):
                warnings.warn(f"{name} has no effect", stacklevel=3)

    def as_field(self) -> Json:
        """Returns the value of the field structured_outputs of a request."""
        return {name: value for name in CONSTRAINTS if (value := getattr(self, name)) is not None}


@dataclass
class BeamSearchParams:
    """A beam search, for `LLM.beam_search`."""

    beam_width: int
    """The number of beams and of returned texts."""
    max_tokens: int
    """The most tokens of a text."""
    ignore_eos: bool = False
    """Whether the search continues after the end of a text."""
    temperature: float = 0.0
    """The number by which logits are divided, unless it is 0."""
    length_penalty: float = 1.0
    """The exponent of the length by which the score of a text is divided."""
    include_stop_str_in_output: bool = False
    """Whether a text contains the stop string that ended it."""
    structured_outputs: StructuredOutputsParams | None = None
    """The form that each text must have."""

    def as_fields(self) -> Json:
        """Returns the sampling fields of a request. One beam is greedy decoding, without a penalty."""
        fields: Json = {"n": self.beam_width, "use_beam_search": True, "max_tokens": self.max_tokens, "logprobs": 1}
        if self.beam_width > 1:
            fields["length_penalty"] = self.length_penalty
        if self.beam_width == 1 or self.temperature:
            fields["temperature"] = self.temperature
        if self.ignore_eos:
            fields["ignore_eos"] = True
        if self.include_stop_str_in_output:
            fields["include_stop_str_in_output"] = True
        if self.structured_outputs is not None:
            fields["structured_outputs"] = self.structured_outputs
        return fields


class PoolingParams:
    """Fields of a request to a pooling model by name, which `embed`, `encode`, `score` and `classify` check."""

    def __init__(self, **fields: Any) -> None:
        vars(self).update(fields)

    def __repr__(self) -> str:
        return f"PoolingParams({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


@dataclass(frozen=True)
class LoRARequest:
    """The adapter of a call. It is loaded by the first call, and served by its name from then on."""

    lora_name: str
    """The adapter's name; a call may also give it as `model`."""
    lora_int_id: int = 1
    """The number by which vLLM identifies adapters; it is ignored, as the name identifies them."""
    lora_path: str = ""
    """The adapter's directory or file; "" if it is loaded already."""
    base_model_name: str | None = None
    """The name of its base model, if several models are served."""
    load_inplace: bool = False
    """Whether an adapter with the same name is replaced."""


def as_given(value: Any) -> Any:
    """Converts the value of a field to the form that a request has."""
    return value.as_field() if isinstance(value, StructuredOutputsParams) else value
