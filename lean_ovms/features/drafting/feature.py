"""The manifest of speculative decoding."""

from __future__ import annotations

from functools import partial

from ...manifest import (
    DRAFT_PLAN,
    DRAFT_SETTINGS,
    GENERATION_METRICS,
    TEXT_PROPOSER,
    Companion,
    Feature,
    Metric,
    PartRow,
)
from .options import DraftOptions

METRICS = "vllm:spec_decode_num_"
"""How the names of the metrics begin."""
_counter = partial(Metric, kind="counter", from_start=False)

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
    metrics=(
        _counter(f"{METRICS}drafts_total", help="drafts of a draft model or from n-grams"),
        _counter(f"{METRICS}draft_tokens_total", help="tokens of drafts, where the pipeline counts them"),
        _counter(f"{METRICS}accepted_tokens_total", help="accepted tokens of drafts"),
        _counter(
            f"{METRICS}accepted_tokens_per_pos_total",
            help="accepted tokens by their place in the draft, from 0 on, the first 20",
            labels=("model_name", "position"),
        ),
    ),
    samples="metrics:samples",
    parts=(
        PartRow(seam=DRAFT_SETTINGS, make="settings:settings"),
        PartRow(seam=DRAFT_PLAN, make="child.plan:draft_plan"),
        PartRow(seam=TEXT_PROPOSER, make="child.ngrams:NgramProposer"),
        PartRow(seam=GENERATION_METRICS, make="metrics:of_generation", options=("per_request_spec_decode_metrics",)),
    ),
)
