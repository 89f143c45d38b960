"""The plan determines what a training run computes, and every answer token is learned. Needs the packages of
`.[train]`."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tokenizers import Tokenizer

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tools.demo_model import train  # noqa: E402
from tools.demo_model.corpus import Renderer  # noqa: E402
from tools.demo_model.forms import Written  # noqa: E402

PLAN = train.Plan(rates=((-1, 0.0), (9, 1.0), (19, 0.0)), practice=((0, {}), (64, {"schema": 0.5})))


def test_rates_are_straight_between_corners() -> None:
    assert [PLAN.rate(step) for step in (-1, 4, 9, 14, 19, 30)] == [0.0, 0.5, 1.0, 0.5, 0.0, 0.0]
    assert PLAN.steps == 19


def test_a_plan_that_is_cut_is_the_same_up_to_its_last_step() -> None:
    cut = PLAN.cut(12)
    assert (cut.steps, PLAN.cut(40), PLAN.cut(None)) == (12, PLAN, PLAN)
    assert [cut.rate(step) for step in range(13)] == pytest.approx([PLAN.rate(step) for step in range(13)])


def test_practice_begins_at_its_step() -> None:
    drawn = {step: [isinstance(PLAN.dialog(step, seed), Written) for seed in (0, 499, 500)] for step in (0, 63, 64)}
    assert drawn == {0: [False] * 3, 63: [False] * 3, 64: [True, True, False]}


def test_training_can_begin_with_the_weights_of_the_exported_model(folder: Path) -> None:
    from tools.demo_model import model
    from tools.demo_model.published import published

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    network = model.build(tokenizer, model.MAIN)
    missing, unexpected = network.load_state_dict(published(), strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])  # tied
    network.tie_weights()
    ids = tokenizer.encode("<|im_start|>user\nHello!<|im_end|>\n<|im_start|>assistant\n").ids
    for _ in range(14):
        with torch.no_grad():
            ids.append(int(network(torch.tensor([ids])).logits[0, -1].argmax()))
    assert tokenizer.decode(ids).endswith("Hello! How can I help you?")


def test_all_answers_are_learned_and_the_token_after_a_row_is_what_counts() -> None:
    lines = [([5, 6, 7, 8], [0.0, 0.1, 1.0, 1.0], True), ([5, 9, 0, 0], [0.1, 1.0, 0.0, 0.0], False)]
    batch = train.pack(random.Random(1), train.Plan(rates=((0, 1.0),), rows_per_step=6), lines)
    learned = dict(zip(batch.rows.tolist(), batch.weights.tolist(), strict=False))
    rows, weights = batch.rows.tolist(), [round(w, 2) for w in batch.weights.tolist()]
    assert dict(zip(rows[:4], weights[:4], strict=True)) == {0: 0.1, 1: 1.0, 2: 1.0, 4: 1.0}
    assert weights[4:] == [0.0, 0.0]
    assert len(learned) == 4
    assert batch.kept.tolist() == [True, False]


def test_a_teacher_is_followed_on_the_lines_that_are_kept(folder: Path) -> None:
    from tools.demo_model import model

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    torch.manual_seed(1)
    sizes = model.DRAFT | {"num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 32}
    teacher, pupil = (model.build(tokenizer, sizes) for _ in range(2))
    ids = torch.tensor([[11, 12, 13, 14], [15, 16, 17, 18], [19, 20, 21, 22]])
    rows, weights, kept = torch.tensor([1, 4, 6, 9]), torch.ones(4), torch.tensor([True, False, True])
    indexes, probabilities = model.wanted(teacher, ids, rows, kept)
    assert indexes.tolist() == [0, 3]  # the positions of rows 1 and 9
    told = teacher(ids).logits.softmax(-1).detach()
    assert torch.allclose(probabilities, torch.stack([told[0, 1], told[2, 1]]), atol=1e-6)
    mean = model.loss(pupil, ids, rows, weights, False, (indexes, probabilities))[0]
    own = pupil(ids).logits.log_softmax(-1)
    soft = -(probabilities * torch.stack([own[0, 1], own[2, 1]])).sum()
    assert mean.item() == pytest.approx((soft - own[1, 0, 16] - own[1, 2, 18]).item() / 4, rel=1e-5)
    assert not len(model.wanted(teacher, ids, rows, ~kept & kept)[0])


def test_a_change_of_weights_is_cut_down_to_its_largest_parts() -> None:
    before = {"matrix": torch.zeros(3, 3), "vector": torch.ones(3)}
    after = {"matrix": torch.diag(torch.tensor([3.0, 2.0, 1.0])), "vector": torch.tensor([1.0, 2.0, 3.0])}
    cut = train.narrowed(before, after, 2)
    assert torch.allclose(cut["matrix"], torch.diag(torch.tensor([3.0, 2.0, 0.0])), atol=1e-6)
    assert torch.equal(cut["vector"], after["vector"])
    assert torch.equal(train.mixture(before, after, 0.5)["vector"], torch.tensor([1.0, 1.5, 2.0]))


def test_a_shard_is_a_function_of_its_number(folder: Path) -> None:
    renderer = Renderer(Tokenizer.from_file(str(folder / "tokenizer.json")))
    once, again, other = (train.shard(renderer, PLAN, index, 0) for index in (0, 0, 1))
    assert len(once) == train.SHARD_STEPS
    assert all(torch.equal(a.ids, b.ids) and torch.equal(a.rows, b.rows) for a, b in zip(once, again, strict=True))
    assert not all(torch.equal(a.ids, b.ids) for a, b in zip(once, other, strict=False) if a.ids.shape == b.ids.shape)
    assert all(len(batch.rows) == PLAN.rows_per_step for batch in once)
