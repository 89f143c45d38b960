"""One tiny random model of each family with vision (tests/makers/zoo_vision.py): tokens and log probabilities of
transformers in torch, which tests/makers/zoo_vision_torch.py recorded.

Prompts are longer than a block and a chunk, and several are computed together.
"""

import json
import re

import pytest

from lean_ovms.engine.loading.pipeline_choice import PROVEN_VISION
from lean_ovms.types import Image
from tests.features.vision.child.models import NAMES, ZOO, load, unpacked
from tests.makers.zoo_vision_torch import (
    PROMPTS,
    SECONDS,
    SIZES,
    TAG,
    TIMES,
    VIDEO,
    VIDEO_PROMPTS,
    VIDEOS,
    pixels,
    video,
)

RECORDED = json.loads((ZOO / "answers.json").read_text())
COMPILED_TWICE = "gemma3", "gemma4", "qwen3_5", "qwen3_vl"
"""Models with a second network for steps with prompts, as in a server: one with each kind of inputs and states. It is
compiled from the same graph, which takes a third of the time of a test."""
pytestmark = pytest.mark.model


def test_every_proven_family_is_in_the_zoo():
    assert {name.partition("-")[0] for name in NAMES} == PROVEN_VISION
    assert set(RECORDED) == set(NAMES)


def shown(prompt):
    """Returns the prompt with its tags numbered from 0 in order, and the images and videos."""
    numbers = []

    def tag(found):
        numbers.append(int(found[1]))
        return TAG.format(len(numbers) - 1)

    prompt = re.sub(TAG.format(r"(\d)"), tag, prompt)
    frames = Image(*VIDEO[1:], video(), times=TIMES, seconds=SECONDS)
    return prompt, [Image(*SIZES[n], pixels(n)) if n < len(SIZES) else frames for n in numbers]


def check(name, rig, most=2048):
    """Sends all prompts up to a length together, and compares the answers.

    Returns how many tokens were in the prefix cache.
    """
    numbers = {}
    prompts = PROMPTS | (VIDEO_PROMPTS if name in VIDEOS else {})
    for kind, prompt in prompts.items():
        if RECORDED[name][kind][0] > most:
            continue
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
    rig = load(unpacked(name, tmp_path), compiled_twice=name in COMPILED_TWICE)
    assert check(name, rig) < check(name, rig)  # the second time, with the first one's prefix cache


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gemma4-moe", "qwen3_5"])
def test_preempted_sequences_and_draft_tokens_change_nothing(name, tmp_path):
    options = {"max_num_batched_tokens": 48, "prompt_lookup": True}
    rig = load(unpacked(name, tmp_path), 12, compiled_twice=False, **options)
    check(name, rig, most=12 * 32 - 64)
    check(name, rig, most=12 * 32 - 64)
    assert rig.stats().preemptions
