"""The manifest of speculative decoding."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from ...config.options import MODEL, Options, option
from ...errors import StartError
from ...manifest import (
    DRAFT_PLAN,
    DRAFT_SETTINGS,
    GENERATION_METRICS,
    MODEL_SOURCE,
    TEXT_DRAFTS,
    Companion,
    Feature,
    Metric,
    PartRow,
)

_engine = partial(option, group="engine")
_repository = partial(option, group="repository")


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class DraftOptions(Options):
    """The source of draft tokens, and its memory."""

    in_engine = True

    draft_model_path: str = _engine("", "directory of a draft model for speculative decoding", path=MODEL)
    draft_device: str = _engine("", "device of the draft model; that of the model if empty")
    draft_cache_size: int = _engine(0, "size of the draft model's KV cache in GB; 0 lets the engine choose", low=0)
    draft_max_num_batched_tokens: int = _engine(
        0, "maximum number of tokens that the draft model computes in one step; 0 for as many as the model", low=0
    )
    draft_max_num_seqs: int = _engine(
        0,
        "maximum number of sequences of the draft model that run at once; 0 for as many as the model",
        low=0,
        high=4096,
    )
    draft_eagle3_mode: bool = _engine(
        False, "treat the draft model as an EAGLE-3 head of the model; PAGED also detects one by its config.json"
    )
    mtp: str = _engine(
        "auto",
        "let PAGED draft tokens with the multi-token prediction head in the model's directory; auto does so if there "
        "is one, and neither a draft model nor prompt lookup is set",
        choices=("auto", "true", "false"),
    )
    prompt_lookup: bool = _engine(
        False,
        "speculative decoding without a draft model: the tokens that followed the same ones in the prompt are proposed",
    )
    ngram_speculation: bool = _engine(
        True,
        "let PAGED propose tokens that followed the same ones in the prompt or the answer, for models that become "
        "faster by it",
    )
    draft_source_model: str = _repository(
        "",
        "draft model on the hub for speculative decoding, as organisation/name; it is pulled into the model's "
        "directory",
    )
    per_request_spec_decode_metrics: str = option(
        "",
        "send statistics of draft tokens as metrics.speculative_decoding with every response of chat and completions "
        "that has one choice; detailed adds those of each draft",
        group="behaviour",
        choices=("", "none", "summary", "detailed"),
    )

    def check(self, config: Any) -> None:
        """Checks that at most one source of draft tokens is set, and no option is without effect. Raises StartError."""
        draft = self.draft_model_path or self.draft_source_model
        if self.draft_model_path and self.draft_source_model:
            raise StartError("--draft_model_path and --draft_source_model cannot be used together")
        if self.draft_source_model and MODEL_SOURCE not in config.composition.parts:
            raise StartError("--draft_source_model: this server does not pull models; name one with --draft_model_path")
        if draft and self.prompt_lookup:
            raise StartError("a draft model and --prompt_lookup cannot be used together")
        for row in fields(self):
            if not draft and row.name.startswith("draft_") and getattr(self, row.name) != row.default:
                raise StartError(f"--{row.name} needs --draft_model_path")


METRICS = "vllm:spec_decode_num_"
"""The prefix of the names of the metrics."""
_counter = partial(Metric, kind="counter", from_start=False)

FEATURE = Feature(
    name="drafting",
    summary=(
        "speculative decoding: drafts tokens with a smaller model, a head of the model or the text "
        "itself, for faster answers"
    ),
    options=DraftOptions,
    flags="flags.txt",
    companions=(Companion(source="draft_source_model", path="draft_model_path"),),
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
        PartRow(seam=DRAFT_SETTINGS, make="child.plan:settings"),
        PartRow(seam=DRAFT_PLAN, make="child.plan:draft_plan"),
        PartRow(seam=TEXT_DRAFTS, make="child.draft_source:of_texts"),
        PartRow(seam=GENERATION_METRICS, make="metrics:of_generation", options=("per_request_spec_decode_metrics",)),
    ),
)
