"""The paged engine's own part of a step: schedule, write the inputs, sample, append, make the records; the network
computes nothing.

The logits are random, the same in every step; their width is the vocabulary's. Times are CPU time of all threads and
wall time, in us: lowest tenth and median over steps in which every sequence gets one token.

python -m bench.paged_step [--streams 1,8,32,64] [--vocab 2048] [--scale S] [--KEY VALUE of paged.params.Params ...]
"""

from __future__ import annotations

import argparse
import gc
import os
import time
from types import SimpleNamespace
from typing import Any

import numpy as np

from bench.figures import quantile
from lean_ovms.engine.generation.sequence import GenerationRequest
from lean_ovms.engine.paged.engine import Engine
from lean_ovms.engine.paged.network import LOGITS_INPUT
from lean_ovms.engine.paged.params import Params
from lean_ovms.types import SamplingParams

NAMES = frozenset(
    ("input_ids", "position_ids", "past_lens", "subsequence_begins", "block_indices", "block_indices_begins")
)
BLOCK, CONTEXT = 32, 2048
OPTIONS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")


class NoNetwork:
    """network.Network without a network. The logits are restored outside of what is timed."""

    hybrid = adapting = False
    position_rows = 1
    image_shape = (0, 0)
    inputs = NAMES | {"max_context_len", LOGITS_INPUT}

    def __init__(self, vocab: int, scale: float, rows: int) -> None:
        self.vocab_size = vocab
        rng = np.random.default_rng(0)
        if scale:
            self._logits = rng.normal(0, scale, (rows, vocab)).astype(np.float32)
        else:  # as a trained model's: the logit falls with the logarithm of the rank
            ranked = 20 - 1.5 * np.log(np.arange(1, vocab + 1, dtype=np.float32))
            self._logits = rng.permuted(np.tile(ranked, (rows, 1)), axis=1)
        self.lines = self._logits.copy()
        self._wanted: Any = None

    def restore(self) -> None:
        """As the network would have written them. They are in the cache then as far as they fit, as after a forward."""
        self.lines[...] = self._logits

    def allocate(self, blocks: int, rows: int) -> None: ...

    def tensor(self, name: str, shape: list[int]) -> Any:
        made = SimpleNamespace(data=np.zeros(shape, np.int64 if "ids" in name else np.int32), shape=shape)
        if name == LOGITS_INPUT:
            self._wanted = made
        return made

    def start(self, prompts: bool) -> None: ...

    def infer(self, prompts: bool) -> Any:
        return self.wait()

    def wait(self) -> Any:
        return self.lines[: self._wanted.shape[0]]

    def copy_block(self, source: int, target: int) -> None: ...

    def copy_state(self, source: int, target: int) -> None: ...

    def clear_state(self, row: int) -> None: ...


def measure(streams: int, steps: int, args: argparse.Namespace) -> str:
    """One line of the table."""
    network = NoNetwork(args.vocab, args.scale, streams)
    blocks = streams * (CONTEXT // BLOCK)
    engine = Engine(network, blocks=blocks, block_size=BLOCK, context=CONTEXT, step_tokens=4096, max_sequences=8)
    asked = {name: getattr(args, name) for name in OPTIONS if getattr(args, name) is not None}
    for n in range(streams):
        sampling = SamplingParams(logprobs=args.logprobs >= 0, seeds=(n,))
        tokens = [i % args.vocab for i in range(n, n + 24)]
        request = GenerationRequest(n, sampling, {0}, prompt=tokens, max_tokens=1500, details=args.logprobs > 0)
        request.native = Params(logprobs=args.logprobs, **asked)
        engine.add(request)
    wall, cpu = [], []
    for number in range(steps + 20):
        network.restore()
        began, used = time.perf_counter(), time.process_time()
        engine.admit()
        engine.step()
        took = time.perf_counter() - began, time.process_time() - used
        engine.out.clear()
        if number >= 20:
            wall.append(took[0] * 1e6)
            cpu.append(took[1] * 1e6)
    figures = " / ".join(f"{quantile(values, mark):.0f}" for values in (wall, cpu) for mark in (0.1, 0.5))
    return f"{streams:4d} sequences: wall p10 / p50, CPU p10 / p50: {figures} us, load {os.getloadavg()[0]:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.paged_step", description=__doc__)
    parser.add_argument("--streams", default="1,8,32,64")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--vocab", type=int, default=2048)
    parser.add_argument("--scale", type=float, default=0.0, help="of random logits; 0: Zipf's law instead")
    parser.add_argument("--logprobs", type=int, default=-1)
    for name in OPTIONS:
        parser.add_argument(f"--{name}", type=int if name == "top_k" else float)
    args = parser.parse_args()
    gc.collect()
    gc.freeze()
    for streams in args.streams.split(","):
        print(measure(int(streams), args.steps, args), flush=True)


if __name__ == "__main__":
    main()
