"""Gives the prefix cache of an engine its tier on disk."""

from __future__ import annotations

import logging
from functools import lru_cache
from pathlib import Path

from ....engine.paged.network import ADAPTER_CHOICE
from ....engine.paged.parts import Parts
from ....errors import StartError
from ....repository import model_file
from ..feature import DiskCacheOptions
from .block_store import BlockStore
from .fingerprint import fingerprint
from .tier import DiskTier

log = logging.getLogger(__name__)


def install(parts: Parts) -> None:
    """Gives the prefix cache a tier on disk, unless its directory cannot be used."""
    options = parts.config.of(DiskCacheOptions)
    if (valid_for := fingerprint_of(parts)) is None:
        return
    try:
        store = BlockStore(Path(options.prefix_cache_path), valid_for, limit_bytes(parts))
    except StartError as error:
        log.error("no prefix cache on disk: %s", error)
        return
    DiskTier(store, parts.network, parts.blocks, parts.states).join(parts.hooks)
    log.info("prefix cache on disk: %d blocks, %.1f MB", len(store), store.size / 1e6)


def limit_bytes(parts: Parts) -> int:
    """Returns how many bytes the files of a directory may have."""
    return int(parts.config.of(DiskCacheOptions).prefix_cache_disk_gb * (1 << 30))


@lru_cache(maxsize=1)
def fingerprint_of(parts: Parts) -> bytes | None:
    """Returns what blocks on disk are valid for; None without a prefix cache, or where the network cannot be read.

    The files of one engine's network are read once for both the prefix cache on disk and slots.
    """
    config, settings, network = parts.config, parts.settings, parts.network
    if not settings.prefix_caching:
        return None
    files = model_file.parts(config.model_dir) if model_file.is_one(config.model_dir) else []
    networks = {*(files or config.model_dir.glob("openvino_*model.xml"))}  # of vision models, what embeds tokens
    try:
        return fingerprint(
            networks | ({settings.head} if settings.head is not None else set()),
            network.layout,
            settings.properties,
            precision=network.precision,
            block_size=settings.block_size,
            adapted=ADAPTER_CHOICE in parts.network.inputs,
            versions=parts.versions,
        )
    except OSError as error:
        log.error("what is cached of prompts is not kept on disk: %s", error)
        return None
