"""InternLM2: <|action_start|><|plugin|>{"name": …, "parameters": {…}}<|action_end|>"""

from __future__ import annotations

from .json_calls import Enclosed


class Tools(Enclosed):
    """Calls between <|action_start|><|plugin|> and <|action_end|>."""

    tags = ("<|action_start|><|plugin|>", "<|action_start|> <|plugin|>", "<|action_end|>")
    noise = ("<|im_end|>", "</s>")
    keep_special_tokens = True
