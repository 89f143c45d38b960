"""Outputs of a pipeline that generates speech."""

import pytest

from lean_ovms.engine.generation.sequence import GenerationRequest
from lean_ovms.engine.protocol import SpokenTokens
from lean_ovms.features.genai_pipelines.child.guard.outputs import emit
from lean_ovms.features.genai_pipelines.child.guard.pipeline import GuardedOutput
from lean_ovms.features.genai_pipelines.child.guard.sequence import GuardedSequence
from lean_ovms.types import SamplingParams


@pytest.fixture
def sequence():
    request = GenerationRequest(7, SamplingParams(speaker="ada"), {0}, max_tokens=3)
    return GuardedSequence(request=request, index=0, blocks=1)


def test_audio_comes_between_tokens(sequence):
    out = []
    steps = [GuardedOutput([1, 2]), GuardedOutput([], audio=b"ab"), GuardedOutput([3], audio=b"cd")]
    assert [emit(sequence, {0: step}, out) for step in steps] == [False, False, True]
    assert out == [
        SpokenTokens(7, 0, [1, 2], None, None, b""),
        SpokenTokens(7, 0, [], None, None, b"ab"),
        SpokenTokens(7, 0, [3], None, "length", b"cd"),
    ]
