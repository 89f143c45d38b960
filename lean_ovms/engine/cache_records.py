"""The records about what is cached of prompts; protocol.py has their framing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .record import Record


@dataclass(slots=True)
class ResetPrefixCache(Record):
    """Forget what is cached of prompts. Answered by one Pong or Refused. disk: what is on disk, too."""

    kind: ClassVar[str] = "reset_prefix_cache"
    id: int
    disk: bool


@dataclass(slots=True)
class SlotAction(Record):
    """Save, restore or erase what a slot has in the prefix cache. Answered by one SlotDone or Refused. file: a name."""

    kind: ClassVar[str] = "slot_action"
    id: int
    action: str
    slot: int
    file: str


@dataclass(slots=True)
class SlotDone(Record):
    """A slot was saved, restored or erased. bytes: of its file."""

    kind: ClassVar[str] = "slot_done"
    id: int
    tokens: int
    bytes: int
    ms: float
