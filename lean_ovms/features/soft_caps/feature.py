"""The manifest of soft caps in attention."""

from __future__ import annotations

from ...manifest import SOFT_CAPS, Feature, PartRow

FEATURE = Feature(
    name="soft_caps",
    summary="computes attention with a soft cap, which OpenVINO's lacks, for Gemma 2",
    parts=(
        PartRow(
            seam=SOFT_CAPS, make="child.capped_attention:insert", file="config.json", text="attn_logit_softcapping"
        ),
    ),
)
