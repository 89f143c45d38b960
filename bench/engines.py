"""Both engines for text in one process, in turns: openvino_genai's pipeline (LM_CB) and the paged one (PAGED).

Bare loops on the same interface (engine.generation.backend): N requests with random prompts are added, stepped and
read to their end. Per round both get the same prompts, in alternating order; the figures are medians over rounds and
the ratio is taken round by round, as the machine's load changes. Greedy tokens are compared as well.

python -m bench.engines [--streams 1,8,32,64] [--tokens 48] [--prompt 24] [--rounds 11] [--temperature T] [--top_p P]
[options of the server]
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from bench.direct import Requests
from lean_ovms.cli.arguments import parse
from lean_ovms.engine.generation.backend import Backend
from lean_ovms.engine.loading import settings
from lean_ovms.engine.paged import assemble
from lean_ovms.features.genai_pipelines.child.continuous import ContinuousPipeline
from lean_ovms.features.genai_pipelines.child.guard.backend import GuardedPipeline
from lean_ovms.types import SamplingParams

BLOCKS = 2000


@dataclass(slots=True)
class Round:
    """What one engine took for a batch of requests. step_s: the median of steps in which all decode."""

    wall_s: float
    cpu_s: float
    step_s: float
    tokens: list[list[int]]


def run(
    pipe: Backend, prompts: list[list[int]], tokens: int, sampling: SamplingParams, adapters: Sequence[str] = ("",)
) -> Round:
    """adapters: the requests have them in turns, as in protocol.Submit."""
    wall, cpu = time.perf_counter(), time.process_time()
    requests = Requests(pipe)
    handles = [
        requests.add(p, replace(sampling, seeds=(seed,)), tokens, adapter=adapters[seed % len(adapters)])
        for seed, p in enumerate(prompts)
    ]
    found: list[list[int]] = [[] for _ in handles]
    steps = []
    while requests.busy():
        start, outputs = time.perf_counter(), 0
        requests.step()
        for handle, ids in zip(handles, found, strict=True):
            if handle.can_read():
                ids += handle.read()[0].generated_ids
                outputs += 1
        if outputs == len(handles):
            steps.append(time.perf_counter() - start)
    took = time.perf_counter() - wall, time.process_time() - cpu
    return Round(*took, statistics.median(steps) if steps else 0.0, found)


def compare(pipes: list[Backend], streams: int, args: argparse.Namespace) -> str:
    """One line of the table. The first round of all is thrown away."""
    rng, rounds = random.Random(streams), []
    vocab = min(pipe.info.vocab_size for pipe in pipes)
    sampling = SamplingParams(temperature=args.temperature, top_p=args.top_p, ignore_eos=True)
    for number in range(args.rounds + 1):
        prompts = [[rng.randrange(3, vocab) for _ in range(args.prompt)] for _ in range(streams)]
        both: list[Round | None] = [None, None]
        for which in (0, 1) if number % 2 else (1, 0):
            both[which] = run(pipes[which], prompts, args.tokens, sampling)
        rounds.append([one for one in both if one is not None])
    rounds = rounds[1:]
    total = streams * args.tokens
    speed = [total / statistics.median(pair[i].wall_s for pair in rounds) for i in (0, 1)]
    wall = [pair[0].wall_s / pair[1].wall_s for pair in rounds]
    cpu = statistics.median(pair[0].cpu_s / pair[1].cpu_s for pair in rounds)
    step = [1e3 * statistics.median(pair[i].step_s for pair in rounds) for i in (0, 1)]
    same = sum(pair[0].tokens == pair[1].tokens for pair in rounds)
    return (
        f"{streams:4d} streams: {speed[0]:7.0f} / {speed[1]:7.0f} tokens/s, ratio {statistics.median(wall):.2f} "
        f"({min(wall):.2f}-{max(wall):.2f}), CPU ratio {cpu:.2f}, step {step[0]:.2f} / {step[1]:.2f} ms, "
        f"same tokens {same}/{len(rounds)}, load {os.getloadavg()[0]:.1f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.engines", description=__doc__)
    parser.add_argument("--streams", default="1,8,32,64")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--prompt", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--top_p", type=float, default=1.0)
    args, rest = parser.parse_known_args()
    config = parse(rest, {})
    made = replace(settings.resolve(config, 1 << 30), blocks=BLOCKS)
    pipes: list[Backend] = [
        GuardedPipeline.from_config(ContinuousPipeline(config, made), config),
        assemble.load(config.replace(pipeline_type="PAGED"), made),
    ]
    gc.collect()
    gc.freeze()
    print("openvino_genai / paged; a ratio above 1 means that the paged engine takes less")
    for streams in args.streams.split(","):
        print(compare(pipes, int(streams), args), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
