"""Loads a model directory as a recognizer, with voice activity detection."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from xml.etree.ElementTree import ParseError

from ..genai import quiet_imports  # noqa: F401 - first, for its effect

# isort: split
from ...config import Config
from ...errors import StartError
from ...types import Vocabulary
from ..embedding.network import new_core
from ..embedding.tokenizer import Tokenizer
from ..errors import last_line
from ..genai import vocabulary
from ..genai.ir import NotUnderstood
from . import whisper_files
from .decode_loop import DecodeLoop
from .recognizer import Recognizer, Samples
from .vad import Detector, EnergyDetector
from .whisper_network import WhisperNetwork

log = logging.getLogger(__name__)

Loaded = tuple[Recognizer, Callable[[], Detector], Callable[[Samples], bool]]


def load(config: Config) -> Loaded:
    """The recognizer, what makes a detector for a request, and whether samples have speech. Raises StartError."""
    path = config.model_dir
    files = whisper_files.read(path)
    network = WhisperNetwork(config, path)
    if network.frames:
        files = replace(files, frames=network.frames)
    recognizer = DecodeLoop(files, network, Tokenizer(new_core(), path), _vocabulary(path))
    recognizer.warm_up()
    if config.enable_word_timestamps:
        _prepare_words(files, network)
    return with_vad(recognizer)


def _prepare_words(files: whisper_files.WhisperFiles, network: WhisperNetwork) -> None:
    """Raises StartError."""
    if not files.heads:
        raise StartError("--enable_word_timestamps: generation_config.json has no alignment_heads")
    try:
        network.prepare_attention(files.heads)
    except RuntimeError as error:
        raise StartError(f"--enable_word_timestamps: {last_line(error)}") from error


def with_vad(recognizer: Recognizer) -> Loaded:
    """The recognizer with the best detector there is, which its info names."""
    info = recognizer.info
    assert info.speech is not None
    try:
        from .silero_vad import SileroVad

        vad = SileroVad()
    except (RuntimeError, OSError) as error:
        log.warning("voice activity is detected by loudness: the network for it does not load: %s", error)
        recognizer.info = replace(info, speech=replace(info.speech, vad="energy"))
        return recognizer, EnergyDetector, lambda samples: True
    recognizer.info = replace(info, speech=replace(info.speech, vad="silero"))
    return recognizer, vad.detector, vad.has_speech


def _vocabulary(path: Path) -> Vocabulary:
    """Raises StartError: the text of a window is made of the bytes of its tokens."""
    try:
        return vocabulary.read(path)
    except (NotUnderstood, OSError, ParseError, ValueError, KeyError, IndexError) as error:
        raise StartError(f"the detokenizer of {path} cannot be read: {error}") from error
