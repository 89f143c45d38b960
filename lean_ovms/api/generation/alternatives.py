"""Log probabilities of tokens that were not chosen (top_logprobs), which openvino_genai does not report."""

from __future__ import annotations

from ...errors import BadRequest
from ...types import Json, SamplingParams


def unknown(values: Json, sampling: SamplingParams) -> list[str]:
    """Warnings for requested alternatives that the engine cannot report.

    Raises BadRequest for alternatives of prompt tokens: clients treat the likeliest token in the response as the
    likeliest of all, and derive from it whether greedy decoding gives the scored text (lm-evaluation-harness:
    is_greedy).
    """
    if sampling.prompt_logprobs and values["logprobs"]:
        raise BadRequest(
            f"logprobs {values['logprobs']} with echo asks for the likeliest tokens at each place of the prompt, and "
            "the engine knows the log probabilities of the prompt's own tokens only: send logprobs 0 for those",
            param="logprobs",
        )
    if "top_logprobs" in values:
        return ["top_logprobs holds no alternatives"] if values["top_logprobs"] else []
    greedy = sampling.temperature == 0 and sampling.beams == 1  # then the chosen token is the likeliest one
    return ["top_logprobs holds the chosen token alone"] if (values["logprobs"] or 0) > greedy else []
