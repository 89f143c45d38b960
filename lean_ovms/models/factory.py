"""Makes a model of the class that its task has; a class is imported for its first model."""

from __future__ import annotations

from ..config import Config
from ..manifest import named
from .model import Model


def make(config: Config) -> Model:
    """Returns a model of these options, not loaded. Raises StartError."""
    if config.model_path:
        config.composition.require_format(config.model_dir)
    row = config.composition.task(config.task)
    model: Model = named(row.package, row.model)(config)
    return model
