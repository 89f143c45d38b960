"""Records how far transformers in torch is from f32 in bf16, for the tiny text models: tests/data/zoo/bf16.json.

Of each model: the log probabilities of the last tokens of a text that is longer than 1,000 tokens, in f32 and in
thousandths, and by how much those in bf16 differ from them on average. The weights in torch are made again as
tests/makers/zoo.py and zoo_gguf.py made those of the files. Those of gpt_oss and qwen3_next are others, as
optimum-intel exports no biases of the first's experts, and transformers has changed: they have the difference alone.

python -m tests.makers.zoo_bf16 [NAME...]   (needs torch and transformers, and the package gguf)
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

from tests.makers import zoo, zoo_gguf

FILE = Path(__file__).parents[1] / "data" / "zoo" / "bf16.json"
LENGTH, LAST = 1200, 150
OTHERS = {"gpt_oss", "qwen3_next"}
"""Models whose files have other weights than torch has now."""
NAMES = [*zoo.MODELS, *(f"{name}.gguf" for name in zoo_gguf.MODELS if name not in zoo_gguf.EMBEDDING)]


def text() -> list[int]:
    """Returns the tokens of the text."""
    dice = random.Random(5)
    return [dice.randrange(3, int(str(zoo.COMMON["vocab_size"]))) for _ in range(LENGTH)]


def logprobs(model: Any) -> Any:
    """Returns the log probabilities of the last tokens of the text, as a tensor."""
    import torch

    ids = torch.tensor([text()])
    with torch.no_grad():
        lines = model(ids, use_cache=False).logits[0, -LAST - 1 : -1].double().log_softmax(-1)
    return lines.gather(1, ids[0, -LAST:, None])[:, 0]


def record(name: str) -> dict[str, Any]:
    """Returns the entry of a model."""
    model = zoo_gguf.network(name[:-5])[0] if name.endswith(".gguf") else zoo.network(name)
    if not name.endswith(".gguf"):
        for buffer, values in model.named_buffers():
            if buffer.endswith("inv_freq"):  # the files have them, as all constants, in 16 bits
                values.copy_(values.half())
    wanted, kept = logprobs(model), {name: values.clone() for name, values in model.named_buffers()}
    model = model.bfloat16()
    for buffer, values in kept.items():
        if buffer.endswith("inv_freq"):  # from_pretrained(dtype=bfloat16) leaves them in f32
            place, _, last = buffer.rpartition(".")
            setattr(model.get_submodule(place), last, values)
    entry = {"torch": round(float((logprobs(model) - wanted).abs().mean()), 4)}
    return entry if name in OTHERS else {**entry, "logprobs": [round(1000 * float(value)) for value in wanted]}


def main(argv: list[str]) -> int:
    """The exit status: 2 for wrong use."""
    if not set(argv) <= set(NAMES):
        print(__doc__, file=sys.stderr)
        return 2
    known = json.loads(FILE.read_text()) if FILE.is_file() else {}
    for name in argv or NAMES:
        known[name] = record(name)
        print(name, known[name]["torch"], flush=True)
    lines = [f"{json.dumps(each)}: {json.dumps(known[each], separators=(',', ':'))}" for each in sorted(known)]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
