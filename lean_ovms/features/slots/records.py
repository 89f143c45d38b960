"""The records for actions on slots that the front end and the engine process exchange."""

from __future__ import annotations

from dataclasses import dataclass

from ...engine.protocol import ANSWER, COMMAND, NumberedRecord


@dataclass(slots=True)
class SlotAction(NumberedRecord):
    """Asks to save, restore or erase the cached part of a slot's text. The answer is one SlotDone or Refused."""

    role = COMMAND
    unhandled = "slots cannot be saved, which needs the pipeline PAGED, --enable_prefix_caching and --slot_save_path"

    action: str
    """The action: "save", "restore", "erase", or "look", which does nothing."""
    slot: int
    """The number of the slot, from 0."""
    file: str
    """The name of the file in the directory of slots; empty for "erase"."""
    process: int = 0
    """The number of the process that is asked, since several processes may write the same file at the same time."""


@dataclass(slots=True)
class SlotDone(NumberedRecord):
    """Reports that an action on a slot is done."""

    role = ANSWER
    tokens: int
    """The number of tokens that were saved, restored or erased."""
    bytes: int
    """The size of the file in bytes; 0 for "erase"."""
    ms: float
    """The duration of the action in milliseconds."""
    used_s: float = 0.0
    """The time at which a text used the slot last, in seconds of the machine's monotonic clock; 0 if none has."""
