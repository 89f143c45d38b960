"""The networks of SpeechT5 in bf16, as openvino computes them, are as close to f32 as torch's, with 1,200 steps of
speech. Kokoro is not computed in bf16.

tests/makers/networks_bf16.py recorded the differences. The decoder's random dropout is switched off, as it is there.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import openvino as ov
import pytest

pytest.importorskip("gguf")

from openvino import opset13 as ops

from lean_ovms.config import Config
from lean_ovms.features.voice.child import pipeline
from tests.archives import extract
from tests.engine.paged.test_precision import AS_NEAR, needs_bf16
from tests.makers import networks_bf16

pytestmark = [pytest.mark.model, pytest.mark.slow]

OUTPUTS = {
    "encoder": "last_hidden_state", "decoder": "spectrum", "postnet": "postnet_spectrogram", "vocoder": "waveform"
}  # fmt: skip


def computed(path: Path, part: str, hint: str) -> np.ndarray:
    model = ov.Core().read_model(next(path.glob(f"openvino_{part}*.xml")))
    for node in model.get_ordered_ops():
        if node.get_type_name() == "RandomUniform":
            readers = list(node.output(0).get_target_inputs())
            nothing = ops.broadcast(np.float32(0), node.input_value(0))
            for reader in readers:
                reader.replace_source_output(nothing.output(0))
    request = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": hint}).create_infer_request()
    inputs: dict[str, np.ndarray]
    if part == "encoder":
        inputs = {"input_ids": networks_bf16.letters()}
    elif part == "vocoder":
        inputs = {"spectrogram": networks_bf16.numbers(200, 80)[None]}
    elif part == "postnet":
        frames = networks_bf16.numbers(1, networks_bf16.VOICE_STEPS, 80)
        inputs = {"raw_spectrogram": frames.reshape(-1, 1, 2, 80)}
    else:
        frames, speaker, hidden = networks_bf16.decoded(32)
        inputs = {"inputs_embeds": frames, "speaker_embeddings": speaker, "encoder_hidden_states": hidden}
        inputs |= {"encoder_attention_mask": np.ones(hidden.shape[:2], np.int64), "beam_idx": np.zeros(1, np.int32)}
    request.infer(inputs)
    output = np.array(request.get_tensor(OUTPUTS[part]).data, np.float32)
    return output.reshape(-1) if part == "vocoder" else output.reshape(1, -1, output.shape[-1])


@needs_bf16
@pytest.mark.parametrize("part", networks_bf16.VOICE)
def test_speecht5_is_as_near_to_f32_as_torchs_bf16(part: str, tmp_path: Path) -> None:
    extract(networks_bf16.DATA / "voice_model.zip", tmp_path)
    exact, found = (computed(tmp_path / "speecht5_tiny", part, hint) for hint in ("f32", "bf16"))
    networks_bf16.assert_near(f"voice/{part}", exact, found, AS_NEAR)


@pytest.mark.parametrize(
    ("kokoro", "options", "precision"),
    [(True, {}, "f32"), (True, {"plugin_config": '{"INFERENCE_PRECISION_HINT": "bf16"}'}, "bf16"), (False, {}, None)],
)
def test_kokoro_is_computed_in_f32_as_its_tones_need_it(
    kokoro: bool, options: dict[str, str], precision: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}

    class Pipeline:
        def __init__(self, *_: Any, **properties: Any) -> None:
            given.update(properties)

        def get_speaker_embedding_shape(self) -> list[int]:
            return [1, 512]

        def generate(self, *_: Any, **__: Any) -> Any:
            return SimpleNamespace(speeches=[])

    monkeypatch.setattr(pipeline.genai, "Text2SpeechPipeline", Pipeline)
    monkeypatch.setattr(pipeline.voices, "require_lexicon", lambda _: None)
    if not kokoro:
        (tmp_path / pipeline.VOCODER).touch()
    pipeline.GenAiSynthesizer(Config(model_path=str(tmp_path), task="text2speech", **options))
    assert given.get("INFERENCE_PRECISION_HINT") == precision
