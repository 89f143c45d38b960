"""The manifest of prompts that are computed ahead."""

from __future__ import annotations

from dataclasses import dataclass

from ...config.options import GIVEN, Options, option
from ...manifest import Feature, ModelRow, Route


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class PrewarmOptions(Options):
    """The option for prompts that are computed in advance."""

    prewarm: str = option(
        "",
        "JSON file with the body of a chat or completions request, or a list of them (.jsonl: one per line), whose "
        "prompts are computed, or read from the prefix cache, whenever the model is loaded, before it is ready",
        group="engine",
        path=GIVEN,
    )


FEATURE = Feature(
    name="prewarm",
    summary="computes prompts before a model is ready, so that requests with the same beginning find them cached",
    title="Prompts computed ahead",
    needs=("chat", "completions"),
    options=PrewarmOptions,
    routes=(Route("POST", "/prewarm", "api:handle", changes=True),),
    model=ModelRow(install="api:preparation", options=("prewarm",)),
)
