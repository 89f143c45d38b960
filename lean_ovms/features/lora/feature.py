"""The manifest of LoRA adapters."""

from __future__ import annotations

from ...manifest import ADAPTER_INPUTS, ADAPTER_SET, BASES, GENAI_ADAPTERS, Feature, Metric, PartRow, Route
from .options import LoraOptions

REQUESTS = "vllm:lora_requests_info"
"""The metric of adapters at work."""

FEATURE = Feature(
    name="lora",
    summary="serves LoRA adapters under names of their own, beside the model that they adapt",
    title="LoRA adapters",
    reference="https://docs.vllm.ai/en/stable/features/lora.html",
    options=LoraOptions,
    flags="flags.txt",
    routes=(
        Route("POST", "/load_lora_adapter", "api:handle_load", BASES, changes=True),
        Route("POST", "/unload_lora_adapter", "api:handle_unload", BASES, changes=True),
    ),
    metrics=(
        Metric(
            REQUESTS,
            "gauge",
            "Unix time; its labels: the adapters of a model that have requests, and of which some wait until one is "
            "loaded",
            ("model_name", "max_lora", "running_lora_adapters", "waiting_lora_adapters"),
        ),
    ),
    samples="metrics:samples",
    parts=(
        PartRow(seam=ADAPTER_SET, make="model:LoraSet", options=("lora_modules", "allow_runtime_lora")),
        PartRow(seam=ADAPTER_INPUTS, make="child.provider:new_inputs", options=("allow_runtime_lora",)),
        PartRow(seam=GENAI_ADAPTERS, make="child.reading:genai_adapters", options=("lora_modules",)),
    ),
)
