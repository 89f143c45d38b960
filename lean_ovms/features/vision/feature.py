"""Declares the feature of images and videos in prompts."""

from __future__ import annotations

from dataclasses import dataclass

from ...config.options import Options, option
from ...manifest import IMAGES_IN_TEXTS, INPUT_EMBEDDINGS, ContentRow, Feature, PartRow
from ..media_files.feature import ImageFileOptions


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class VisionOptions(Options):
    """The option for the engine's memory for images."""

    in_engine = True

    image_cache_mb: int = option(
        256,
        "maximum memory in MB for encoded images, by their content (PAGED); beyond it, the least recently used are "
        "dropped",
        group="limits",
        low=1,
    )


NETWORK = "openvino_vision_embeddings_model.xml"
"""The file of the network that encodes images."""

FEATURE = Feature(
    name="vision",
    summary="reads images and videos in prompts, with vision models",
    needs=("media_files", "chat"),
    extra="vision",
    options=VisionOptions,
    flags="flags.txt",
    libraries=(ImageFileOptions,),
    contents=(
        ContentRow(
            kinds=("image_url", "input_image", "video_url"),
            words=("images", "videos"),
            modalities=("image", "video"),
            reader="content:READER",
        ),
    ),
    parts=(
        PartRow(seam=INPUT_EMBEDDINGS, make="child.vision:input_embeddings", file=NETWORK),
        PartRow(seam=IMAGES_IN_TEXTS, make="child.images_in_text:images_in_text", file=NETWORK),
    ),
)
