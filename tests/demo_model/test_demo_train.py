"""What a training run computes: fixed by its plan, every answer token learned. Needs the packages of `.[train]`."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tokenizers import Tokenizer

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tools.demo_model import train  # noqa: E402
from tools.demo_model.corpus import Renderer  # noqa: E402

PLAN = train.Plan(rates=((-1, 0.0), (9, 1.0), (19, 0.0)), practice=((0, 0.0), (64, 1.0)))


def test_rates_are_straight_between_corners() -> None:
    assert [PLAN.rate(step) for step in (-1, 4, 9, 14, 19, 30)] == [0.0, 0.5, 1.0, 0.5, 0.0, 0.0]
    assert PLAN.steps == 19


def test_practice_begins_at_its_step() -> None:
    assert [PLAN.practised(step) for step in (0, 63, 64, 1000)] == [0.0, 0.0, 1.0, 1.0]


def test_all_answers_are_learned_and_the_token_after_a_row_is_what_counts() -> None:
    lines = [([5, 6, 7, 8], [0.0, 0.1, 1.0, 1.0]), ([5, 9, 0, 0], [0.1, 1.0, 0.0, 0.0])]
    batch = train.pack(random.Random(1), train.Plan(rates=((0, 1.0),), rows_per_step=6), lines)
    learned = dict(zip(batch.rows.tolist(), batch.weights.tolist(), strict=False))
    rows, weights = batch.rows.tolist(), [round(w, 2) for w in batch.weights.tolist()]
    assert dict(zip(rows[:4], weights[:4], strict=True)) == {0: 0.1, 1: 1.0, 2: 1.0, 4: 1.0}
    assert weights[4:] == [0.0, 0.0]
    assert len(learned) == 4


def test_a_shard_is_a_function_of_its_number(folder: Path) -> None:
    renderer = Renderer(Tokenizer.from_file(str(folder / "tokenizer.json")))
    once, again, other = (train.shard(renderer, PLAN, index, 0) for index in (0, 0, 1))
    assert len(once) == train.SHARD_STEPS
    assert all(torch.equal(a.ids, b.ids) and torch.equal(a.rows, b.rows) for a, b in zip(once, again, strict=True))
    assert not all(torch.equal(a.ids, b.ids) for a, b in zip(once, other, strict=False) if a.ids.shape == b.ids.shape)
    assert all(len(batch.rows) == PLAN.rows_per_step for batch in once)
