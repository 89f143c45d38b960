"""What the options of speculative decoding mean for the engine."""

from __future__ import annotations

from pathlib import Path

from ...config import EngineConfig
from ...engine.loading.drafts import Drafts
from .feature import DraftOptions


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
