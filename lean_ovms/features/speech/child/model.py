"""Loads a speech model from its directory, and a voice activity detector."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ....engine.loading import quiet_imports  # noqa: F401 - first, for its effect
from ..feature import SpeechOptions

# isort: split
from ....config import EngineConfig
from ....engine.loading import vocabulary
from ....engine.loading.graph_tokenizer import GraphTokenizer
from ....engine.loading.settings import device_of, device_properties
from ....engine.loading.vocabulary import NotUnderstood
from ....errors import StartError, last_line
from ....types.engine import Vocabulary
from ....util import files
from . import whisper_files
from .decode_loop import DecodeLoop
from .recognizer import Recognizer
from .vad import Detector, EnergyDetector, SpeechCheck, unchecked
from .whisper_network import WhisperNetwork

if TYPE_CHECKING:
    from .pipeline import PipelineRecognizer

log = logging.getLogger(__name__)

ASR, WHISPER = "ASR", "whisper"
Loaded = tuple[Recognizer, Callable[[], Detector], SpeechCheck]


def load(config: EngineConfig) -> Loaded:
    """Loads a model. Returns its recognizer, a function that makes a detector, and a check for speech."""
    recognizer = _pipeline(config) if _by_pipeline(config) else _decode_loop(config)
    try:
        recognizer.warm_up()
    except RuntimeError as error:  # a model that cannot compute must not be served
        raise StartError(f"the model failed to compute: {last_line(error)}") from error
    return with_vad(recognizer)


def _by_pipeline(config: EngineConfig) -> bool:
    """Returns whether openvino_genai's pipeline computes the windows, instead of this project's decode loop.

    It does for all models except Whisper, and for Whisper if --pipeline_type says so. Raises StartError.
    """
    if config.pipeline_type not in ("AUTO", ASR):
        raise StartError(
            f"--pipeline_type {config.pipeline_type}: {config.model_dir} is a model for speech recognition, which "
            "needs AUTO or ASR"
        )
    kind = files.read_object(config.model_dir / "config.json").get("model_type", WHISPER)
    return config.pipeline_type == ASR or kind != WHISPER


def _decode_loop(config: EngineConfig) -> DecodeLoop:
    """Loads a Whisper model for this project's own decode loop. Raises StartError."""
    path = config.model_dir
    files = whisper_files.read(path)
    network = WhisperNetwork(config, path)
    if network.frames:
        files = replace(files, frames=network.frames)
    if config.of(SpeechOptions).enable_word_timestamps:
        _prepare_words(files, network)
    return DecodeLoop(files, network, GraphTokenizer(path), _vocabulary(path))


def _pipeline(config: EngineConfig) -> PipelineRecognizer:
    """Loads a model for openvino_genai's pipeline. Raises StartError."""
    from . import pipeline, pipeline_kinds

    path = config.model_dir
    words = _vocabulary(path)
    kind = pipeline_kinds.read(path, words, config.of(SpeechOptions).enable_word_timestamps)
    config = config.replace(target_device=device_of(config))
    loaded = pipeline.load(config, kind, device_properties(config))
    return pipeline.PipelineRecognizer(kind, loaded, GraphTokenizer(path), words, config.engine_watchdog_s)


def _prepare_words(files: whisper_files.WhisperFiles, network: WhisperNetwork) -> None:
    """Compiles the network that word times need when the model is loaded. Raises StartError."""
    if not files.heads:
        raise StartError("--enable_word_timestamps: generation_config.json has no alignment_heads")
    try:
        network.prepare_attention(files.heads)
    except RuntimeError as error:
        raise StartError(f"--enable_word_timestamps: {last_line(error)}") from error


def with_vad(recognizer: Recognizer) -> Loaded:
    """Adds a voice activity detector to the recognizer: Silero's network, or one by loudness if that does not load."""
    info = recognizer.info
    try:
        from .silero_vad import SileroVad

        vad = SileroVad()
    except (RuntimeError, OSError) as error:
        log.warning("voice activity is detected by loudness, since the network for it failed to load: %s", error)
        recognizer.info = replace(info, of_task=info.of_task | {"vad": "energy"})
        return recognizer, EnergyDetector, unchecked
    recognizer.info = replace(info, of_task=info.of_task | {"vad": "silero"})
    return recognizer, vad.detector, vad.check


def _vocabulary(path: Path) -> Vocabulary:
    """Returns the vocabulary with the bytes of each token. Raises StartError."""
    try:
        return vocabulary.read(path)
    except NotUnderstood as error:
        raise StartError(f"the detokenizer of {path} cannot be read: {error}") from error
