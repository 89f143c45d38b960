"""One tiny random model of each family with vision (tools/zoo_vision.py): the tokens and log probabilities of
transformers in torch, which tools/zoo_vision_torch.py recorded.

Prompts are longer than a block and a chunk, and are computed beside each other.
"""

import json

import pytest

from lean_ovms.engine.loading.pipeline_choice import PROVEN_VISION
from tests.engine.paged.vision.models import NAMES, ZOO, load, unpacked
from tools.zoo_vision_torch import PROMPTS, SIZES, TAG, pixels

RECORDED = json.loads((ZOO / "answers.json").read_text())
pytestmark = pytest.mark.model


def test_every_proven_family_is_in_the_zoo():
    assert {name.partition("-")[0] for name in NAMES} == PROVEN_VISION
    assert set(RECORDED) == set(NAMES)


def shown(prompt):
    """The prompt with its tags numbered from 0 in their order, and the images."""
    numbers = sorted(
        (n for n in range(len(SIZES)) if TAG.format(n) in prompt), key=lambda n: prompt.index(TAG.format(n))
    )
    for n in numbers:
        prompt = prompt.replace(TAG.format(n), f"<{n}>")
    for place, n in enumerate(numbers):
        prompt = prompt.replace(f"<{n}>", TAG.format(place))
    return prompt, [(*SIZES[n], pixels(n)) for n in numbers]


def check(name, rig):
    """Asks about all prompts together, and compares the answers; returns how many tokens were in the prefix cache."""
    numbers = {}
    for kind, prompt in PROMPTS.items():
        text, images = shown(prompt)
        numbers[kind] = rig.see(text, *images, max_tokens=60, ignore_eos=True, logprobs=True)
        rig.turn()
    rig.run()
    for kind, number in numbers.items():
        length, ids, logprobs = RECORDED[name][kind]
        answer = rig.answer(number)
        assert answer.failed is None
        assert answer.accepted.prompt_tokens == length, kind
        assert answer.tokens[0] == ids, kind
        assert answer.logprobs[0] == pytest.approx(logprobs, abs=5e-3), kind
    return sum(rig.answer(number).cached for number in numbers.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(RECORDED))
def test_tokens_and_log_probabilities_are_those_of_torch(name, tmp_path):
    rig = load(unpacked(name, tmp_path))
    assert check(name, rig) < check(name, rig)  # the second time with what the prefix cache has of the first


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gemma4-moe", "qwen2_vl", "qwen3_5", "smolvlm"])
def test_preempted_sequences_and_draft_tokens_change_nothing(name, tmp_path):
    rig = load(unpacked(name, tmp_path), blocks=12, max_num_batched_tokens=48, prompt_lookup=True)
    check(name, rig)
    check(name, rig)
    assert rig.stats().preemptions
