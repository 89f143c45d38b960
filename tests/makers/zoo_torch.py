"""Compares the paged engine on the models of tests/data/zoo with transformers in torch: tokens and log probabilities.

The weights in torch are made again, as tests/makers/zoo.py made them. They are equal to those of the files only with
the versions of torch and transformers that wrote these; with others everything may differ. Prompts are longer than a
block, a chunk and the sliding windows, and several are computed together. Both compute in f32. Answers of which all
tokens are equal are written to tests/data/zoo/answers.json.

python -m tests.makers.zoo_torch [NAME...]   (needs torch and transformers beside the server's packages)
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from dataclasses import replace
from itertools import chain
from pathlib import Path

from lean_ovms.config import Config
from lean_ovms.engine.generation.sequence import GenerationRequest
from lean_ovms.engine.loading import settings
from lean_ovms.engine.paged import assemble
from lean_ovms.engine.protocol import Tokens
from lean_ovms.types import SamplingParams
from tests.archives import extract
from tests.makers.zoo import COMMON, MODELS, network

ZOO = Path(__file__).parents[2] / "tests" / "data" / "zoo"
ANSWERS = ZOO / "answers.json"
LENGTHS, TOKENS = (3, 40, 100), 20
EXACT = {"kv_cache_precision": "f32", "plugin_config": '{"DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}'}

Answer = tuple[list[int], list[float]]
"""Tokens and their log probabilities."""


def prompts() -> list[list[int]]:
    dice = random.Random(5)
    return [[dice.randrange(3, int(str(COMMON["vocab_size"]))) for _ in range(length)] for length in LENGTHS]


def paged(name: str) -> list[Answer]:
    """Returns the answers of the paged engine to prompts that arrive one step after the other."""
    asked = SamplingParams(temperature=0.0, ignore_eos=True, logprobs=True)
    with tempfile.TemporaryDirectory() as folder:
        extract(ZOO / f"{name}.tar.xz", Path(folder))
        # Any tokenizer will do, because only ids are used.
        for file in Config().model_dir.glob("openvino_*tokenizer.*"):
            (Path(folder) / file.name).symlink_to(file)
        config = Config(model_path=folder, pipeline_type="PAGED", max_num_batched_tokens=64, **EXACT)
        pipe = assemble.load(config, replace(settings.resolve(config, 1 << 30, paged=True), blocks=60))
        answers: list[Answer] = [([], []) for _ in LENGTHS]
        waiting = list(enumerate(prompts()))
        while waiting or not pipe.idle:
            if waiting:
                number, ids = waiting.pop(0)
                request = GenerationRequest(number, asked, {0}, prompt=ids, max_tokens=TOKENS)
                pipe.check(request)
                pipe.add(request)
            pipe.admit()
            pipe.step()
        for record in pipe.out:
            if isinstance(record, Tokens):
                tokens, logprobs = answers[record.id]
                tokens += record.tokens
                logprobs += record.logprobs or []
    return answers


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
                logprobs.append(float(line.max()))
        answers.append((text[len(ids) :], logprobs))
    return answers


def record(name: str, answers: list[Answer]) -> None:
    """Returns the entry for the tests: [tokens, log probabilities] of each prompt."""
    known = json.loads(ANSWERS.read_text()) if ANSWERS.is_file() else {}
    known[name] = [[tokens, [round(value, 4) for value in logprobs]] for tokens, logprobs in answers]
    lines = [f"{json.dumps(each)}: {json.dumps(known[each], separators=(',', ':'))}" for each in sorted(known)]
    ANSWERS.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def main(argv: list[str]) -> int:
    """Runs the command line. Returns the exit status: 1 if a token differs, 2 for wrong usage."""
    if not set(argv) <= set(MODELS):
        print(__doc__, file=sys.stderr)
        return 2
    differ = 0
    for name in argv or sorted(path.name.removesuffix(".tar.xz") for path in ZOO.glob("*.tar.xz")):
        found, wanted = paged(name), in_torch(name)
        tokens, logprobs = ([list(chain(*(answer[i] for answer in each))) for each in (found, wanted)] for i in (0, 1))
        same = sum(a == b for a, b in zip(*tokens, strict=True))
        error = max(abs(a - b) for a, b in zip(*logprobs, strict=True))
        total = TOKENS * len(LENGTHS)
        print(f"{name}: {same} of {total} tokens equal, log probabilities differ by at most {error:.1e}", flush=True)
        differ += same < total
        if same == total:
            record(name, wanted)
    return bool(differ)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
