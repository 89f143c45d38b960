"""Whisper in bf16 is as close to f32 as torch's (tests/makers/networks_bf16.py), the encoder at all positions."""

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("gguf")

from lean_ovms.config import Config
from lean_ovms.features.speech.child.whisper_network import WhisperNetwork
from tests.engine.paged.test_precision import AS_NEAR, needs_bf16
from tests.features.speech.child.words import unpacked
from tests.makers import networks_bf16

pytestmark = [pytest.mark.model, pytest.mark.slow, needs_bf16]


def network(path: Path, hint: str) -> WhisperNetwork:
    properties = {"INFERENCE_PRECISION_HINT": hint, "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
    return WhisperNetwork(Config(model_path=str(path), task="speech2text", plugin_config=json.dumps(properties)), path)


def encoded(path: Path, hint: str) -> np.ndarray:
    """Returns the output of a model's encoder for as many frames as it takes: [1, positions, width]."""
    whisper = network(path, hint)
    bins = json.loads((path / "config.json").read_text())["num_mel_bins"]
    return whisper.encode(networks_bf16.numbers(1, bins, whisper.frames))


def decoded(path: Path, hint: str) -> np.ndarray:
    """Returns the logits of a model's decoder after a few tokens."""
    sizes = json.loads((path / "config.json").read_text())
    decoding = network(path, hint).begin(networks_bf16.numbers(1, sizes["max_source_positions"], sizes["d_model"]))
    logits = np.array(decoding.step(networks_bf16.spoken(sizes["vocab_size"])))
    decoding.close()
    return logits


@pytest.mark.parametrize("part", networks_bf16.WHISPER)
def test_whisper_is_as_near_to_f32_as_torchs_bf16(part: str, tmp_path: Path) -> None:
    path = unpacked(tmp_path)
    compute = encoded if part == "encoder" else decoded
    networks_bf16.assert_near(f"whisper/{part}", *(compute(path, hint) for hint in ("f32", "bf16")), AS_NEAR)
