"""Compares the paged engine with and without draft tokens, at given rates of acceptance and numbers of streams.

Acceptance is simulated. A grammar that allows one token at a time forces the answers, and a draft token is right with
the given probability, so the weights may be random. All kinds of drafts can be measured: those of a draft model
(`--draft_model_path`), which is really computed, of the model's MTP head, or else of n-grams, which take no time and
match at every text.

--second is the probability that the alternative to a wrong draft token is right; with 0 there are no alternatives. The
steps of the demo model are too short to gain from drafts: tools.random_model makes larger models, and draft models with
fewer --layers. All other arguments are options of the server.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from array import array
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from bench import figures
from bench.direct import Requests
from bench.report import Report, options
from bench.work import turns
from lean_ovms.cli.arguments import parse
from lean_ovms.config import Config
from lean_ovms.engine.loading import settings
from lean_ovms.engine.paged import assemble
from lean_ovms.engine.paged.engine import PagedPipeline
from lean_ovms.engine.paged.sampling.reductions import Logits
from lean_ovms.engine.paged.sampling.sampler import SamplingBatch
from lean_ovms.features.drafting.child import ngrams
from lean_ovms.features.drafting.child.drafter import Draft, Drafter
from lean_ovms.features.drafting.child.ngrams import NgramProposer
from lean_ovms.types import SamplingParams

FIRST, LAST = 300, 2000
"""The range of token ids in the texts."""
PROMPT = 16
"""The number of tokens in a prompt."""


class Script:
    """An engine.paged.sequence.Matcher that allows a single text."""

    def __init__(self, ids: list[int], at: int = 0) -> None:
        self._ids, self._at = ids, at

    def prepare(self) -> None: ...

    def apply(self, line: NDArray[np.float32]) -> None:
        """Allows only the next token of the text."""
        line[:] = -np.inf
        line[self._ids[self._at]] = 0

    def consume(self, token: int) -> bool:
        """Moves on by one token. Returns whether the text has ended."""
        self._at += 1
        return self._at == len(self._ids)

    def forced(self) -> list[int]:
        """Returns no draft tokens, although each token is known: they must come from the drafts that are measured."""
        return []

    def fork(self) -> Script:
        """Returns a copy for another sequence."""
        return Script(self._ids, self._at)


class Simulation:
    """Replaces draft tokens by right and wrong ones. `answers` has the answer for the tokens of each prompt."""

    def __init__(self) -> None:
        self.accepted = self.second = 0.0
        self.answers: dict[tuple[int, ...], list[int]] = {}
        self._dice = random.Random(1)

    def token(self, ids: array[int], place: int) -> int:
        """Returns a draft token, right or wrong.

        Args:
            ids: The text so far, which begins with a prompt.
            place: The position of the token in the text.
        """
        right = self.answers[tuple(ids[:PROMPT])][place - PROMPT]
        return right if self._dice.random() < self.accepted else right ^ 1

    def alternative(self, ids: array[int]) -> int:
        """Returns an alternative to the last token, which is never right if that token is."""
        right = self.answers[tuple(ids[:PROMPT])][len(ids) - 1 - PROMPT]
        return right if ids[-1] != right and self._dice.random() < self.second else right ^ 2


SIMULATION = Simulation()


class SimulatedNgrams(NgramProposer):
    """An n-gram drafter that finds a match in every text, and whose tokens are replaced."""

    def propose(self, ids: array[int], most: int, few: bool) -> list[int]:
        count = len(super().propose(ids, most, few))
        self._proposed = [SIMULATION.token(ids, len(ids) + place) for place in range(count)]
        return list(self._proposed)

    def _match(self, ids: array[int]) -> tuple[int, int]:
        self._index(ids)
        return 1, self._longest


class SimulatedDrafter(Drafter):
    """A draft model or MTP head whose tokens are replaced. It is put in front of the real class in the inheritance
    order."""

    def _sample(self, drafting: list[Draft], logits: Logits, batch: SamplingBatch) -> list[Draft]:
        going_on = super()._sample(drafting, logits, batch)
        for draft in drafting:
            ids = draft.text.ids
            ids[-1] = draft.sequence.draft_tokens[-1] = SIMULATION.token(ids, len(ids) - 1)
            if draft.sequence.alternatives:
                draft.alternative = SIMULATION.alternative(ids)
                draft.sequence.alternatives = [draft.alternative]
        return going_on


def simulated(config: Config) -> PagedPipeline:
    """Returns an engine with simulated drafts."""
    config = config.replace(enable_prefix_caching=False, ngram_speculation=True)
    pipe = assemble.load(config, replace(settings.resolve(config, 1 << 30, paged=True), blocks=1000))
    if (proposer := pipe.scheduler.speculation.source.drafter) is not None:
        proposer.__class__ = type("Simulated", (SimulatedDrafter, type(proposer)), {})
    return pipe


def once(pipe: PagedPipeline, texts: list[list[list[int]]], longest: int) -> tuple[float, float, int]:
    """Measures the decoding of all answers.

    Args:
        pipe: The engine.
        texts: The prompt and the answer of each stream.
        longest: The most draft tokens per step.

    Returns:
        The CPU time and the wall time in seconds, and the number of steps.
    """
    pipe.blocks.clear_cache()
    asked = SamplingParams(temperature=0.0, ignore_eos=True, num_assistant_tokens=longest)
    requests = Requests(pipe)
    for prompt, answer in texts:
        requests.add(prompt, asked, len(answer))
        pipe.requests[len(requests._new)].sequences[0].matcher = Script(answer)
    while len(pipe.scheduler.batch.decoding) < len(texts):
        requests.step()
    cpu, wall, steps = time.process_time(), time.perf_counter(), pipe.scheduler.steps
    while requests.busy():
        requests.step()
    return time.process_time() - cpu, time.perf_counter() - wall, pipe.scheduler.steps - steps


def compare(report: Report, pipe: PagedPipeline, streams: int, args: argparse.Namespace) -> None:
    """Reports a row for each rate of acceptance. The first round with and without drafts is a warm-up."""
    dice, last = random.Random(streams), min(LAST, pipe.info.vocab_size)
    proposer = pipe.scheduler.speculation.source.drafter
    texts = [
        [[dice.randrange(FIRST, last) for _ in range(size)] for size in (PROMPT, args.tokens)] for _ in range(streams)
    ]
    SIMULATION.answers = {tuple(prompt): answer for prompt, answer in texts}
    trees = isinstance(proposer, Drafter) and proposer._trees
    for SIMULATION.accepted, SIMULATION.second in product(numbers(args.accepted), numbers(args.second)):
        if isinstance(proposer, Drafter):
            proposer._trees = trees and SIMULATION.second > 0
        found: dict[bool, list[tuple[float, float, int]]] = {False: [], True: []}
        for number, drafts in turns([False, True], args.rounds + 1):
            pipe._speculative = drafts
            pipe._drafting = replace(pipe._drafting, ngrams=drafts and proposer is None)
            taken = once(pipe, texts, args.longest)
            if number:
                found[drafts].append(taken)
        (cpu, wall, steps), (cpu_with, wall_with, steps_with) = (zip(*found[drafts], strict=True) for drafts in found)
        report.row(
            case=f"{streams} streams, {SIMULATION.accepted:.0%} accepted, {SIMULATION.second:.0%} second",
            cpu_speed=figures.ratios(cpu, cpu_with),
            wall_speed=figures.ratios(wall, wall_with),
            steps=statistics.mean(steps),
            steps_with_drafts=statistics.mean(steps_with),
        )


def numbers(text: str) -> list[float]:
    """Returns the numbers in a comma-separated option."""
    return [float(each) for each in text.split(",")]


def main(argv: Sequence[str]) -> None:
    """Reports a row for each number of streams and rate of acceptance."""
    parser = options("drafts", __doc__)
    for name, value in (("--streams", "1,2,4,8"), ("--accepted", "0,0.5,0.7,0.9"), ("--second", "0")):
        parser.add_argument(name, default=value)
    for name, count in (("--tokens", 128), ("--rounds", 3), ("--longest", 5)):
        parser.add_argument(name, type=int, default=count)
    args, rest = parser.parse_known_args(argv)
    report = Report("drafts", args)
    with patch.object(ngrams, "NgramProposer", SimulatedNgrams):
        pipe = simulated(parse(rest, {}))
        for streams in map(int, args.streams.split(",")):
            compare(report, pipe, streams, args)
    columns = ("case", "cpu_speed", "wall_speed", "steps", "steps_with_drafts")
    report.table("of the speed without draft tokens, by CPU time and by wall time", columns)
