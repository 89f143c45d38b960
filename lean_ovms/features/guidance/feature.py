"""The manifest of llguidance."""

from __future__ import annotations

from ...manifest import GRAMMAR_LIBRARY, Feature, PartRow

FEATURE = Feature(
    name="guidance",
    summary="enforces schemas, grammars and required tool calls with llguidance in the paged engine",
    needs=("structured_output",),
    packages=("llguidance",),
    parts=(PartRow(seam=GRAMMAR_LIBRARY, make="child.library:load"),),
)
