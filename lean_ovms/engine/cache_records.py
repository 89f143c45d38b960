"""The records about what is cached of prompts; protocol.py has their framing."""

from __future__ import annotations

from dataclasses import dataclass

from .record import Record


@dataclass(slots=True)
class PrefixCacheAction(Record):
    """What is to be done with the prefix cache. Answered by one BlocksOnDisk or Refused.

    action: reset (forget it; disk: what is on disk, too), save (write what is in memory alone) or restore (find what
    others have written).
    """

    id: int
    action: str
    disk: bool = False


@dataclass(slots=True)
class BlocksOnDisk(Record):
    """So many blocks, and states of hybrid networks, were saved, or are on disk. failed: could not be written."""

    id: int
    blocks: int = 0
    bytes: int = 0
    failed: int = 0


@dataclass(slots=True)
class SlotAction(Record):
    """Save, restore or erase what a slot has in the prefix cache. Answered by one SlotDone or Refused. file: a name."""

    id: int
    action: str
    slot: int
    file: str


@dataclass(slots=True)
class SlotDone(Record):
    """A slot was saved, restored or erased. bytes: of its file."""

    id: int
    tokens: int
    bytes: int
    ms: float
