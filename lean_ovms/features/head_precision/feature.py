"""The manifest of output heads in fewer bits."""

from __future__ import annotations

from ...manifest import CHANGED_WEIGHTS, Feature, PartRow
from .options import HeadOptions

FEATURE = Feature(
    name="head_precision",
    summary="puts the output head of a language model into 4 or 8 bits, so that a large vocabulary costs less",
    options=HeadOptions,
    parts=(PartRow(seam=CHANGED_WEIGHTS, make="child.head:SmallHead", options=("head_precision",)),),
)
