"""The manifest of LoRA adapters."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from ...config.options import Options, option
from ...manifest import ADAPTER_INPUTS, ADAPTER_SET, BASES, GENAI_ADAPTERS, Feature, Metric, PartRow, Route

_model = partial(option, group="model")


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class LoraOptions(Options):
    """The options of adapters: which a model has, and how many are in memory."""

    in_engine = True

    lora_modules: str = _model(
        "",
        "LoRA adapters, each served under its name: NAME=PATH or NAME=PATH,ALPHA",
        several=True,
        of_one=True,
    )
    apply_loras: bool = _model(True, "apply adapters of llama.cpp's --lora from the start")
    max_loras: int = _model(4, "most LoRA adapters loaded at once; one more replaces the least recently used", low=1)
    lora_idle_timeout_s: float = _model(
        300.0, "stop an adapter's engine after this many idle seconds; 0 for never", low=0
    )
    allow_runtime_lora: bool = _model(False, "let clients load adapters by paths on the server")

    def check(self, config: Any) -> None:
        """Checks the syntax of the list of adapters. Raises StartError."""
        if self.lora_modules:
            from .modules import parse

            parse(self.lora_modules)


ADAPTED, FIXED = "adapted_layers", "fixed_layers"
"""The names in ModelInfo.of_task of the layers that take adapters, with the widths of their inputs and outputs, and of
those that take none."""
REQUESTS = "vllm:lora_requests_info"
"""The metric of the adapters of running and waiting requests."""

FEATURE = Feature(
    name="lora",
    summary="serves LoRA adapters under their own names, beside their base model",
    needs=("deployment",),
    title="LoRA adapters",
    reference="https://docs.vllm.ai/en/stable/features/lora.html",
    options=LoraOptions,
    keywords={"enable_lora": "allow_runtime_lora"},
    flags="flags.txt",
    routes=(
        Route("POST", "/load_lora_adapter", "api:handle_load", BASES, changes=True, lasting="lora_name"),
        Route("GET", "/lora-adapters", "scales:handle"),
        Route("POST", "/lora-adapters", "scales:handle_change", changes=True, lasting="adapters"),
        Route("POST", "/unload_lora_adapter", "api:handle_unload", BASES, changes=True, lasting="lora_name"),
    ),
    metrics=(
        Metric(
            REQUESTS,
            "gauge",
            "Unix time; its labels name the adapters of a model with running requests, and those that wait to be "
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
