"""Refuses options that only GGUF files have for other models."""

from __future__ import annotations

from ...api.services import Services
from ...errors import WrongOptions
from ...models.model import Model
from ...repository import model_file
from .feature import NONE, GgufOptions

REASONS = {
    "mmproj": "{} is an OpenVINO model, which does not use mmproj files",
    "override_kv": "{} is no GGUF file, and has no metadata to replace",
    "rope_parameters": "{} is no GGUF file: positions of an OpenVINO model are scaled as config.json says when it is "
    "exported, so change rope_scaling there and export the model again",
}
"""The reasons why the options are refused, with a place for the path of the model."""


class GgufOnly:
    """Checks that a model with options of GGUF files is one."""

    def __init__(self, _: Services, model: Model) -> None:
        """Keeps the options of the model."""
        self._config = model.config

    def check(self) -> None:
        """Raises WrongOptions for an option that the model does not use."""
        path, options = self._config.model_dir, self._config.of(GgufOptions)
        if self._config.without_model or model_file.is_one(path):
            return
        for name, reason in REASONS.items():
            if getattr(options, name) not in ("", NONE):
                raise WrongOptions(f"--{name}: {reason.format(path)}")

    async def compute(self) -> None:
        """Does nothing: there is no work for the engine."""
