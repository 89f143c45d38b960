"""The manifest of speech-to-text models."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...config.options import Options, option
from ...manifest import BASES, EVERYWHERE, SECONDS_BUCKETS, Feature, Metric, PanelRow, Route, TaskRow
from ..media_files.feature import AudioFileOptions

TASK = "speech2text"
"""The task of models that transcribe and translate speech, by OVMS's name."""


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class SpeechOptions(Options):
    """The options of speech-to-text models."""

    in_engine = True
    enable_word_timestamps: bool = option(
        False,
        "prepare a speech model for word timestamps when it is loaded, instead of at the first request that asks for "
        "them",
        group="model",
        tasks=(TASK,),
    )


if TYPE_CHECKING:
    from ...util.files import ModelFiles

ARCHITECTURES = ("WhisperForConditionalGeneration", "Qwen3ASRForConditionalGeneration")
FUN_ASR = "fun_asr"
"""Fun-ASR's model_type; its config.json has no architectures."""
NETWORKS = ("openvino_encoder_model.xml", "openvino_decoder_model.xml")
"""The networks of a model that transcribes speech, which needs both."""
REAL_TIME_FACTOR_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 5, 10)
"""Buckets for the time of a window by its length."""
AUDIO_SECONDS, SKIPPED_SECONDS = "lean_ovms_audio_seconds_total", "lean_ovms_audio_skipped_seconds_total"
QUEUE_SECONDS, WINDOW_SECONDS = "lean_ovms_audio_window_queue_seconds", "lean_ovms_audio_window_seconds"
REAL_TIME_FACTOR = "lean_ovms_audio_real_time_factor"
"""Metrics."""


def _transcribes(files: ModelFiles) -> bool:
    return files.config.get("model_type") == FUN_ASR or any(
        name in ARCHITECTURES or name.startswith("SeamlessM4T") for name in files.architectures
    )


def _missing(names: Collection[str]) -> list[str]:
    from ...repository.model_config import TOKENIZERS  # late, since every start imports manifests

    return [name for name in (*NETWORKS, *TOKENIZERS) if name not in names]


FEATURE = Feature(
    name="speech",
    summary="transcribes and translates speech with Whisper and other models",
    title="OpenAI: speech to text",
    reference="https://platform.openai.com/docs/api-reference/audio",
    needs=("media_files", "uploads"),
    options=SpeechOptions,
    libraries=(AudioFileOptions,),
    flags="flags.txt",
    routes=(
        Route("POST", "/audio/transcriptions", "api.transcriptions:handle", EVERYWHERE, model="SpeechModel"),
        Route("POST", "/audio/translations", "api.transcriptions:handle_translations", BASES),
    ),
    panel=PanelRow(view="speech", place=2, title="Speech", icon="wave", tasks=((TASK, "Transcription"),)),
    methods={"transcribe": "llm:transcribe"},
    tasks=(
        TaskRow(
            name=TASK,
            recognizes=_transcribes,
            model="model:SpeechModel",
            loader="child.task:load",
            records="records",
            networks=NETWORKS,
            missing=_missing,
        ),
    ),
    metrics=(
        Metric(AUDIO_SECONDS, "counter", "seconds of audio, transcribed or skipped"),
        Metric(SKIPPED_SECONDS, "counter", "seconds of audio without speech, which were skipped"),
        Metric(QUEUE_SECONDS, "histogram", "time that a window of audio waits", buckets=SECONDS_BUCKETS),
        Metric(WINDOW_SECONDS, "histogram", "time to transcribe a window of audio", buckets=SECONDS_BUCKETS),
        Metric(
            REAL_TIME_FACTOR,
            "histogram",
            "time to transcribe a window, divided by its length",
            buckets=REAL_TIME_FACTOR_BUCKETS,
        ),
    ),
)
