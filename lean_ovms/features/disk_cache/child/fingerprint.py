"""Names what blocks on disk are valid for: one network with one cache, computed in one way on one kind of machine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ....engine.loading import file_identity

FORMAT = 2
"""To be raised when the bytes of a block, or its key, mean something else."""
NOT_COMPUTED = frozenset({"CACHE_DIR", "ENABLE_CPU_PINNING", "INFERENCE_NUM_THREADS", "PERF_COUNT"})
"""Properties of openvino that change nothing of what is computed but rounding."""


def fingerprint(
    networks: Iterable[Path], layout: Mapping[str, str], properties: Mapping[str, Any], **other: object
) -> bytes:
    """Returns 32 bytes that are the same whenever blocks computed then can be used now.

    They are the same for the same networks, layout of the cache, properties and machine.

    Args:
        networks: The files of the networks that compute the blocks.
        layout: The type and the shape of each cache tensor, by its name.
        properties: The properties with which the networks are compiled; those that do not change what is computed are
            ignored.
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
