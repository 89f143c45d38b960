"""SmolLM2-135M-Instruct as GGUF, int8 and int4: its answers are torch's, whatever the engine does to save work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engine.rig import Rig
from tests.real.conftest import Loaded, engine_of

KNOWN = json.loads((Path(__file__).parents[1] / "data" / "real" / "smollm2.json").read_text("utf-8"))
"""Questions, their prompts, and torch's answers with the same weights in f32."""
PROMPTS = KNOWN["prompts"]
NEAR = 0.05
"""Two tokens whose logits differ by at most this in torch are a tie, which rounding may decide either way."""
IN_BF16 = 2.0
"""In bf16 this is multiplied by the distance that torch's own bf16 has: 0.16 (GGUF), 0.21 (int8), 0.33 (int4).

Keys and values are in u8, and the largest of thirty distances differs between CPUs.
"""
EIGHT, THIRTY, FOUR = range(8), range(len(PROMPTS)), range(4)
DRAWS, AT_ONCE = 2000, 100
GGUF, EACH = "gguf exact", ("gguf exact", "int8 exact", "int4 exact")
ROUNDED = ("gguf rounded", "int8 rounded kv_cache_precision=bf16", "int4 rounded")


def answered(engine: Any, numbers: range, together: bool = True) -> tuple[Rig, list[Any]]:
    """Returns the answers to these prompts, all at once or one after the other."""
    rig, asked = Rig(pipeline=engine), []
    for number in numbers:
        most = len(KNOWN["gguf"]["answers"][number])
        asked.append(rig.submit(PROMPTS[number], max_tokens=most, ignore_eos=True))
        if not together:
            rig.run()
    rig.run()
    return rig, [rig.answer(each) for each in asked]


def assert_torchs(weights: str, answers: list[Any], most: float = NEAR) -> None:
    """Checks that answers are torch's. At the first token that differs, torch's best two logits may be at most
    `most` apart."""
    for number, answer in enumerate(answers):
        pairs = zip(answer.tokens[0], KNOWN[weights]["answers"][number], strict=True)
        first = next((at for at, (ours, torchs) in enumerate(pairs) if ours != torchs), None)
        apart = dict(map(tuple, KNOWN[weights]["near"][number]))
        assert first is None or apart.get(first, 9) <= most, (KNOWN["questions"][number], first, apart.get(first))


def bound(weights: str, precision: str) -> float:
    """Returns how far apart two tokens may be in torch that an engine may exchange."""
    return IN_BF16 * KNOWN[weights]["off_in_bf16"] if precision == "rounded" else NEAR


@pytest.mark.parametrize("engine", [*EACH, *ROUNDED], indirect=True)
def test_thirty_at_once_get_torchs_answers(engine: Loaded) -> None:
    most = bound(engine.weights, engine.precision)
    assert_torchs(engine.weights, answered(engine.pipeline, THIRTY)[1], most)


@pytest.mark.parametrize("engine", ["fp16 exact"], indirect=True)
def test_thirty_answers_of_an_export_in_16_bits_are_torchs(engine: Loaded) -> None:
    assert_torchs("gguf", answered(engine.pipeline, THIRTY)[1])


@pytest.mark.parametrize("kind", [*EACH, "int8 rounded"])
def test_answers_are_the_same_with_all_of_it_together(kind: str, tmp_path: Path) -> None:
    """Draft tokens, blocks of other prompts, preempted sequences, and a restart with the cache on disk."""
    weights, precision = kind.split()
    options = {"enable_prefix_caching": True, "prefix_cache_path": str(tmp_path), "prefix_cache_disk_gb": 0.05}
    options |= {"ngram_speculation": True, "blocks": 12}
    most = bound(weights, precision)
    with engine_of(weights, precision, **options) as before:
        rig, answers = answered(before, EIGHT)
        assert rig.scheduler.preemptions > 0
        assert_torchs(weights, answers, most)
    with engine_of(weights, precision, **options) as after:
        # One at a time, because with several, drafts depend on measured times.
        answers = answered(after, FOUR, together=False)[1]
        assert all(answer.cached for answer in answers)
        assert after.runner.drafts.drafts > 0
        assert_torchs(weights, answers, most)


def test_answers_are_the_same_among_requests_that_are_cancelled() -> None:
    """Before each prompt come copies of it and of what begins as it does, each cancelled after some steps: while it
    waits, in its prompt, and in its answer. Their blocks must not be found by the prompt itself."""
    options = {"enable_prefix_caching": True, "ngram_speculation": True, "blocks": 12, "max_num_batched_tokens": 16}
    with engine_of("gguf", "exact", **options) as engine:
        rig, asked = Rig(pipeline=engine), []
        for number in EIGHT:
            left = [rig.submit(PROMPTS[number] + PROMPTS[0][:more], max_tokens=60) for more in (0, 7, 20)]
            most = len(KNOWN["gguf"]["answers"][number])
            asked.append(rig.submit(PROMPTS[number], max_tokens=most, ignore_eos=True))
            for steps, each in enumerate(left):
                rig.turn(steps * (1 + number))
                rig.cancel(each)
        rig.run()
        assert_torchs("gguf", [rig.answer(each) for each in asked])
        assert rig.scheduler.preemptions > 0
        assert any(rig.answer(each).cached for each in asked)


def test_answers_are_the_same_with_a_cache_of_eight_bits() -> None:
    with engine_of("gguf", "exact", kv_cache_precision="u8") as engine:
        assert_torchs("gguf", answered(engine, EIGHT)[1])


@pytest.mark.parametrize("engine", [GGUF], indirect=True)
def test_sampled_tokens_have_torchs_probabilities(engine: Loaded) -> None:
    tokens, chances = KNOWN["first"]
    rig = Rig(pipeline=engine.pipeline)
    for start in range(0, DRAWS, AT_ONCE):
        rig.submit(
            PROMPTS[KNOWN["sampled"]], max_tokens=1, temperature=1.0, n=AT_ONCE, seeds=(*range(start, start + AT_ONCE),)
        )
    rig.run()
    drawn = [ids[0] for number in range(1, DRAWS // AT_ONCE + 1) for ids in rig.answer(number).tokens.values()]
    assert len(drawn) == DRAWS
    seen = np.array([drawn.count(token) for token in tokens])
    wanted = np.array(chances) * DRAWS
    often = wanted >= 5
    # All rare tokens count as one.
    seen = np.append(seen[often], DRAWS - seen[often].sum())
    wanted = np.append(wanted[often], DRAWS - wanted[often].sum())
    free = len(seen) - 1
    assert ((seen - wanted) ** 2 / wanted).sum() < free + 5 * np.sqrt(2 * free)
