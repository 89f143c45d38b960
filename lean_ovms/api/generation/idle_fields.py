"""Fields that are honoured elsewhere and have no effect in this request: each is named in a Warning header."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from ...types import SamplingParams
from ..fields import Values

PRECEDENCE = (
    ("max_completion_tokens", "max_tokens"),
    ("max_completion_tokens", "n_predict"),
    ("max_tokens", "n_predict"),
    ("repetition_penalty", "repeat_penalty"),
)
"""Two names of one setting each; the first has precedence."""
NOT_WITH_BEAMS = {
    "temperature": (0, 1),
    "top_p": (1,),
    "top_k": (-1, 0),
    "min_p": (0,),
    "repetition_penalty": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "seed": (),
}
"""What a beam search does not know, with the values that ask for nothing of it."""
ONLY_WITH_BEAMS = {"length_penalty": (1,), "early_stopping": (False,)}
DRAFTING = ("num_assistant_tokens", "assistant_confidence_threshold", "max_ngram_size")


def idle_fields(
    values: Values, sampling: SamplingParams, speculative: str | None, dropped: Collection[str] = ()
) -> list[str]:
    """Returns a line for each field that is set and has no effect.

    Args:
        values: The fields' values by the client's names.
        sampling: What was made of them.
        speculative: How the model's drafts are made, as in ModelInfo; None if that is not known yet.
        dropped: Fields that the engine does not support, which have a line of their own.
    """
    lines = list(overruled(values, PRECEDENCE))
    beams = sampling.beams > 1
    for name, nothing in (NOT_WITH_BEAMS if beams else ONLY_WITH_BEAMS).items():
        if values[name] is not None and values[name] not in nothing and name not in dropped:
            lines.append(f"{name} has no effect {'with' if beams else 'without'} beam search")
    if values["truncation_side"] != "left" and values["truncate_prompt_tokens"] is None:
        lines.append("truncation_side has no effect without truncate_prompt_tokens")
    if speculative is not None:
        lines += [f"{name} has no effect: {why}" for name, why in _unused_drafting(speculative) if values[name]]
    return lines


def overruled(values: Values, precedence: tuple[tuple[str, str], ...]) -> Iterator[str]:
    """Yields a line for each second name whose value differs from that of the first."""
    for first, second in precedence:
        one, other = values.get(first), values.get(second)
        if one is not None and other is not None and one != other:
            yield f"{second} has no effect: {first} has precedence"


def _unused_drafting(speculative: str) -> Iterator[tuple[str, str]]:
    """Yields the fields about drafts that this kind of drafting does not read, and why."""
    if not speculative:
        yield from ((name, "the model has no drafts") for name in DRAFTING)
    elif speculative == "prompt_lookup":
        yield "assistant_confidence_threshold", "the model has no draft model"
    else:
        yield "max_ngram_size", "drafts are not looked up in the prompt"
