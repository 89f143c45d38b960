"""What LoRA adapters cost: the paged engine with requests that have one adapter, several, some of them none, in turns.

Bare loops of bench.engines on one pipeline. The adapters are random and adapt every layer that takes weights. `step` is
the wall time of steps in which all requests decode; ratios are those of a round without adapters, by round.

python -m bench.lora [--streams 1,8,32] [--tokens 48] [--prompt 24] [--rounds 11] [--adapters 4] [--rank 8]
[options of the server]
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import statistics
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from bench.engines import BLOCKS, Round, run
from lean_ovms import lora_modules
from lean_ovms.cli.arguments import parse
from lean_ovms.engine.loading import settings
from lean_ovms.engine.paged.pipeline import PagedPipeline
from lean_ovms.types import SamplingParams
from tools.make_lora import write


def make(folder: Path, pipe: PagedPipeline, rank: int, seed: int) -> str:
    """An adapter of all layers, as PipelineRequest names it."""
    dice, arrays = np.random.default_rng(seed), {}
    for layer, (width, height) in pipe._model.layers.items():
        place = f"base_model.model.{layer}"
        arrays[f"{place}.lora_A.weight"] = dice.normal(size=(rank, width)) / np.sqrt(width)
        arrays[f"{place}.lora_B.weight"] = dice.normal(size=(height, rank)) * 0.02
    folder.mkdir()
    write(folder / "adapter_model.safetensors", arrays)
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": rank, "lora_alpha": rank}))
    return lora_modules.dumps(lora_modules.LoraModule(folder.name, str(folder)))


def compare(pipe: PagedPipeline, kinds: dict[str, list[str]], streams: int, args: argparse.Namespace) -> None:
    """Print a line for each kind of requests. The first round of all is thrown away."""
    rng, rounds = random.Random(streams), list[dict[str, Round]]()
    sampling = SamplingParams(temperature=0.0, ignore_eos=True)
    for number in range(args.rounds + 1):
        prompts = [[rng.randrange(3, pipe.info.vocab_size) for _ in range(args.prompt)] for _ in range(streams)]
        order = list(kinds)[:: 1 if number % 2 else -1]
        rounds.append({kind: run(pipe, prompts, args.tokens, sampling, kinds[kind]) for kind in order})
    for kind in kinds:
        pairs = [(found[kind], found["none"]) for found in rounds[1:]]
        step = statistics.median(one.step_s for one, _ in pairs)
        wall = statistics.median(one.step_s / plain.step_s for one, plain in pairs)
        cpu = statistics.median(one.cpu_s / plain.cpu_s for one, plain in pairs)
        print(
            f"{streams:3} streams  {kind:8} step {1e3 * step:7.2f} ms, {wall:4.2f} of none   CPU {cpu:4.2f}", flush=True
        )
    print("load average", *(f"{value:.1f}" for value in os.getloadavg()), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", default="1,8,32")
    for name, value in (("--tokens", 48), ("--prompt", 24), ("--rounds", 11), ("--adapters", 4), ("--rank", 8)):
        parser.add_argument(name, type=int, default=value)
    args, rest = parser.parse_known_args()
    config = parse(rest, {}).replace(allow_runtime_lora=True, max_loras=max(1, args.adapters))
    pipe = PagedPipeline(config, replace(settings.resolve(config, 1 << 30, paged=True), blocks=BLOCKS))
    gc.collect()
    gc.freeze()
    with tempfile.TemporaryDirectory() as folder:
        several = [make(Path(folder) / f"a{n}", pipe, args.rank, n) for n in range(args.adapters)]
        for streams in map(int, args.streams.split(",")):
            compare(
                pipe, {"none": [""], "one": several[:1], "several": several, "half": ["", several[0]]}, streams, args
            )


if __name__ == "__main__":
    main()
