"""The option of prompts that are computed ahead."""

from __future__ import annotations

from dataclasses import dataclass

from ...config.options import GIVEN, Options, option


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class PrewarmOptions(Options):
    """Which prompts are computed ahead."""

    prewarm: str = option(
        "",
        "JSON file with the body of a chat or completions request, or a list of them (.jsonl: one in each line): "
        "their prompts are computed, or read from the prefix cache, whenever the model is loaded, before it is ready",
        group="engine",
        path=GIVEN,
    )
