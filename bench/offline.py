"""An offline batch: 1,000 prompts through LLM.generate, and through openvino_genai's own generate, in turns.

Text in, text out, greedy, each answer --tokens long. genai: ContinuousBatchingPipeline.generate with all prompts in one
call, its scheduler with our limits of sequences and tokens, or with its defaults. ratios: of its time to ours, and of
its CPU time, which is valid on a busy machine, by round.

python -m bench offline [--model_path DIR] [--prompts 1000] [--words 32] [--tokens 32] [--rounds 5] [--cache_size 1]
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
from collections.abc import Callable

import openvino_genai as genai

from bench.processes import children, cpu_s
from bench.work import WORDS
from lean_ovms import LLM, SamplingParams
from lean_ovms.config import DEMO_MODEL, Config

Generate = Callable[[list[str]], list[str]]


def ours(llm: LLM, tokens: int) -> Generate:
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    return lambda prompts: [output.outputs[0].text for output in llm.generate(prompts, params, use_tqdm=False)]


def theirs(config: Config, tokens: int, *, limits: bool) -> Generate:
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = config.cache_size
    scheduler.enable_prefix_caching = config.enable_prefix_caching
    if limits:
        scheduler.max_num_batched_tokens = config.max_num_batched_tokens
        scheduler.max_num_seqs = config.max_num_seqs
    pipe = genai.ContinuousBatchingPipeline(config.model_path, scheduler, config.target_device, {})
    settings = pipe.get_config()
    settings.max_new_tokens, settings.ignore_eos, settings.do_sample = tokens, True, False
    settings.apply_chat_template = False
    return lambda prompts: [found.m_generation_ids[0] for found in pipe.generate(prompts, [settings] * len(prompts))]


def _cpu_s() -> float:
    """CPU time of this process, and of the engine."""
    return sum(cpu_s(pid) for pid in (os.getpid(), *children(os.getpid())))


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench offline", description=__doc__)
    parser.add_argument("--prompts", type=int, default=1000)
    parser.add_argument("--words", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model_path", default=DEMO_MODEL)
    parser.add_argument("--cache_size", type=int, default=1)
    arguments = parser.parse_args(argv)
    llm = LLM(arguments.model_path, cache_size=arguments.cache_size)
    config = llm._llm.config
    contestants = {
        "LLM": ours(llm, arguments.tokens),
        "genai, our limits": theirs(config, arguments.tokens, limits=True),
        "genai, its defaults": theirs(config, arguments.tokens, limits=False),
    }
    dice = random.Random(1)

    def texts() -> list[str]:
        return [" ".join(dice.choices(WORDS, k=arguments.words)) for _ in range(arguments.prompts)]

    for generate in contestants.values():
        generate(texts()[:64])
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in contestants}
    same = 0
    for number in range(arguments.rounds):
        prompts, answers = texts(), {}
        for name in list(contestants)[:: 1 if number % 2 else -1]:
            began, cpu_began = time.perf_counter(), _cpu_s()
            answers[name] = contestants[name](prompts)
            spent[name].append((time.perf_counter() - began, _cpu_s() - cpu_began))
        same += sum(a == b for a, b in zip(*list(answers.values())[:2], strict=True))
    for name, found in spent.items():
        wall, cpu = (statistics.median(one[i] for one in found) for i in (0, 1))
        ratios = [
            statistics.median(theirs[i] / ours[i] for ours, theirs in zip(spent["LLM"], found, strict=True))
            for i in (0, 1)
        ]
        rate = arguments.prompts * arguments.tokens / wall
        print(
            f"{name:20} {wall:6.2f} s {rate:6.0f} tokens/s, CPU {cpu:6.2f} s; ratios {ratios[0]:.2f}, {ratios[1]:.2f}"
        )
    print(f"same answers: {same} of {arguments.rounds * arguments.prompts}")
