"""The paged engine with a head for multi-token prediction and without, in turns: speed, CPU time and steps.

The model is the tiny Qwen3.5 of the tests with ballast, as in bench.drafts, and so is its head, which is right about
the texts that it is asked for. So any acceptance can be simulated: each draft token is made wrong with the rest's
probability. CPU time, ratios by round.

python -m bench.mtp [--weights i8] [--ballast_mb 200] [--head_mb 24] [--streams 1,4] [--accepted 0,0.5,0.7,0.9]
[--tokens 60] [--rounds 5] [options of the server]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tarfile
import tempfile
from dataclasses import replace
from pathlib import Path

import openvino as ov

from bench.drafts import BITS, burdened, load
from bench.engines import run
from lean_ovms.cli.arguments import parse
from lean_ovms.engine.paged.drafting.head import Head
from lean_ovms.engine.paged.heads import last_projection
from lean_ovms.engine.paged.pipeline import PagedPipeline
from lean_ovms.repository.model_dir import LANGUAGE_MODEL, MTP_HEAD
from lean_ovms.types import SamplingParams

ZOO = Path(__file__).parents[1] / "tests" / "data" / "zoo_vision"
NAME = "qwen3_5"


def unpacked(ballast: dict[str, int], kind: str, directory: Path) -> Path:
    """The model with its head; ballast: MB by file."""
    for archive in (f"{NAME}.tar.xz", "tokenizer.tar.xz", f"heads/{NAME}.tar.xz"):
        with tarfile.open(ZOO / archive) as packed:
            packed.extractall(directory)
    for name, ballast_mb in ballast.items():
        model = ov.Core().read_model(directory / name)
        last = model.outputs[0].get_node() if name == MTP_HEAD else last_projection(model)[0]
        last.input(0).replace_source_output(burdened(last.input_value(0), ballast_mb, kind))
        model.validate_nodes_and_infer_types()
        ov.save_model(model, directory / f"new_{name}", compress_to_fp16=False)
        del model
        for file in (directory / name, (directory / name).with_suffix(".bin")):
            file.with_name(f"new_{file.name}").replace(file)
    return directory


class Spoiled(Head):
    """A head whose draft tokens are right as often as is said, where it is right."""

    accepted = 1.0
    dice = random.Random(1)

    def propose(self, wanted: list) -> None:  # type: ignore[type-arg]
        super().propose(wanted)
        for sequence, _ in wanted:
            for place in range(len(sequence.draft_tokens)):
                if self.dice.random() >= self.accepted:
                    draft = self._drafts[sequence]
                    draft.text.ids[draft.base + place] ^= 1
                    sequence.draft_tokens[place] ^= 1


def compare(plain: PagedPipeline, headed: PagedPipeline, streams: int, arguments: argparse.Namespace) -> None:
    known = json.loads((ZOO / "heads" / "answers.json").read_text())[NAME]
    prompts = [known["texts"][i % len(known["texts"])][: known["prompt"]] for i in range(streams)]
    asked = SamplingParams(temperature=0.0, ignore_eos=True)
    for Spoiled.accepted in map(float, arguments.accepted.split(",")):
        speed, cpu = [], []
        for number in range(arguments.rounds):
            before = headed.scheduler.steps
            pair = {}
            for pipe in (plain, headed)[:: 1 if number % 2 else -1]:
                pair[pipe] = run(pipe, prompts, arguments.tokens, asked)
            assert pair[plain].tokens == pair[headed].tokens
            speed.append(pair[plain].wall_s / pair[headed].wall_s)
            cpu.append(pair[headed].cpu_s / pair[plain].cpu_s)
        print(
            f"{streams:3} streams  {Spoiled.accepted:4.0%} accepted  {statistics.median(speed):5.2f} of plain  "
            f"CPU {statistics.median(cpu):5.2f}  {headed.scheduler.steps - before:3} steps"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", choices=BITS, default="i8")
    parser.add_argument("--streams", default="1,4")
    parser.add_argument("--accepted", default="0,0.5,0.7,0.9")
    for name, value in (("--ballast_mb", 200), ("--head_mb", 24), ("--tokens", 60), ("--rounds", 5)):
        parser.add_argument(name, type=int, default=value)
    arguments, rest = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as directory:
        ballast = {LANGUAGE_MODEL: arguments.ballast_mb, MTP_HEAD: arguments.head_mb}
        path = unpacked(ballast, arguments.weights, Path(directory))
        config = replace(parse(rest, {}), model_path=str(path), enable_prefix_caching=False)
        plain, headed = load(replace(config, mtp="false")), load(config)
        assert isinstance(headed.scheduler.proposer, Head)
        headed.scheduler.proposer.__class__ = Spoiled
        for streams in map(int, arguments.streams.split(",")):
            compare(plain, headed, streams, arguments)
    print("load average", *(f"{value:.1f}" for value in os.getloadavg()))


if __name__ == "__main__":
    main()
