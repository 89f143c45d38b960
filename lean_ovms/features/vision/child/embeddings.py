"""Makes embeddings of the images in the prompts of a model, as its files and the options say."""

from __future__ import annotations

from collections.abc import Callable

from ....config import EngineConfig
from ....engine.loading.settings import PipelineSettings
from ....engine.paged.network import NotPageable
from ....engine.paged.pipeline import ModelTokenizer
from ..feature import VisionOptions
from . import families
from .networks import VisionNetworks
from .vision import Vision


def input_embeddings(
    config: EngineConfig, settings: PipelineSettings, tokenizer: ModelTokenizer, wake: Callable[[], None]
) -> Vision:
    """Returns an engine.paged.parts.InputEmbeddings of one model.

    Args:
        config: The options.
        settings: What they mean for this model and machine.
        tokenizer: The model's tokenizer.
        wake: Ends the wait of the loop that runs the engine.

    Raises:
        NotPageable: The paged engine cannot read this model's images.
    """
    networks = VisionNetworks(config.model_dir, settings.device, settings.properties)
    try:
        family = families.load(config.model_dir, networks)
        cache_bytes, shares = config.of(VisionOptions).image_cache_mb << 20, config.enable_prefix_caching
        return Vision(family, tokenizer.encode, tokenizer.decode, cache_bytes=cache_bytes, shares=shares, wake=wake)
    except families.NotReadable as error:
        raise NotPageable(str(error)) from error
