"""The prefix cache on disk: the first token of a long prompt after a restart, the hits of many conversations, and what
writing costs the steps.

Prompts are random tokens; the engine is in this process. Conversations come again at random, more of them than memory
has blocks for, and their hits are compared with those of a cache of so many bytes that forgets what was used longest
ago. What writing costs: two engines, one with a directory, compute the same prompts in turns, each of which pushes
others out of memory.

python -m bench restart [--tokens 16000] [--conversations 1000] [--length 2000] [--rounds 8] [options of the
server]
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bench.direct import Requests
from bench.work import turns
from lean_ovms.cli.arguments import parse
from lean_ovms.config import Config
from lean_ovms.engine.loading import settings
from lean_ovms.engine.paged import assemble
from lean_ovms.engine.paged.pipeline import PagedPipeline
from lean_ovms.features.disk_cache.child.tier import DiskTier
from lean_ovms.features.disk_cache.feature import METRIC, DiskCacheOptions
from lean_ovms.types import SamplingParams

BLOCK = 32
CLOSE_S = 600.0
SAMPLING = SamplingParams(temperature=0.0, ignore_eos=True)


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


def pipeline(config: Config, blocks: int = 0) -> PagedPipeline:
    """blocks: of the KV cache; 0: as many as the options say."""
    made = settings.resolve(config, settings.free_memory_bytes(), paged=True)
    return assemble.load(config, replace(made, blocks=blocks) if blocks else made)


def close(pipe: PagedPipeline) -> None:
    """Writes all that is in memory, however long it takes."""
    [tier] = pipe.hooks
    assert isinstance(tier, DiskTier)
    tier.close(CLOSE_S)


def first_token(config: Config, tokens: int) -> None:
    prompt = words(random.Random(1), tokens)
    pipe = pipeline(config)
    cold, cold_cpu, answer = turn(pipe, prompt)
    begin = time.perf_counter()
    close(pipe)
    closing = time.perf_counter() - begin
    written = pipe.stats().of_features[f"{METRIC}written_bytes_total"]
    del pipe
    for file in Path(config.of(DiskCacheOptions).prefix_cache_path).glob("*/*.data"):
        with file.open("rb") as opened:  # else it is read from memory
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    pipe = pipeline(config)
    warm, cpu, again = turn(pipe, prompt)
    stats = pipe.stats().of_features
    close(pipe)
    print(f"{tokens} tokens, cold: {cold:.2f} s, {cold_cpu:.2f} s of CPU time; {written / 1e6:.0f} MB", end=" ")
    print(f"written in {closing:.2f} s")
    print(f"after a restart: {warm:.3f} s ({100 * warm / cold:.2f} %), {cpu:.3f} s of CPU time,", end=" ")
    print(f"{stats[f'{METRIC}hit_tokens_total']} tokens from disk,", end=" ")
    print(f"{stats[f'{METRIC}read_bytes_total'] / 1e6 / max(stats[f'{METRIC}read_seconds_total'], 1e-9):.0f} MB/s read")
    print("the answers are equal" if again == answer else f"THE ANSWERS DIFFER: {answer} {again}")


def conversations(config: Config, count: int, length: int) -> None:
    """Each conversation once, then as many at random."""
    blocks = length // BLOCK * 3
    pipe, dice = pipeline(config, blocks), random.Random(2)
    block_bytes = pipe._model.block_bytes
    room = int(config.of(DiskCacheOptions).prefix_cache_disk_gb * (1 << 30)) // (length // BLOCK * block_bytes)
    order = [*range(count), *(dice.randrange(count) for _ in range(count))]
    known: OrderedDict[int, None] = OrderedDict()
    expected = hits = tokens = 0
    for number, which in enumerate(order):
        turn(pipe, words(random.Random(which), length))
        if number >= count:
            expected += which in known
            tokens += length
        elif number == count - 1:
            hits = pipe.stats().of_features[f"{METRIC}hit_tokens_total"]
        known.pop(which, None)
        known[which] = None
        while len(known) > room:
            known.popitem(last=False)
    stats = pipe.stats().of_features
    close(pipe)
    print(f"{count} conversations of {length} tokens, {block_bytes} bytes a block, room for {room} on disk:", end=" ")
    print(f"{100 * (stats[f'{METRIC}hit_tokens_total'] - hits) / tokens:.1f} % of the tokens read from disk,", end=" ")
    print(f"{100 * expected / count:.1f} % by arithmetic (of them two in memory);", end=" ")
    dropped, removed = (stats[f"{METRIC}{name}_total"] for name in ("dropped_blocks", "removed_bytes"))
    print(f"{dropped} blocks dropped, {removed / 1e6:.0f} MB removed")


def steps(config: Config, rounds: int, length: int) -> None:
    """Prompts that push others out of memory, with and without a tier."""
    blocks = length // BLOCK * 2
    pipes = {"with": pipeline(config, blocks), "without": pipeline(config.replace(prefix_cache_path=""), blocks)}
    took: dict[str, list[tuple[float, float]]] = {name: [] for name in pipes}
    dice = random.Random(3)
    prompts = [words(dice, length) for _ in range(rounds + 3)]
    for number, name in turns(list(pipes), len(prompts)):
        wall, cpu, _ = turn(pipes[name], prompts[number])
        if number > 2:
            took[name].append((wall, cpu))
    stats = pipes["with"].stats().of_features
    close(pipes["with"])
    ratios = [
        statistics.median(a[part] / b[part] for a, b in zip(took["with"], took["without"], strict=True))
        for part in (0, 1)
    ]
    print(
        f"{rounds} prompts of {length} tokens while {stats[f'{METRIC}written_bytes_total'] / 1e6:.0f} MB are written:",
        end=" ",
    )
    print(f"{ratios[0]:.3f} of the time without, {ratios[1]:.3f} of the CPU time;", end=" ")
    print(f"{stats[f'{METRIC}dropped_blocks_total']} blocks dropped")


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("--tokens", 16_000), ("--conversations", 1000), ("--length", 2000), ("--rounds", 8)):
        parser.add_argument(name, type=int, default=value)
    arguments, rest = parser.parse_known_args(argv)
    with tempfile.TemporaryDirectory(prefix="bench-restart-") as folder:
        config = parse(rest, {}).replace(pipeline_type="PAGED", prefix_cache_path=folder)
        if arguments.tokens:
            first_token(config, arguments.tokens)
        if arguments.conversations:
            conversations(config, arguments.conversations, arguments.length)
        if arguments.rounds:
            steps(config, arguments.rounds, arguments.length)
    print("load average", *(f"{value:.1f}" for value in os.getloadavg()))
