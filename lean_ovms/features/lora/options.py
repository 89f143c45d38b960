"""The options of LoRA adapters."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from ...config.options import Options, option

_model = partial(option, group="model")


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class LoraOptions(Options):
    """Which adapters a model has, and how many are in memory."""

    in_engine = True

    lora_modules: str = _model(
        "",
        "LoRA adapters, each served under a name of its own: NAME=DIRECTORY or NAME=DIRECTORY,ALPHA",
        several=True,
        of_one=True,
    )
    max_loras: int = _model(
        4, "most LoRA adapters that are loaded at once; a further one replaces the least recently used", low=1
    )
    lora_idle_timeout_s: float = _model(
        300.0, "stop the engine of an adapter after this many seconds without a request; 0: never", low=0
    )
    allow_runtime_lora: bool = _model(
        False, "let clients load and unload adapters by paths on the server's file system"
    )

    def check(self, config: Any) -> None:
        """Checks the form of the adapters. Raises StartError."""
        if self.lora_modules:
            from .modules import parse

            parse(self.lora_modules)
