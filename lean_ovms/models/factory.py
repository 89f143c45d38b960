"""Which class a model's task has."""

from __future__ import annotations

from ..config import DEMO_EMBED, POOLING_TASKS, SPEECH_TO_TEXT, TEXT_TO_SPEECH, Config
from ..repository import json_file
from ..types import ModelInfo
from .model import Model
from .pooling_model import PoolingModel
from .speech_model import SpeechModel
from .text_model import TextModel
from .voice_model import VoiceModel


def make(config: Config) -> Model:
    """A model of these options, not loaded. Raises StartError."""
    if config.model_dir == DEMO_EMBED:
        model = PoolingModel(config)
        model.known_info = known_info()
        return model
    if config.task == SPEECH_TO_TEXT:
        return SpeechModel(config)
    if config.task == TEXT_TO_SPEECH:
        return VoiceModel(config)
    return PoolingModel(config) if config.task in POOLING_TASKS else TextModel(config)


def known_info() -> ModelInfo:
    """What the engine of demo-embed reports; tools/make_demo_embed.py writes it."""
    return ModelInfo.from_json(json_file.read_object(DEMO_EMBED / "engine_info.json"))
