"""Reads the options of drafts, and makes what drafts tokens for a model; its network is imported if there is one."""

from __future__ import annotations

from pathlib import Path

from ....config import EngineConfig
from ....engine.loading.drafts import Drafts
from ....engine.loading.settings import PipelineSettings
from ....engine.paged.parts import DraftPlan, NoDrafts
from ..feature import DraftOptions


def settings(config: EngineConfig) -> Drafts:
    """Returns what drafts tokens by the options."""
    options = config.of(DraftOptions)
    return Drafts(
        model=Path(options.draft_model_path) if options.draft_model_path else None,
        device=options.draft_device,
        cache_gb=options.draft_cache_size,
        step_tokens=options.draft_max_num_batched_tokens,
        max_sequences=options.draft_max_num_seqs,
        eagle3=options.draft_eagle3_mode,
        named_by={"eagle3": "--draft_eagle3_mode"} if options.draft_eagle3_mode else {},
        mtp=options.mtp,
        lookup=options.prompt_lookup,
        ngrams=options.ngram_speculation,
    )


NETWORKS = ("draft", "mtp", "eagle3")
"""What drafts with a network: a model of its own, or a head of the model."""


class TextDrafts(NoDrafts):
    """The DraftPlan of a model whose drafts are n-grams of texts, or that gets none."""

    def __init__(self, kind: str, *, ngrams: bool) -> None:
        """Has nothing to load.

        Args:
            kind: "prompt_lookup" where requests may ask for such drafts, else "".
            ngrams: Whether requests get them without asking.
        """
        self.kind = kind
        self.ngrams = ngrams


def draft_plan(settings: PipelineSettings, *, small: bool) -> DraftPlan:
    """Returns what drafts tokens for a model. Nothing is loaded yet.

    Args:
        settings: What was resolved from the options.
        small: Whether a step of the model's network is short, so that another number of tokens would take longer.
    """
    if settings.speculative in NETWORKS:
        from .network_drafts import NetworkDrafts

        return NetworkDrafts(settings)
    return TextDrafts(settings.speculative, ngrams=settings.drafts.ngrams and not settings.speculative and not small)
