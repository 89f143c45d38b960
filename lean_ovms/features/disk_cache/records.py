"""Declares what the front end asks of the prefix cache's tier on disk, and its answer."""

from __future__ import annotations

from dataclasses import dataclass

from ...engine.record import ANSWER, COMMAND, Record


@dataclass(slots=True)
class DiskCacheAction(Record):
    """Asks for what is cached of prompts to be written, or to be found. Answered by one BlocksOnDisk or Refused."""

    role = COMMAND
    unhandled = "no prefix cache is kept on disk: that needs PAGED, its prefix cache and --prefix_cache_path"

    id: int
    action: str
    """"save": what is in memory alone is written; "restore": what other processes have written is found."""


@dataclass(slots=True)
class BlocksOnDisk(Record):
    """Says how many blocks, and states of hybrid networks, were saved, or are on disk now."""

    role = ANSWER
    id: int
    blocks: int = 0
    bytes: int = 0
    failed: int = 0
    """Blocks and states that could not be written."""
