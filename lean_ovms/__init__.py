"""A small, fast server of OpenVINO models on Intel CPUs, with the APIs of OpenAI, Anthropic, Ollama, vLLM and OVMS."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._version import __version__
    from .features.llm.async_llm import AsyncLLM
    from .features.llm.engine_args import EngineArgs
    from .features.llm.llm import LLM
    from .features.llm.outputs import CompletionOutput, RequestOutput
    from .features.llm.params import SamplingParams
    from .features.llm.requests import BeamSearchParams, LoRARequest, PoolingParams, StructuredOutputsParams

__all__ = [
    "LLM",
    "AsyncLLM",
    "BeamSearchParams",
    "CompletionOutput",
    "EngineArgs",
    "LoRARequest",
    "PoolingParams",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutputsParams",
    "__version__",
]
_PLACES = {
    "LLM": "features.llm.llm",
    "AsyncLLM": "features.llm.async_llm",
    "BeamSearchParams": "features.llm.requests",
    "CompletionOutput": "features.llm.outputs",
    "EngineArgs": "features.llm.engine_args",
    "LoRARequest": "features.llm.requests",
    "PoolingParams": "features.llm.requests",
    "RequestOutput": "features.llm.outputs",
    "SamplingParams": "features.llm.params",
    "StructuredOutputsParams": "features.llm.requests",
    "__version__": "_version",
}
"""Modules that are imported when a program asks for their names: the package itself imports nothing."""


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
