"""Chooses what drafts tokens for a model, and imports what computes networks of drafts only where there is one."""

from __future__ import annotations

from ....engine.loading.settings import PipelineSettings
from ....engine.paged.parts import DraftPlan, NoDrafts

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
