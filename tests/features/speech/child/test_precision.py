"""Whisper in bf16: as near to f32 as torch's (tests/makers/networks_bf16.py), the encoder with all positions."""

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


@pytest.mark.parametrize("part", networks_bf16.WHISPER)
def test_whisper_is_as_near_to_f32_as_torchs_bf16(part: str, tmp_path: Path) -> None:
    path, found = unpacked(tmp_path), []
    sizes = json.loads((path / "config.json").read_text())
    for hint in ("f32", "bf16"):
        properties = {"INFERENCE_PRECISION_HINT": hint, "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
        config = Config(model_path=str(path), task="speech2text", plugin_config=json.dumps(properties))
        network = WhisperNetwork(config, path)
        if part == "encoder":
            found.append(network.encode(networks_bf16.numbers(1, sizes["num_mel_bins"], network.frames)))
        else:
            hidden = networks_bf16.numbers(1, sizes["max_source_positions"], sizes["d_model"])
            decoding = network.begin(hidden)
            found.append(np.array(decoding.step(networks_bf16.spoken(sizes["vocab_size"]))))
            decoding.close()
    networks_bf16.assert_near(f"whisper/{part}", *found, AS_NEAR)
