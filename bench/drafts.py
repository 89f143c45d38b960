"""The paged engine with a draft model and without, in turns: tokens a second and steps.

The main model is the demo model with ballast: weights that are read at every step and add zero. So it costs what a
larger one does, and its answers are known to its drafts as well as the demo model's are: the demo model itself is
always right, `--draft_model_path DIR` names another. Chats of one user with the questions below; ratios by round.

python -m bench.drafts [--ballast_mb 200] [--streams 1,4,16] [--tokens 64] [--rounds 5] [--guesses 5] [--temperature T]
[options of the server]
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from bench.engines import Round, run
from lean_ovms.cli.arguments import parse
from lean_ovms.config import DEMO_MODEL, Config
from lean_ovms.engine.loading import settings
from lean_ovms.engine.paged.heads import last_projection
from lean_ovms.engine.paged.pipeline import PagedPipeline
from lean_ovms.types import SamplingParams

QUESTIONS = ("Hello!", "What is the capital of France?", "Count from 1 to 9.", "Tell me a story.", "What is 2 + 3?")
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


def loaded_with(ballast_mb: int, directory: Path, kind: str = "f32") -> Path:
    """The demo model, with so many MB of weights more before its last projection, in layers as a larger model has."""
    shutil.copytree(DEMO_MODEL, directory, dirs_exist_ok=True)
    for name in ("openvino_model.xml", "openvino_model.bin"):
        (directory / name).unlink()
    model = ov.Core().read_model(Path(DEMO_MODEL) / "openvino_model.xml")
    projection, _ = last_projection(model)
    projection.input(0).replace_source_output(burdened(projection.input_value(0), ballast_mb, kind))
    model.validate_nodes_and_infer_types()
    ov.save_model(model, directory / "openvino_model.xml", compress_to_fp16=False)
    return directory


def load(config: Config) -> PagedPipeline:
    return PagedPipeline(config, replace(settings.resolve(config, 1 << 30, paged=True), blocks=1000))


def compare(pipes: dict[str, PagedPipeline], count: int, arguments: argparse.Namespace) -> None:
    """Print a line for each pipeline."""
    asked = SamplingParams(temperature=arguments.temperature, ignore_eos=True, num_assistant_tokens=arguments.guesses)
    rounds: dict[str, list[Round]] = {name: [] for name in pipes}
    steps = dict.fromkeys(pipes, 0)
    for number in range(arguments.rounds):
        for name in list(pipes)[:: 1 if number % 2 else -1]:
            pipe = pipes[name]
            before = pipe.scheduler.steps
            prompts = [
                pipe.encode(f"<|im_start|>user\n{QUESTIONS[i % 5]}<|im_end|>\n<|im_start|>assistant\n", False)
                for i in range(count)
            ]
            rounds[name].append(run(pipe, prompts, arguments.tokens, asked))
            steps[name] = pipe.scheduler.steps - before
    plain = next(iter(rounds.values()))
    for name, found in rounds.items():
        ratio = statistics.median(a.wall_s / b.wall_s for a, b in zip(plain, found, strict=True))
        cpu = statistics.median(b.cpu_s / a.cpu_s for a, b in zip(plain, found, strict=True))
        same = all(a.tokens == b.tokens for a, b in zip(plain, found, strict=True))
        rate = count * arguments.tokens / statistics.median(one.wall_s for one in found)
        print(
            f"{count:3} streams  {name:10} {rate:7.0f} tokens/s  {ratio:5.2f} of plain  CPU {cpu:5.2f}  "
            f"{steps[name]:3} steps  {'same tokens' if same else 'OTHER TOKENS'}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ballast_mb", type=int, default=200)
    parser.add_argument("--streams", default="1,4,16")
    for name, value in (("--tokens", 64), ("--rounds", 5), ("--guesses", 5)):
        parser.add_argument(name, type=int, default=value)
    parser.add_argument("--temperature", type=float, default=0.0)
    arguments, rest = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as directory:
        config = parse(rest, {})
        drafts = {"plain": "", "itself": str(DEMO_MODEL)}
        if config.draft_model_path:
            drafts["draft"] = config.draft_model_path
        path = str(loaded_with(arguments.ballast_mb, Path(directory)))
        pipes = {n: load(replace(config, model_path=path, draft_model_path=d)) for n, d in drafts.items()}
        for count in map(int, arguments.streams.split(",")):
            compare(pipes, count, arguments)
    print("load average", *(f"{value:.1f}" for value in os.getloadavg()))


if __name__ == "__main__":
    main()
