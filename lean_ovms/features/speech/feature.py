"""The manifest of speech-to-text models."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from ...manifest import Feature, GraphRow, TaskRow

if TYPE_CHECKING:
    from ...model_files import ModelFiles

ARCHITECTURES = ("WhisperForConditionalGeneration", "Qwen3ASRForConditionalGeneration")
FUN_ASR = "fun_asr"
"""Fun-ASR's model_type; its config.json has no architectures."""
NETWORKS = ("openvino_encoder_model.xml", "openvino_decoder_model.xml")
"""The networks of a model that transcribes speech, which needs both."""
TOKENIZERS = ("openvino_tokenizer.xml", "openvino_detokenizer.xml")


def _transcribes(files: ModelFiles) -> bool:
    return files.config.get("model_type") == FUN_ASR or any(
        name in ARCHITECTURES or name.startswith("SeamlessM4T") for name in files.architectures
    )


def _missing(names: Collection[str]) -> list[str]:
    return [name for name in (*NETWORKS, *TOKENIZERS) if name not in names]


FEATURE = Feature(
    name="speech",
    summary="transcribes and translates speech with Whisper and other models",
    tasks=(
        TaskRow(
            name="speech2text",
            recognizes=_transcribes,
            model="models.speech_model:SpeechModel",
            loader="engine.speech.task:load",
            networks=NETWORKS,
            missing=_missing,
            graph=GraphRow(
                calculators=("S2tCalculator",),
                message="S2tCalculatorOptions",
                messages={
                    "S2tCalculatorOptions": "!string models_path, string target_device, string plugin_config, "
                    "bool enable_word_timestamps",
                },
                node="S2t",
                packets=("STT_NODE_RESOURCES:s2t_servable",),
                loops=True,
            ),
            package="lean_ovms",
        ),
    ),
)
