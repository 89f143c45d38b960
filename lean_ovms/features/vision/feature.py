"""The manifest of images and videos in prompts."""

from __future__ import annotations

from ...manifest import IMAGES_IN_TEXTS, INPUT_EMBEDDINGS, Feature, PartRow
from .options import VisionOptions

FEATURE = Feature(
    name="vision",
    summary="reads images and videos in prompts, with models that have vision",
    extra="vision",
    options=VisionOptions,
    parts=(
        PartRow(seam=INPUT_EMBEDDINGS, make="child.embeddings:input_embeddings"),
        PartRow(seam=IMAGES_IN_TEXTS, make="child.images_in_text:images_in_text"),
    ),
)
