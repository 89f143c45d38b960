"""Adds the tier on disk to the prefix cache of an engine.

Stored blocks have a fingerprint: they are valid for one network with one form of cache, computed in one way on one kind
of machine.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from ....engine.loading import file_identity
from ....engine.loading.settings import SHAPES
from ....engine.paged.network import ADAPTER_CHOICE
from ....engine.paged.parts import Parts
from ....errors import StartError
from ....repository import model_file
from ..feature import DiskCacheOptions
from .block_store import BlockStore
from .tier import DiskTier

log = logging.getLogger(__name__)

FORMAT = 2
"""The version of the format of blocks and keys, to be increased whenever it changes."""
NOT_COMPUTED = frozenset({"CACHE_DIR", "ENABLE_CPU_PINNING", "INFERENCE_NUM_THREADS", "PERF_COUNT", SHAPES})
"""Properties of openvino that do not change the results, except for rounding."""


def install(parts: Parts) -> None:
    """Adds a tier on disk to the prefix cache, unless the directory cannot be used."""
    options = parts.config.of(DiskCacheOptions)
    if (valid_for := fingerprint_of(parts)) is None:
        return
    try:
        store = BlockStore(Path(options.prefix_cache_path), valid_for, limit_bytes(parts))
    except StartError as error:
        log.error("the prefix cache is not kept on disk: %s", error)
        return
    DiskTier(store, parts.network, parts.blocks, parts.states).join(parts.hooks)
    log.info("prefix cache on disk: %d blocks, %.1f MB", len(store), store.size / 1e6)


def limit_bytes(parts: Parts) -> int:
    """Returns the most bytes that the files of the directory may have."""
    return int(parts.config.of(DiskCacheOptions).prefix_cache_disk_gb * (1 << 30))


@lru_cache(maxsize=1)
def fingerprint_of(parts: Parts) -> bytes | None:
    """Returns the fingerprint of an engine's blocks, or None without a prefix cache or if the network cannot be read.

    The files of the network are read only once, for both the prefix cache on disk and saved slots.
    """
    config, settings, network = parts.config, parts.settings, parts.network
    if not settings.prefix_caching:
        return None
    files = model_file.parts(config.model_dir) if model_file.is_one(config.model_dir) else []
    # For vision models, this includes the network that embeds tokens.
    networks = {*(files or config.model_dir.glob("openvino_*model.xml"))}
    try:
        return fingerprint(
            networks | ({settings.head} if settings.head is not None else set()),
            network.layout,
            settings.properties,
            precision=network.precision,
            block_size=settings.block_size,
            adapted=ADAPTER_CHOICE in parts.network.inputs,
            versions=parts.versions,
            **model_file.changes(config, config.model_dir),
        )
    except OSError as error:
        log.error("the prefix cache is no longer kept on disk: %s", error)
        return None


def fingerprint(
    networks: Iterable[Path], layout: Mapping[str, str], properties: Mapping[str, Any], **other: object
) -> bytes:
    """Returns 32 bytes that are equal for two engines if one can use the blocks that the other has computed.

    They depend on the networks, the layout of the cache, the properties and the machine.

    Args:
        networks: The files of the networks that compute the blocks.
        layout: The type and the shape of each cache tensor, by its name.
        properties: The properties with which the networks are compiled. Those that do not change results are ignored.
        **other: Everything else on which the content of a block depends.

    Raises:
        OSError: A file of a network cannot be read.
    """
    known = {
        "format": FORMAT,
        "networks": [file_identity.of_network(file) for file in sorted(networks)],
        "layout": dict(layout),
        "properties": {name: str(value) for name, value in properties.items() if name not in NOT_COMPUTED},
        "machine": file_identity.of_machine(),
        **other,
    }
    return hashlib.blake2b(json.dumps(known, sort_keys=True, default=str).encode(), digest_size=32).digest()
