"""Declares what the front end asks of a slot, and the answer."""

from __future__ import annotations

from dataclasses import dataclass

from ...engine.record import ANSWER, COMMAND, Record


@dataclass(slots=True)
class SlotAction(Record):
    """Asks for what a slot has in the prefix cache to be saved, restored or erased. Answered by one SlotDone or
    Refused."""

    role = COMMAND
    unhandled = "no slots are kept: that needs PAGED, its prefix cache and --slot_save_path"

    id: int
    action: str
    """"save", "restore" or "erase"; or "look", which does nothing."""
    slot: int
    file: str
    """The name of the file in the directory of slots; empty for "erase"."""
    process: int = 0
    """The number of the engine's process that is asked: several may write the same file at the same time."""


@dataclass(slots=True)
class SlotDone(Record):
    """Says that a slot was saved, restored, erased or looked at."""

    role = ANSWER
    id: int
    tokens: int
    """Tokens of the text that were."""
    bytes: int
    """Bytes of the file; 0 for "erase"."""
    ms: float
    """Milliseconds that it took."""
    used_s: float = 0.0
    """When a text has used the slot last, in seconds of the machine's monotonic clock; 0: none has."""
