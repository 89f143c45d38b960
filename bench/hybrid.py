"""The prefix cache of a hybrid model: the next turns of a long conversation, agents with one system prompt, and what
the cache costs where nothing is repeated.

Prompts are random tokens. CPU times are those of the whole process up to the first token. `python -m tools.random_model
FOLDER --shape qwen3.5-0.8b` makes a model with Qwen3.5-0.8B's shape and random weights.

python -m bench.hybrid --model_path FOLDER [--conversation 4000] [--agents 8] [--system 1000] [--rounds 5]
[options of the server]
"""

from __future__ import annotations

import argparse
import os
import random
import time

from bench import figures
from bench.direct import Requests
from bench.engines import run
from bench.work import turns
from lean_ovms.cli.arguments import parse
from lean_ovms.engine.paged.pipeline import PagedPipeline
from lean_ovms.types import SamplingParams

SAMPLING = SamplingParams(temperature=0.0, ignore_eos=True)
NEW = 60
"""Tokens of a user's message."""


def words(dice: random.Random, count: int) -> list[int]:
    return [dice.randrange(3, 2000) for _ in range(count)]


def turn(pipe: PagedPipeline, prompt: list[int]) -> tuple[float, float, list[int]]:
    """Returns wall and CPU seconds to the first token of an answer, and its 16 tokens."""
    wall, cpu, requests = time.perf_counter(), time.process_time(), Requests(pipe)
    handle, ids = requests.add(prompt, SAMPLING, 16), []
    took = 0.0, 0.0
    while requests.busy():
        requests.step()
        if handle.can_read():
            took = took if ids else (time.perf_counter() - wall, time.process_time() - cpu)
            ids += handle.read()[0].generated_ids
    return *took, ids


def conversation(pipe: PagedPipeline, tokens: int) -> None:
    dice = random.Random(1)
    prompt, first = words(dice, tokens), (0.0, 0.0)
    for number in (1, 2, 3):
        wall, cpu, answer = turn(pipe, prompt)
        first = first if number > 1 else (wall, cpu)
        shares = f"{100 * wall / first[0]:.1f} % of the first's wall time, {100 * cpu / first[1]:.1f} % of its CPU time"
        print(f"turn {number}: {len(prompt)} tokens, {wall:.2f} s, {cpu:.2f} s of CPU time: {shares}")
        prompt = prompt + answer + words(dice, NEW)


def agents(pipe: PagedPipeline, count: int, system: int) -> None:
    """Agents that come together, then one that comes alone."""
    dice = random.Random(2)
    common = words(dice, system)
    prompts = [common + words(dice, NEW) for _ in range(count + 1)]
    together = run(pipe, prompts[:count], 16, SAMPLING)
    _, cpu, _ = turn(pipe, prompts[count])
    _, cold, _ = turn(pipe, words(dice, system + NEW))
    print(f"{count} agents with {system} common tokens of {system + NEW}: {together.cpu_s:.2f} s of CPU time,")
    print(f"one more to its first token {cpu:.2f}, one with another system prompt {cold:.2f}")


def unrepeated(pipes: dict[str, PagedPipeline], rounds: int) -> None:
    dice = random.Random(3)
    cpu: dict[str, list[float]] = {name: [] for name in pipes}
    prompts = [[words(dice, 100) for _ in range(4)] for _ in range(rounds + 1)]
    for number, name in turns(list(pipes), rounds + 1):
        took = run(pipes[name], prompts[number], 32, SAMPLING).cpu_s
        if number:
            cpu[name].append(took)
    ratio = figures.ratios(*cpu.values())["median"]
    print(f"4 streams, nothing repeated: CPU time {ratio:.3f} of that without a prefix cache")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("--conversation", 4000), ("--agents", 8), ("--system", 1000), ("--rounds", 5)):
        parser.add_argument(name, type=int, default=value)
    arguments, rest = parser.parse_known_args()
    config = parse(rest, {}).replace(pipeline_type="PAGED")
    pipe = PagedPipeline(config)
    if arguments.rounds:
        unrepeated(
            {"with": pipe, "without": PagedPipeline(config.replace(enable_prefix_caching=False))}, arguments.rounds
        )
    if arguments.conversation:
        conversation(pipe, arguments.conversation)
    if arguments.agents:
        agents(pipe, arguments.agents, arguments.system)
    used, total = (pipe.info.state_bytes * count / 1e6 for count in (pipe.states.checkpoints, pipe.states.total))
    print(f"{pipe.states.checkpoints} checkpoints, {used:.0f} MB of {total:.0f} MB for states")
    print("load average", *(f"{value:.1f}" for value in os.getloadavg()))


if __name__ == "__main__":
    main()
