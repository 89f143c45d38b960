"""Records how much bf16 differs from f32 in torch, for the tiny models that generate text, including those with vision:
tests/data/zoo/bf16.json.

A record has the log probabilities of the last tokens of a text longer than 1,000 tokens, in f32 and in thousandths, and
the mean difference of all tokens in bf16. The weights in torch are made again, as tests/makers/zoo.py, zoo_gguf.py and
zoo_vision.py made those of the files. Those of OTHERS differ from the files', because optimum-intel does not export the
biases of gpt_oss's experts, and transformers has changed; their records have only the difference. The records were made
with transformers 5.5.4, except that of gemma4_unified, which it does not know.

python -m tests.makers.zoo_bf16 [NAME...]   (needs torch and transformers, and the package gguf)
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

from tests.makers import zoo, zoo_gguf, zoo_vision

FILE = Path(__file__).parents[1] / "data" / "zoo" / "bf16.json"
LENGTH, LAST = 1200, 150
GGUF, VISION = ".gguf", "vision/"
"""The suffix and the prefix of such models' names."""
OTHERS = {"gpt_oss", "qwen3_next", *(f"{VISION}{name}" for name in ("qwen2_vl", "qwen3_vl"))}
"""Models whose files have other weights than torch makes now."""
TEXT = [
    *("afmoe", "cohere", "exaone4", "gemma2", "gemma3_text", "gpt_oss", "granitemoehybrid", "granitemoehybrid-rope"),
    *("lfm2", "llama", "mixtral", "phi3", "qwen3_5_text", "qwen3_next"),
    *("deepseek_v3.gguf", "gemma3n_text.gguf", "gemma4_text.gguf", "gemma4_text-moe.gguf", "glm4.gguf", "gpt_oss.gguf"),
    *("granitemoehybrid.gguf", "lfm2.gguf", "llama.gguf", "ministral3.gguf", "mixtral.gguf", "nemotron_h-latent.gguf"),
    *("phi3-long.gguf", "qwen3_5_text.gguf"),
]
"""A model for each of the ways in which networks compute angles from positions (by the operations in front of Cos and
Sin), and for each kind of layers. Those of the other models of the zoos are the same."""
NAMES = [*TEXT, *(f"{VISION}{name}" for name in ("gemma3", "gemma4", "qwen2_vl", "qwen3_vl", "qwen3_5"))]


def text(name: str) -> list[int]:
    """Returns the tokens of the text for a model, none of which stands for an image."""
    dice = random.Random(5)
    return [dice.randrange(30, 250) if name.startswith(VISION) else dice.randrange(3, 64) for _ in range(LENGTH)]


def compared(name: str) -> int:
    """Returns how many of the last tokens of the text are compared."""
    return LENGTH - 1 if name in OTHERS else LAST


def logprobs(name: str, model: Any) -> Any:
    """Returns the log probabilities of the tokens of the text after the first, as a tensor."""
    import torch

    ids = torch.tensor([text(name)])
    marks = {"gemma3": "token_type_ids", "gemma4": "mm_token_type_ids"}.get(model.config.model_type)
    with torch.no_grad():
        more = {marks: torch.zeros_like(ids)} if marks else {}
        cached = zoo_gguf.needs_cache(model.config)
        lines = model(input_ids=ids, use_cache=cached, **more).logits[0, :-1].double().log_softmax(-1)
    return lines.gather(1, ids[0, 1:, None])[:, 0]


def network(name: str) -> Any:
    """Returns a model in torch."""
    if name.endswith(GGUF):
        return zoo_gguf.network(name.removesuffix(GGUF))[0]
    of_vision = name.startswith(VISION)
    model = zoo_vision.network(name.removeprefix(VISION)) if of_vision else zoo.network(name)
    in_16_bits(model)
    return model


def in_16_bits(model: Any) -> None:
    """Rounds the frequencies of angles to 16 bits, in which the files have all constants."""
    for buffer, values in model.named_buffers():
        if buffer.endswith("inv_freq"):
            values.copy_(values.half())


def in_bf16(model: Any) -> Any:
    """Returns the same model in bf16, as from_pretrained(dtype=bfloat16) reads it: angles are computed in f32."""
    kept = {name: values.clone() for name, values in model.named_buffers() if name.endswith("inv_freq")}
    model = model.bfloat16()
    for buffer, values in kept.items():
        place, _, last = buffer.rpartition(".")
        setattr(model.get_submodule(place), last, values)
    return model


def record(name: str) -> dict[str, Any]:
    """Returns the entry of a model."""
    model = network(name)
    wanted = logprobs(name, model)
    entry = {"torch": round(float((logprobs(name, in_bf16(model)) - wanted).abs().mean()), 4)}
    return entry if name in OTHERS else {**entry, "logprobs": [round(1000 * float(value)) for value in wanted[-LAST:]]}


if __name__ == "__main__":
    sys.exit(zoo.record(FILE, NAMES, record, __doc__ or ""))
