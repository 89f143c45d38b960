"""InternLM2: <|action_start|><|plugin|>{"name": …, "parameters": {…}}<|action_end|>"""

from __future__ import annotations

from ...grammar.frames import CallForm, in_json
from .detection import THINK, Detection
from .json_calls import EnclosedJson


class Tools(EnclosedJson):
    """Calls between <|action_start|><|plugin|> and <|action_end|>."""

    tags = ("<|action_start|><|plugin|>", "<|action_start|> <|plugin|>", "<|action_end|>")
    noise = ("<|im_end|>", "</s>")
    keep_special_tokens = True


FORM = CallForm(
    one=in_json(arguments_key="parameters", around=("<|action_start|><|plugin|>\n", "<|action_end|>")),
    between="\n",
    trigger="<|action_start|><|plugin|>",
)

DETECTION = Detection(rank=150, marks=(("<|action_start|>", "<|plugin|>"),), reasoning="qwen3", reasoning_marks=THINK)
