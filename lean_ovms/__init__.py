"""lean_ovms: OpenVINO Model Server's and vLLM's generative REST APIs on openvino-genai, with little in between."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .llm.async_llm import AsyncLLM
    from .llm.llm import LLM
    from .llm.outputs import CompletionOutput, RequestOutput
    from .llm.params import SamplingParams
    from .llm.requests import BeamSearchParams, LoRARequest, StructuredOutputsParams

__all__ = [
    "LLM",
    "AsyncLLM",
    "BeamSearchParams",
    "CompletionOutput",
    "LoRARequest",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutputsParams",
    "__version__",
]
__version__ = "0.1.0"
_PLACES = {
    "LLM": "llm.llm",
    "AsyncLLM": "llm.async_llm",
    "BeamSearchParams": "llm.requests",
    "CompletionOutput": "llm.outputs",
    "LoRARequest": "llm.requests",
    "RequestOutput": "llm.outputs",
    "SamplingParams": "llm.params",
    "StructuredOutputsParams": "llm.requests",
}
"""Modules that are imported when a program asks for their class: the package itself imports nothing."""


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
