"""The adapters of pipelines that have them for all requests."""

from __future__ import annotations

from typing import Any

from ...config import EngineConfig
from ...manifest import GENAI_ADAPTERS


def genai_adapters(config: EngineConfig) -> Any:
    """Returns openvino_genai's AdapterConfig of the adapters of the options; None: there are none.

    Raises StartError.
    """
    read = config.part(GENAI_ADAPTERS)
    return None if read is None else read(config)
