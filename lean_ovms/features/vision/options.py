"""The options of images and videos in prompts."""

from __future__ import annotations

from dataclasses import dataclass

from ...config.options import Options, option


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class VisionOptions(Options):
    """What the engine keeps of images."""

    in_engine = True

    image_cache_mb: int = option(
        256,
        "MB of memory for encoded images, by their content (PAGED); beyond it, those not used for longest are dropped",
        group="limits",
        low=1,
    )
