"""Resolves the settings of a pipeline that computes one text at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ....config import EngineConfig
from ....engine.loading.settings import NO_LIMIT, PipelineSettings, devices_in, resolve
from ....errors import StartError
from ..feature import GenAiOptions

NPU_PROMPT, NPU_ANSWER = 1024, 128
"""GenAI's defaults on an NPU for MAX_PROMPT_LEN and MIN_RESPONSE_LEN, which it compiles the model for."""


def is_npu(config: EngineConfig, available: Sequence[str]) -> bool:
    """Returns whether the device is an NPU, which computes one text of limited length, without paged attention."""
    return any(name.split(".")[0] == "NPU" for name in devices_in(config.target_device, available))


def resolve_stateful(config: EngineConfig, available: Sequence[str] = ("CPU",)) -> PipelineSettings:
    """Returns the settings of such a pipeline, for which options of the scheduler have no effect. Raises StartError."""
    settings = resolve(config.replace(cache_size=0), 0, available)
    if settings.speculative:
        raise StartError("a draft model and prompt lookup need continuous batching: --pipeline_type LM_CB")
    context, max_prompt_tokens, properties = settings.context, NO_LIMIT, settings.properties
    if is_npu(config, available):
        if most := config.of(GenAiOptions).max_prompt_len:
            properties = {"MAX_PROMPT_LEN": most, **properties}
        max_prompt_tokens = _npu_length(properties, "MAX_PROMPT_LEN", NPU_PROMPT)
        context = min(context, max_prompt_tokens + _npu_length(properties, "MIN_RESPONSE_LEN", NPU_ANSWER))
    return replace(
        settings,
        properties=properties,
        context=context,
        # With room for the scheduler's reserve, so that only the context limits requests.
        blocks=context // settings.block_size + 2,
        step_tokens=1,
        prefix_caching=False,
        max_prompt_tokens=max_prompt_tokens,
    )


def _npu_length(properties: dict[str, Any], name: str, default: int) -> int:
    """Returns a length for which an NPU compiles the model: that of the device's properties, or the default."""
    per_device = properties.get("DEVICE_PROPERTIES")
    own = per_device.get("NPU", {}) if isinstance(per_device, dict) else {}
    try:
        return int(own.get(name, properties.get(name, default)))
    except (TypeError, ValueError, AttributeError):
        raise StartError(f"--plugin_config: {name} is not a whole number") from None
