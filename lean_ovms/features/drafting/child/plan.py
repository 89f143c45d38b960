"""Reads the options of drafts, and makes the plan of a model's drafts. Code for networks is imported only if needed."""

from __future__ import annotations

from pathlib import Path

from ....config import EngineConfig
from ....engine.loading.pipeline_choice import Drafts
from ....engine.loading.settings import PipelineSettings
from ....engine.paged.parts import DraftPlan, NoDrafts
from ..feature import DraftOptions


def settings(config: EngineConfig) -> Drafts:
    """Returns the source of draft tokens that the options name."""
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
"""The kinds of drafting with a network, which is a model of its own or a head of the model."""


class TextDrafts(NoDrafts):
    """The plan of a model whose draft tokens come from n-grams of texts, or that gets none."""

    def __init__(self, kind: str, *, ngrams: bool) -> None:
        """Keeps the kind, "prompt_lookup" if requests may ask for drafts from n-grams, and whether all get them."""
        self.kind = kind
        self.ngrams = ngrams


def draft_plan(settings: PipelineSettings, *, small: bool) -> DraftPlan:
    """Returns the plan of a model's drafts. Nothing is loaded yet.

    Args:
        settings: The settings that were made from the options.
        small: Whether a step of the model's network is so short that a change of its size costs more than drafts gain.
    """
    if settings.speculative in NETWORKS:
        from .network_drafts import NetworkDrafts

        return NetworkDrafts(settings)
    return TextDrafts(settings.speculative, ngrams=settings.drafts.ngrams and not settings.speculative and not small)
