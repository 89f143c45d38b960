"""The paged engine with draft tokens and without, in turns, with so many of them accepted and at so many streams.

Acceptance is simulated. Answers are given, by a grammar that allows one token at a time, and a draft token is the right
one with the probability. So weights may be random, and the drafts are of any kind:

- ngrams: they take no time, and every text matches.
- model: a draft model of `--draft_mb` MB of int8 weights, in layers as a larger model has. It is really computed.
- head: the MTP head of the model, or with no model named, of the tests' tiny Qwen3.5 with `--draft_mb`.

--second is how often the alternative to a wrong draft token is right, where there is one; with 0 there are none.

With no model named it is the demo model, or that Qwen3.5, with `--ballast_mb`: weights that are read at every step and
add zero. Ratios by round, CPU time and wall time.

python -m bench drafts [--drafts ngrams] [--model_path DIR] [--weights i8] [--ballast_mb 200] [--draft_mb 24]
[--streams 1,2,4,8] [--accepted 0,0.5,0.7,0.9] [--second 0,0.4] [--tokens 128] [--rounds 3] [options of the server]
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import tarfile
import tempfile
import time
from array import array
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset13 as ops

from bench.direct import Requests
from lean_ovms.cli.arguments import parse
from lean_ovms.config import DEMO_MODEL, Config
from lean_ovms.engine.loading import settings
from lean_ovms.engine.paged import assemble
from lean_ovms.engine.paged.ir_weights import last_projection
from lean_ovms.engine.paged.pipeline import PagedPipeline
from lean_ovms.engine.paged.sampling.reductions import Logits
from lean_ovms.engine.paged.sampling.sampler import SamplingBatch
from lean_ovms.features.drafting.child import ngrams
from lean_ovms.features.drafting.child.drafter import Draft, Drafter
from lean_ovms.features.drafting.child.ngrams import NgramProposer
from lean_ovms.repository.weights import LANGUAGE_MODEL, MTP_HEAD
from lean_ovms.types import SamplingParams

ZOO = Path(__file__).parents[1] / "tests" / "data" / "zoo_vision"
FAMILY = "qwen3_5"
FIRST, LAST = 300, 2000
"""Token ids of the texts."""
PROMPT = 16
"""Tokens of a prompt."""
HIDDEN, WIDTH = 2048, 6144
BITS = {"f32": 32, "i8": 8, "i4": 4}


def weights(rows: int, columns: int, kind: str, dice: np.random.Generator) -> ov.Output:
    """Random weights of a layer: f32, i8 with a scale for each row, or i4 with a scale for each 128 of a row."""
    if kind == "f32":
        return ops.constant(dice.normal(0, columns**-0.5, (rows, columns)).astype(np.float32)).output(0)
    if kind == "i8":
        whole = ops.constant(dice.integers(-127, 128, (rows, columns)).astype(np.int8))
        scale = ops.constant(np.full((rows, 1), 0.014 * columns**-0.5, np.float16))
        return ops.convert(ops.multiply(ops.convert(whole, np.float16), scale), np.float32).output(0)
    shape = [rows, columns // 128, 128]
    packed = ov.Tensor(ov.Type.u4, ov.Shape(shape))
    packed.data.reshape(-1)[:] = dice.integers(0, 256, rows * columns // 2)
    zero, scale = (np.full((*shape[:2], 1), value, np.float16) for value in (8, 0.22 * columns**-0.5))
    values = ops.multiply(ops.subtract(ops.convert(ops.constant(packed), np.float16), ops.constant(zero)), scale)
    return ops.convert(ops.reshape(values, [rows, columns], False), np.float32).output(0)


def burdened(hidden: ov.Output, ballast_mb: int, kind: str) -> ov.Output:
    """Hidden states with zero added, computed with so many MB of weights in layers as a larger model has."""
    size = hidden.get_partial_shape()[-1].get_length()
    dice = np.random.default_rng(0)
    wide = ops.matmul(hidden, weights(HIDDEN, size, "f32", dice), False, True).output(0)
    for _ in range(max(1, (ballast_mb << 20) // (2 * HIDDEN * WIDTH * BITS[kind] // 8))):
        inner = ops.swish(ops.matmul(wide, weights(WIDTH, HIDDEN, kind, dice), False, True))
        wide = ops.add(wide, ops.matmul(inner, weights(HIDDEN, WIDTH, kind, dice), False, True)).output(0)
    nothing = ops.constant(np.zeros((size, HIDDEN), np.float32))
    return ops.add(hidden, ops.matmul(wide, nothing, False, True)).output(0)


def add_ballast(file: Path, ballast_mb: int, kind: str) -> None:
    """Adds so many MB of weights before the last projection of a network."""
    model = ov.Core().read_model(file)
    last = model.outputs[0].get_node() if file.name == MTP_HEAD else last_projection(model)[0]
    last.input(0).replace_source_output(burdened(last.input_value(0), ballast_mb, kind))
    model.validate_nodes_and_infer_types()
    ov.save_model(model, file.with_name(f"new_{file.name}"), compress_to_fp16=False)
    del model
    for old in (file, file.with_suffix(".bin")):
        old.with_name(f"new_{old.name}").replace(old)


def loaded_with(ballast_mb: int, directory: Path, kind: str = "f32") -> Path:
    """The demo model with ballast."""
    shutil.copytree(DEMO_MODEL, directory, dirs_exist_ok=True)
    add_ballast(directory / "openvino_model.xml", ballast_mb, kind)
    return directory


def with_head(ballast_mb: int, draft_mb: int, directory: Path, kind: str) -> Path:
    """The tests' Qwen3.5 with its head, both with ballast."""
    for archive in (f"{FAMILY}.tar.xz", "tokenizer.tar.xz", f"heads/{FAMILY}.tar.xz"):
        with tarfile.open(ZOO / archive) as packed:
            packed.extractall(directory)
    add_ballast(directory / LANGUAGE_MODEL, ballast_mb, kind)
    add_ballast(directory / MTP_HEAD, draft_mb, kind)
    return directory


def load(config: Config) -> PagedPipeline:
    return assemble.load(config, replace(settings.resolve(config, 1 << 30, paged=True), blocks=1000))


class Script:
    """A grammar.matcher.Matcher that allows one text alone."""

    def __init__(self, ids: list[int], at: int = 0) -> None:
        self._ids, self._at = ids, at

    def prepare(self) -> None: ...

    def apply(self, line: NDArray[np.float32]) -> None:
        """Nothing but the next token."""
        line[:] = -np.inf
        line[self._ids[self._at]] = 0

    def consume(self, token: int) -> bool:
        """The end of the text ends the grammar."""
        self._at += 1
        return self._at == len(self._ids)

    def forced(self) -> list[int]:
        """No draft tokens: they are to come from n-grams."""
        return []

    def fork(self) -> Script:
        """For another sequence."""
        return Script(self._ids, self._at)


class Simulation:
    """What draft tokens are replaced by. answers: by the tokens of the prompt."""

    def __init__(self) -> None:
        self.accepted = self.second = 0.0
        self.answers: dict[tuple[int, ...], list[int]] = {}
        self._dice = random.Random(1)

    def token(self, ids: array[int], place: int) -> int:
        """The token at this place of a text that begins with these, or a wrong one."""
        right = self.answers[tuple(ids[:PROMPT])][place - PROMPT]
        return right if self._dice.random() < self.accepted else right ^ 1

    def alternative(self, ids: array[int]) -> int:
        """The right token in the place of the last one, or a wrong one; a wrong one where that is right."""
        right = self.answers[tuple(ids[:PROMPT])][len(ids) - 1 - PROMPT]
        return right if ids[-1] != right and self._dice.random() < self.second else right ^ 2


SIMULATION = Simulation()


class SimulatedNgrams(NgramProposer):
    """Each text matches."""

    def propose(self, ids: array[int], most: int, few: bool) -> list[int]:
        count = len(super().propose(ids, most, few))
        self._proposed = [SIMULATION.token(ids, len(ids) + place) for place in range(count)]
        return list(self._proposed)

    def _match(self, ids: array[int]) -> tuple[int, int]:
        self._index(ids)
        return 1, self._longest


class SimulatedDrafter(Drafter):
    """A draft model or a head whose tokens are replaced; put before its own class."""

    def _sample(self, drafting: list[Draft], logits: Logits, batch: SamplingBatch) -> list[Draft]:
        going_on = super()._sample(drafting, logits, batch)
        for draft in drafting:
            ids = draft.text.ids
            ids[-1] = draft.sequence.draft_tokens[-1] = SIMULATION.token(ids, len(ids) - 1)
            if draft.sequence.alternatives:
                draft.alternative = SIMULATION.alternative(ids)
                draft.sequence.alternatives = [draft.alternative]
        return going_on


def simulated(config: Config, kind: str) -> PagedPipeline:
    """An engine with simulated drafts."""
    ngrams.NgramProposer = SimulatedNgrams  # type: ignore[misc]
    pipe = load(config.replace(enable_prefix_caching=False, ngram_speculation=kind == "ngrams"))
    if (proposer := pipe.scheduler.speculation.proposer) is not None:
        proposer.__class__ = type("Simulated", (SimulatedDrafter, type(proposer)), {})
    assert (proposer is None) is (kind == "ngrams")
    return pipe


def once(pipe: PagedPipeline, texts: list[tuple[list[int], list[int]]], longest: int = 0) -> tuple[float, float, int]:
    """CPU time and wall time of decoding the answers, and its steps."""
    pipe.blocks.clear_cache()
    asked = SamplingParams(temperature=0.0, ignore_eos=True, num_assistant_tokens=longest)
    requests = Requests(pipe)
    for prompt, answer in texts:
        requests.add(prompt, asked, len(answer))
        pipe.requests[requests._added].sequences[0].matcher = Script(answer)
    while len(pipe.scheduler.batch.decoding) < len(texts):
        requests.step()
    cpu, wall, steps = time.process_time(), time.perf_counter(), pipe.scheduler.steps
    while requests.busy():
        requests.step()
    return time.process_time() - cpu, time.perf_counter() - wall, pipe.scheduler.steps - steps


def compare(pipe: PagedPipeline, streams: int, arguments: argparse.Namespace) -> None:
    """Prints a line for each acceptance. Its first round with drafts is not counted."""
    dice, tokens, last = random.Random(streams), arguments.tokens, min(LAST, pipe.info.vocab_size)
    ngrams = pipe.scheduler.speculation.proposer is None
    texts = [
        ([dice.randrange(FIRST, last) for _ in range(PROMPT)], [dice.randrange(FIRST, last) for _ in range(tokens)])
        for _ in range(streams)
    ]
    SIMULATION.answers = {tuple(prompt): answer for prompt, answer in texts}
    rates = [[*map(float, each.split(","))] for each in (arguments.accepted, arguments.second)]
    proposer = pipe.scheduler.speculation.proposer
    trees = isinstance(proposer, Drafter) and proposer._trees
    for SIMULATION.accepted, SIMULATION.second in product(*rates):
        if isinstance(proposer, Drafter):
            proposer._trees = trees and SIMULATION.second > 0
        cpu, wall, steps = [], [], ([], [])
        for number in range(arguments.rounds + 1):
            found = {}
            for drafts in (1, 0) if number % 2 else (0, 1):
                pipe._speculative, pipe._ngrams = bool(drafts), bool(drafts and ngrams)
                found[drafts] = once(pipe, texts, arguments.longest)
            if number:
                cpu.append(found[0][0] / found[1][0])
                wall.append(found[0][1] / found[1][1])
                for drafts, (*_, count) in found.items():
                    steps[drafts].append(count)
        print(
            f"{streams:3} streams  {SIMULATION.accepted:4.0%} accepted, {SIMULATION.second:3.0%} second  "
            f"{statistics.mean(steps[0]):.0f} -> {statistics.mean(steps[1]):.0f} steps  "
            f"CPU {statistics.median(cpu):5.2f}  wall {statistics.median(wall):5.2f} of plain's speed",
            flush=True,
        )


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--drafts", choices=("ngrams", "model", "head"), default="ngrams")
    parser.add_argument("--weights", choices=BITS, default="i8")
    parser.add_argument("--streams", default="1,2,4,8")
    parser.add_argument("--accepted", default="0,0.5,0.7,0.9")
    parser.add_argument("--second", default="0")
    sizes = {"--ballast_mb": 200, "--draft_mb": 24, "--tokens": 128, "--rounds": 3, "--longest": 5}
    for name, value in sizes.items():
        parser.add_argument(name, type=int, default=value)
    arguments, rest = parser.parse_known_args(argv)
    config, kind = parse(rest, {}), arguments.drafts
    with tempfile.TemporaryDirectory() as directory:
        made = Path(directory)
        if kind == "head" and not config.model_path:
            path = with_head(arguments.ballast_mb, arguments.draft_mb, made / "model", arguments.weights)
            config = config.replace(model_path=str(path))
        elif not config.model_path:
            path = loaded_with(arguments.ballast_mb, made / "model", arguments.weights)
            config = config.replace(model_path=str(path))
        if kind == "model" and not config.value("draft_model_path"):
            path = loaded_with(arguments.draft_mb, made / "draft", arguments.weights)
            config = config.replace(draft_model_path=str(path))
        pipe = simulated(config, kind)
        for streams in map(int, arguments.streams.split(",")):
            compare(pipe, streams, arguments)
    print("load average", *(f"{value:.1f}" for value in os.getloadavg()))
