"""Log probabilities of tokens that were not chosen: what a request asks for, and what the engine knows of them.

openvino_genai reports the chosen token's alone. This is the one place that says so.
"""

from __future__ import annotations

from ...errors import BadRequest
from ...types import Json, SamplingParams


def unknown(values: Json, sampling: SamplingParams) -> list[str]:
    """What of the alternatives asked for is not known, for Warning headers.

    Raises BadRequest for those of a prompt. There a client takes the likeliest token that it is shown for the likeliest
    of all, and whatever it scores for what greedy decoding would have written (lm-evaluation-harness: is_greedy).
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
