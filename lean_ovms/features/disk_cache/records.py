"""The records with which the front end controls the prefix cache's tier on disk."""

from __future__ import annotations

from dataclasses import dataclass

from ...engine.protocol import ANSWER, COMMAND, NumberedRecord


@dataclass(slots=True)
class DiskCacheAction(NumberedRecord):
    """The command to save the prefix cache, or to find saved blocks. It is answered by one BlocksOnDisk or Refused."""

    role = COMMAND
    unhandled = (
        "the prefix cache is not kept on disk, which needs the pipeline PAGED, "
        "--enable_prefix_caching and --prefix_cache_path"
    )

    action: str
    """"save": blocks that are only in memory are written; "restore": blocks that other processes wrote are found."""


@dataclass(slots=True)
class BlocksOnDisk(NumberedRecord):
    """The answer to a DiskCacheAction: what was saved, or for "restore" what is on disk now."""

    role = ANSWER
    blocks: int = 0
    """The number of blocks and states that were saved, or are on disk."""
    bytes: int = 0
    """Their size in bytes."""
    failed: int = 0
    """The number of blocks and states that could not be written."""
