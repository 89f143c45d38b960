"""The manifest of llama.cpp's chain of samplers."""

from __future__ import annotations

from ...manifest import SAMPLER_CHAINS, BodyRow, Feature, PartRow

FEATURE = Feature(
    name="sampler_chain",
    summary="samples tokens with llama.cpp's samplers, such as DRY, XTC, Mirostat and locally typical sampling",
    body=BodyRow(
        names=(
            *("samplers", "min_keep", "repeat_last_n", "typical_p", "top_n_sigma", "xtc_probability", "xtc_threshold"),
            *("dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers"),
            *("dynatemp_range", "dynatemp_exponent", "mirostat", "mirostat_tau", "mirostat_eta"),
            *("adaptive_target", "adaptive_decay"),
        ),
        fields="fields:FIELDS",
        rewrite="fields:rewrite",
        everywhere=True,
        defaults="fields:adjust",
    ),
    flags="flags.txt",
    parts=(PartRow(seam=SAMPLER_CHAINS, make="child.chain:Chain"),),
)
