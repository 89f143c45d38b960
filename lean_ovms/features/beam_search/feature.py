"""The manifest of beam search."""

from __future__ import annotations

from ...manifest import TEXT_SEARCH, Feature, PartRow

FEATURE = Feature(
    name="beam_search",
    summary="generates the likeliest texts by beam search, for best_of and use_beam_search",
    parts=(PartRow(seam=TEXT_SEARCH, make="child.search:BeamSearch"),),
)
