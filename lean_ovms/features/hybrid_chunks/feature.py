"""The manifest of computing hybrid networks in chunks."""

from __future__ import annotations

from ...manifest import HYBRID_NETWORKS, Feature, PartRow

FEATURE = Feature(
    name="hybrid_chunks",
    summary="computes prompts of hybrid models in chunks of tokens, several times as fast as token by token",
    parts=(PartRow(seam=HYBRID_NETWORKS, make="child.networks:compute_in_chunks"),),
)
