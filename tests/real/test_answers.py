"""SmolLM2-135M-Instruct as a GGUF file in f32: its answers are torch's, whatever the engine does to save work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engine.real import load
from tests.engine.rig import Rig

KNOWN = json.loads((Path(__file__).parents[1] / "data" / "real" / "smollm2.json").read_text("utf-8"))
"""Questions, their prompts and what torch answers, by tests/makers/make_real.py."""
PROMPTS, ANSWERS, TIES = KNOWN["prompts"], KNOWN["answers"], KNOWN["near_ties"]
EIGHT = range(8)
DRAWS, AT_ONCE = 2000, 100


def loaded(path: Path, **options: Any) -> Any:
    made = {"blocks": 300, "ngram_speculation": False, "kv_cache_precision": "", "plugin_config": "", **options}
    return load(batch_invariant=True, pipeline_type="PAGED", model_path=str(path), **made)


@pytest.fixture(scope="module")
def engine(smollm2: Path) -> Any:
    return loaded(smollm2)


def answered(engine: Any, numbers: range, together: bool = False) -> tuple[Rig, list[Any]]:
    """Returns the answers to these prompts, one after the other or all at once."""
    rig, asked = Rig(pipeline=engine), []
    for number in numbers:
        asked.append(rig.submit(PROMPTS[number], max_tokens=len(ANSWERS[number]), ignore_eos=True))
        if not together:
            rig.run()
    rig.run()
    return rig, [rig.answer(each) for each in asked]


def assert_torchs(answers: list[Any]) -> None:
    """The first token that is not torch's may be one that torch has as likely."""
    for number, answer in enumerate(answers):
        pairs = zip(answer.tokens[0], ANSWERS[number], strict=True)
        first = next((at for at, (ours, torchs) in enumerate(pairs) if ours != torchs), None)
        assert first is None or first in TIES[number], (KNOWN["questions"][number], first)


def test_greedy_answers_are_torchs(engine: Any) -> None:
    assert_torchs(answered(engine, EIGHT)[1])


def test_thirty_at_once_get_torchs_answers(engine: Any) -> None:
    assert_torchs(answered(engine, range(len(PROMPTS)), together=True)[1])


def test_answers_are_the_same_with_what_is_cached_of_the_prompt(smollm2: Path) -> None:
    caching = loaded(smollm2, enable_prefix_caching=True)
    assert_torchs(answered(caching, EIGHT, together=True)[1])
    again = answered(caching, EIGHT, together=True)[1]
    assert_torchs(again)
    assert all(answer.cached for answer in again)


def test_answers_are_the_same_after_preemption(smollm2: Path) -> None:
    tight = loaded(smollm2, blocks=12)
    rig, answers = answered(tight, EIGHT, together=True)
    assert rig.scheduler.preemptions > 0
    assert_torchs(answers)


def test_answers_are_the_same_after_a_restart(smollm2: Path, tmp_path: Path) -> None:
    options = {"enable_prefix_caching": True, "prefix_cache_path": str(tmp_path), "prefix_cache_disk_gb": 0.05}
    before = loaded(smollm2, **options)
    answered(before, range(1))
    before.close()
    after = loaded(smollm2, **options)
    answers = answered(after, range(1))[1]
    after.close()
    assert answers[0].cached > 0
    assert_torchs(answers)


def test_answers_are_the_same_with_a_cache_of_eight_bits(smollm2: Path) -> None:
    assert_torchs(answered(loaded(smollm2, kv_cache_precision="u8"), EIGHT, together=True)[1])


def test_sampled_tokens_have_torchs_probabilities(engine: Any) -> None:
    tokens, chances = KNOWN["first"]
    rig = Rig(pipeline=engine)
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
    # All tokens that are seldom count as one.
    seen = np.append(seen[often], DRAWS - seen[often].sum())
    wanted = np.append(wanted[often], DRAWS - wanted[often].sum())
    free = len(seen) - 1
    assert ((seen - wanted) ** 2 / wanted).sum() < free + 5 * np.sqrt(2 * free)
