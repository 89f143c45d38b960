"""Which class a model's task has. A class is imported for its first model: most servers generate text only."""

from __future__ import annotations

from ..config import DEMO_EMBED, IMAGE_GENERATION, POOLING_TASKS, SPEECH_TO_TEXT, TEXT_TO_SPEECH, Config
from ..engine_types import ModelInfo
from ..repository import json_file
from .model import Model
from .text_model import TextModel


def make(config: Config) -> Model:
    """Returns a model of these options, not loaded. Raises StartError."""
    if config.task == SPEECH_TO_TEXT:
        from .speech_model import SpeechModel

        return SpeechModel(config)
    if config.task == TEXT_TO_SPEECH:
        from .voice_model import VoiceModel

        return VoiceModel(config)
    if config.task == IMAGE_GENERATION:
        from .image_model import ImageModel

        return ImageModel(config)
    if config.task in POOLING_TASKS or config.model_dir == DEMO_EMBED:
        from .pooling_model import PoolingModel

        model = PoolingModel(config)
        model.known_info = known_info() if config.model_dir == DEMO_EMBED else None
        return model
    return TextModel(config)


def known_info() -> ModelInfo:
    """Returns what the engine of demo-embed reports; tools/make_demo_embed.py writes it."""
    return ModelInfo.from_json(json_file.read_object(DEMO_EMBED / "engine_info.json"))
