"""Training: a fixed number of steps from fixed seeds, with checkpoints to resume from.

The data of step n depend only on n, so an interrupted run continues as if it had not been interrupted.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import Qwen3ForCausalLM

from tools import demo_weights
from tools.demo_model import drills
from tools.demo_model import model as network
from tools.demo_model.corpus import Renderer, draw
from tools.demo_model.dialog import Dialog
from tools.demo_model.forms import Written
from tools.demo_model.lessons import lesson
from tools.demo_model.tokenizer import pieces

# One shape is compiled for each length. A batch has about tokens_per_step tokens, whatever its length.
LENGTHS = (48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 512)


@dataclass(frozen=True, slots=True)
class Plan:
    """All parameters of a training run.

    `rates` has corners of the learning rate as (step, share of the full rate), connected by straight lines. `practice`
    has the lessons from a step on, and their shares of the dialogs.
    """

    rates: tuple[tuple[int, float], ...]
    practice: tuple[tuple[int, dict[str, float]], ...] = ((0, {}),)
    tokens_per_step: int = 4096
    rows_per_step: int = 1536  # tokens that are learned: all of the answers, and some of the prompts
    bfloat16: bool = True  # not faster without torch.compile
    lr_matrices: float = 0.015
    lr_rest: float = 0.003
    seed: int = 1

    def dialog(self, step: int, seed: int) -> Dialog | Written:
        kind = seed % 1000 / 1000
        bound = 0.0
        for name, share in next(shares for first, shares in reversed(self.practice) if first <= step).items():
            bound += share
            if kind < bound:
                return lesson(name, seed)
        return draw(seed)[0]

    @property
    def steps(self) -> int:
        return self.rates[-1][0]

    def cut(self, steps: int | None) -> Plan:
        """Returns this plan, ended after a number of steps; None: unchanged."""
        if steps is None or steps >= self.steps:
            return self
        return replace(self, rates=(*(corner for corner in self.rates if corner[0] < steps), (steps, self.rate(steps))))

    def rate(self, step: int) -> float:
        for (before, low), (after, high) in itertools.pairwise(self.rates):
            if step <= after:
                return low + (high - low) * (step - before) / (after - before)
        return self.rates[-1][1]


# The rate falls to zero, then rises again for the lesson of errands (tools/README.md has the measurements).
MAIN_PLAN = Plan(
    rates=((-1, 0.0), (99, 1.0), (2500, 1.0), (5000, 3200 / 5700), (8600, 0.0), (8640, 0.2), (9900, 0.0)),
    practice=(
        (0, {}),
        (3776, {"lists": 0.25}),
        (5056, {"lists": 0.08}),
        (6016, {"lists": 0.06, "tools": 0.2}),
        (8640, {"lists": 0.04, "tools": 0.1, "errands": 0.14, "json": 0.05}),
    ),
)
# Starts with the exported weights of MAIN_PLAN, and trains answers under a schema and questions after long texts. The
# model forgets too much of the rest (tools/README.md), which KEEP_PLAN restores.
TUNE_PLAN = Plan(
    rates=((-1, 0.0), (15, 0.22), (180, 0.22), (200, 0.2024), (420, 0.0)),
    practice=(
        (0, {"lists": 0.06, "tools": 0.1, "errands": 0.1, "json": 0.04, "schema": 0.36, "texts": 0.08}),
        (192, {"lists": 0.06, "tools": 0.1, "errands": 0.1, "json": 0.04, "short_lists": 0.42, "texts": 0.08}),
    ),
    tokens_per_step=1024,
    rows_per_step=512,
    bfloat16=False,
    seed=3,
)
# Starts with a mixture of the weights before and after TUNE_PLAN. Answers under a schema are learned from the text, and
# all others from the probabilities of the weights before TUNE_PLAN.
KEEP_PLAN = Plan(
    rates=((-1, 0.0), (10, 0.15), (120, 0.15), (380, 0.0107)),
    practice=(
        (0, {"lists": 0.02, "tools": 0.16, "errands": 0.08, "json": 0.03, "short_lists": 0.4, "texts": 0.04}),
        (192, {"lists": 0.02, "tools": 0.3, "errands": 0.1, "json": 0.02, "short_lists": 0.3, "texts": 0.03}),
    ),
    tokens_per_step=1536,
    rows_per_step=768,
    bfloat16=False,
    seed=4,
)
TUNED_SHARE = 0.8  # the share of the weights after TUNE_PLAN in the mixture that KEEP_PLAN starts with
# The largest singular values of a matrix's change contain what was learned; the others are noise.
CHANGE_RANK = 40
DRAFT_PLAN = Plan(rates=((-1, 0.0), (99, 1.0), (1200, 0.0)), seed=2)
SHARD_STEPS = 64
SAVE_STEPS = 50

Line = tuple[list[int], list[float], bool]  # tokens, their weights, whether a teacher is followed


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch. `rows` are places in the flattened `ids`; `weights` are those of the token after each of these places.

    `kept` is true for lines of `ids` in which the teacher's probabilities are learned in place of the text's tokens.
    """

    ids: torch.Tensor
    rows: torch.Tensor
    weights: torch.Tensor
    kept: torch.Tensor


def pack(r: random.Random, plan: Plan, lines: list[Line]) -> Batch:
    """Makes a batch of lines. Its rows are all answer tokens, and random other tokens as far as there is room."""
    following = [weight for _, weights, _ in lines for weight in (*weights[1:], 0.0)]
    answers = [i for i, weight in enumerate(following) if weight == 1.0]
    others = [i for i, weight in enumerate(following) if 0.0 < weight < 1.0]
    r.shuffle(answers)
    r.shuffle(others)
    rows = sorted((answers + others)[: plan.rows_per_step])
    weights = [following[i] for i in rows]
    missing = plan.rows_per_step - len(rows)
    rows, weights = rows + [0] * missing, weights + [0.0] * missing
    kept = torch.tensor([kept for _, _, kept in lines])
    return Batch(torch.tensor([ids for ids, _, _ in lines]), torch.tensor(rows), torch.tensor(weights), kept)


def shard(renderer: Renderer, plan: Plan, index: int, pad: int) -> list[Batch]:
    """Returns the batches of SHARD_STEPS steps. Dialogs are sorted by length, so that there is little padding."""
    r = random.Random(plan.seed * 1_000_003 + index)
    buckets: dict[int, list[Line]] = {length: [] for length in LENGTHS}
    batches: list[Batch] = []
    while len(batches) < SHARD_STEPS:
        dialogs = [plan.dialog(index * SHARD_STEPS, r.getrandbits(60)) for _ in range(256)]
        for ids, weights, kept in lines(renderer, dialogs):
            length = next((n for n in LENGTHS if len(ids) <= n), None)
            if length is None:
                continue  # too long, which about one in a hundred is
            bucket = buckets[length]
            bucket.append((ids + [pad] * (length - len(ids)), weights + [0.0] * (length - len(ids)), kept))
            if len(bucket) == max(1, plan.tokens_per_step // length):
                batches.append(pack(r, plan, bucket))
                bucket.clear()
    batches = batches[:SHARD_STEPS]
    r.shuffle(batches)
    return batches


def lines(renderer: Renderer, dialogs: list[Dialog | Written]) -> Iterator[Line]:
    for ids, weights in renderer.examples([d for d in dialogs if isinstance(d, Dialog)]):
        yield ids, weights, True
    for written in dialogs:
        if isinstance(written, Written):
            yield *renderer.written(written), False


def stream(renderer: Renderer, plan: Plan, first: int, pad: int) -> Iterator[Batch]:
    for index in range(first // SHARD_STEPS, plan.steps // SHARD_STEPS + 1):
        batches = shard(renderer, plan, index, pad)
        yield from batches[first % SHARD_STEPS if index == first // SHARD_STEPS else 0 :]


def optimisers(model: Qwen3ForCausalLM, plan: Plan) -> list[torch.optim.Optimizer]:
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    rest = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    adam = torch.optim.AdamW(rest, plan.lr_rest, betas=(0.9, 0.98), weight_decay=0.0)
    return [torch.optim.Muon(matrices, plan.lr_matrices, weight_decay=0.02), adam]


def save(path: Path, model: Qwen3ForCausalLM, opts: list[torch.optim.Optimizer], step: int) -> None:
    """Saves a checkpoint under another name and renames it, so that an interrupted run never leaves half a file."""
    state: dict[str, Any] = {"model": model.state_dict(), "optimisers": [o.state_dict() for o in opts], "step": step}
    torch.save(state, path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)


def restore(path: Path, model: Qwen3ForCausalLM, opts: list[torch.optim.Optimizer], device: torch.device) -> int:
    """Loads a checkpoint if there is one. Returns the number of steps that are done."""
    if not path.exists():
        return 0
    state = torch.load(path, map_location=device)
    model.load_state_dict(state["model"])
    for opt, saved in zip(opts, state["optimisers"], strict=True):
        opt.load_state_dict(saved)
    done: int = state["step"]
    return done


class Progress:
    """Prints a line every 20 steps: the loss on answers (a running mean), the speed, and the time left."""

    def __init__(self, plan: Plan, first: int) -> None:
        self._plan, self._first = plan, first
        self._mean: float | None = None
        self._tokens, self._begun = 0, time.monotonic()

    def report(self, step: int, answers: float, tokens: int) -> None:
        self._mean = answers if self._mean is None else 0.98 * self._mean + 0.02 * answers
        self._tokens += tokens
        if step % 20:
            return
        seconds = time.monotonic() - self._begun
        left = (self._plan.steps - step) * seconds / (step - self._first) / 60
        speed = f"{self._tokens / seconds:,.0f} tokens/s"
        print(f"step {step}/{self._plan.steps}  answers {self._mean:.4f}  {speed}  {left:.0f} min left", flush=True)


def loaded(tokenizer: Tokenizer, sizes: dict[str, int], state: dict[str, torch.Tensor] | None) -> Qwen3ForCausalLM:
    """Returns the network with the given weights, or with random ones."""
    model = network.build(tokenizer, sizes)
    if state is not None:
        model.load_state_dict(state, strict=False)
        model.tie_weights()
    return model


def published(folder: Path) -> dict[str, torch.Tensor]:
    """Returns the torch state of a model in a folder that `export` wrote, as the engine computes with it."""
    names = {new: f"model.layers.{{}}.{old}" for old, new in (demo_weights.MATRICES | demo_weights.NORMS).items()}
    names |= {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}
    state = {}
    for name, values in demo_weights.weights(folder).items():
        *layer, part = name.removesuffix(".weight").removeprefix("blk.").split(".")
        state[f"{names[part].format(*layer)}.weight"] = torch.from_numpy(values.copy())
    return state


def mixture(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor], share: float) -> dict[str, torch.Tensor]:
    """Returns a weighted mean of the weights before and after; `share` is the weight of those after."""
    return {name: share * after[name] + (1 - share) * values for name, values in before.items()}


def narrowed(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor], rank: int) -> dict[str, torch.Tensor]:
    """Returns the weights after training, with the change of each matrix reduced to a rank."""
    state = {}
    for name, values in before.items():
        change = after[name].float() - values
        if change.ndim == 2:
            left, sizes, right = torch.linalg.svd(change, full_matrices=False)
            change = (left[:, :rank] * sizes[:rank]) @ right[:rank]
        state[name] = values + change
    return state


def train(
    tokenizer: Tokenizer,
    plan: Plan,
    sizes: dict[str, int],
    checkpoint: Path,
    compiled: bool = True,
    begin: dict[str, torch.Tensor] | None = None,
    teacher: dict[str, torch.Tensor] | None = None,
) -> None:
    """Trains up to the last step of the plan, and leaves the result in the checkpoint.

    Args:
        tokenizer: The tokenizer.
        plan: What to train.
        sizes: The sizes of the network.
        checkpoint: The file of the checkpoint, from which training continues.
        compiled: Whether to use torch.compile.
        begin: The weights to begin with if there is no checkpoint; None for random ones.
        teacher: Weights whose probabilities are learned on everything but answers under a schema.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(plan.seed)
    model = loaded(tokenizer, sizes, begin).to(device)
    master = None if teacher is None else loaded(tokenizer, sizes, teacher).to(device).eval()
    opts = optimisers(model, plan)
    rates = (plan.lr_matrices, plan.lr_rest)
    first = restore(checkpoint, model, opts, device)
    torch._dynamo.config.recompile_limit = 2 * len(LENGTHS)  # one program for each length; the default allows eight
    compute = torch.compile(network.loss, dynamic=False) if compiled else network.loss
    parameters = sum(p.numel() for p in model.parameters())
    print(f"{parameters:,} parameters on {device}, steps {first} to {plan.steps}", flush=True)
    progress = Progress(plan, first)
    pad = tokenizer.token_to_id("<|endoftext|>")
    drills.PIECES[:] = pieces(tokenizer)
    for step, batch in enumerate(stream(Renderer(tokenizer), plan, first, pad), first):
        if step >= plan.steps:
            break
        for opt, rate in zip(opts, rates, strict=True):
            opt.param_groups[0]["lr"] = rate * plan.rate(step)
        ids, rows, weights, kept = (part.to(device) for part in (batch.ids, batch.rows, batch.weights, batch.kept))
        wanted = None if master is None else network.wanted(master, ids, rows, kept)
        weighted, answers = compute(model, ids, rows, weights, plan.bfloat16, wanted)
        weighted.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for opt in opts:
            opt.step()
            opt.zero_grad(set_to_none=True)
        progress.report(step + 1, answers.item(), batch.ids.numel())
        if (step + 1) % SAVE_STEPS == 0 or step + 1 == plan.steps:
            save(checkpoint, model, opts, step + 1)
