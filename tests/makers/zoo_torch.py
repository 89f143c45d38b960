"""Records the answers of transformers in torch with the models of tests/data/zoo: tokens and log probabilities.

The weights in torch are made again, as tests/makers/zoo.py made them. They are equal to those of the files only with
the versions of torch and transformers that wrote these. Everything is computed in f32. The answers are written to
tests/data/zoo/answers.json; tests/engine/paged/test_zoo.py compares the paged engine's.

python -m tests.makers.zoo_torch [NAME...]   (needs torch and transformers beside the server's packages)
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from tests.makers.zoo import COMMON, MODELS, network, record

ZOO = Path(__file__).parents[2] / "tests" / "data" / "zoo"
ANSWERS = ZOO / "answers.json"
LENGTHS, TOKENS = (3, 40, 100), 20

Answer = tuple[list[int], list[float]]
"""Tokens and their log probabilities."""


def prompts() -> list[list[int]]:
    dice = random.Random(5)
    return [[dice.randrange(3, int(str(COMMON["vocab_size"]))) for _ in range(length)] for length in LENGTHS]


def in_torch(name: str) -> list[Answer]:
    """Returns the answers of transformers, one prompt after the other and without a cache."""
    import torch

    model, answers = network(name), list[Answer]()
    for buffer, values in model.named_buffers():
        if buffer.endswith("inv_freq"):  # the files have all constants in 16 bits
            values.copy_(values.half())
    for ids in prompts():
        text, logprobs = list(ids), list[float]()
        with torch.no_grad():
            for _ in range(TOKENS):
                line = model(torch.tensor([text]), use_cache=False).logits[0, -1].double().log_softmax(-1)
                text.append(int(line.argmax()))
                logprobs.append(round(float(line.max()), 4))
        answers.append((text[len(ids) :], logprobs))
    return answers


if __name__ == "__main__":
    sys.exit(record(ANSWERS, MODELS, in_torch, __doc__ or ""))
