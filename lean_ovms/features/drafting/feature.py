"""The manifest of speculative decoding."""

from __future__ import annotations

from ...manifest import DRAFT_PLAN, DRAFT_SETTINGS, TEXT_PROPOSER, Companion, Feature, PartRow
from .options import DraftOptions

FEATURE = Feature(
    name="drafting",
    summary="drafts tokens with a smaller model, a head of the model or the text itself, so that answers come faster",
    options=DraftOptions,
    flags="flags.txt",
    companions=(
        Companion(
            source="draft_source_model",
            path="draft_model_path",
            graph="draft_models_path",
            ignored={
                "draft_block_size": "the device decides",
                "draft_dynamic_split_fuse": "prompts are split as dynamic_split_fuse says, and never with LM_CB and a "
                "draft model",
            },
        ),
    ),
    parts=(
        PartRow(seam=DRAFT_SETTINGS, make="settings:settings"),
        PartRow(seam=DRAFT_PLAN, make="child.plan:draft_plan"),
        PartRow(seam=TEXT_PROPOSER, make="child.ngrams:NgramProposer"),
    ),
)
