"""The LoRA adapters that a pipeline is built with, for all its requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openvino_genai as genai

from ... import lora_modules
from ...config import Config
from ...repository import lora


def adapters(config: Config) -> Any:
    """The AdapterConfig of all adapters in lora_modules together. Raises StartError.

    MODE_STATIC: in the others an adapter is asleep until the first generate(), which continuous batching never calls.
    """
    modules = lora_modules.parse(config.lora_modules)
    found = [(genai.Adapter(str(lora.weights(Path(m.path)))), lora.scale(m)) for m in modules]
    return genai.AdapterConfig(found, genai.AdapterConfig.Mode.MODE_STATIC)
