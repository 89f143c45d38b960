"""The manifest of openvino_genai's pipelines."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from ...config.options import Options, option
from ...manifest import BackendRow, Feature

_engine = partial(option, group="engine")


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class GenAiOptions(Options):
    """The options of openvino_genai's cache eviction and sparse attention, and of the length of prompts on an NPU."""

    in_engine = True

    cache_eviction_config: str = _engine(
        "",
        "JSON object with settings of KV cache eviction (lean_ovms/features/genai_pipelines/README.md); off if empty",
        json_object=True,
    )
    sparse_attention_config: str = _engine(
        "",
        "JSON object with settings of sparse attention (lean_ovms/features/genai_pipelines/README.md); off if empty",
        json_object=True,
    )
    max_prompt_len: int = _engine(0, "longest prompt in tokens for which an NPU model is compiled; 0 for 1024", low=0)


FEATURE = Feature(
    name="genai_pipelines",
    summary=(
        "serves models, devices and options that the paged engine does not support, with openvino_genai's pipelines"
    ),
    options=GenAiOptions,
    backend=BackendRow(
        pipelines=("LM_CB", "LM", "VLM_CB", "VLM", "OMNI"),
        make="child.choice:GenAiPipelines",
        options=("cache_eviction_config", "sparse_attention_config"),
    ),
)
