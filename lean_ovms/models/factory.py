"""Which class a model's task has."""

from __future__ import annotations

from ..config import POOLING_TASKS, Config
from .model import Model
from .pooling_model import PoolingModel
from .text_model import TextModel


def make(config: Config) -> Model:
    """A model of these options, not loaded. Raises StartError."""
    return PoolingModel(config) if config.task in POOLING_TASKS else TextModel(config)
