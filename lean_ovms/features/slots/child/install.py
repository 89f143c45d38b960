"""Adds slots to an engine."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from ....engine.paged.parts import Parts, StepHook
from ....engine.paged.sequence import Sequence
from ....engine.protocol import Record
from ...disk_cache.child.install import fingerprint_of, limit_bytes
from ..feature import SlotOptions
from ..records import SlotAction, SlotDone
from .files import SlotFiles


def install(parts: Parts) -> None:
    """Adds slots and their commands to an engine. Raises StartError if the directory cannot be used."""
    if (valid_for := fingerprint_of(parts)) is None:
        return
    directory = Path(parts.config.of(SlotOptions).slot_save_path)
    files = SlotFiles(directory, valid_for, limit_bytes(parts), parts.network, parts.blocks, parts.states)
    parts.hooks.append(Slots(files, parts.out.append))


class Slots(StepHook):
    """The slots of one engine: records which text used each last, and handles the commands for them."""

    def __init__(self, files: SlotFiles, answer: Callable[[Record], None]) -> None:
        """Creates the object with no slot used; `answer` sends a record to the front end."""
        self.files = files
        self._answer = answer

    def added(self, sequence: Sequence) -> None:
        """Notes that a request's text uses its slot, unless it has an adapter, which changes the cached values."""
        if sequence.adapter is None:
            self.files.use(sequence.request.sampling.id_slot, sequence.params.cache_salt, sequence.ids)

    def handle(self, command: Record) -> bool:
        """Saves, restores or erases a slot if the command asks for it; returns whether it did."""
        if not isinstance(command, SlotAction):
            return False
        began, size = time.monotonic(), 0
        match command.action:
            case "save":
                tokens, size = self.files.save(command.slot, command.file, command.process)
            case "restore":
                tokens, size = self.files.restore(command.slot, command.file)
            case "look":
                tokens = 0
            case _:
                tokens = self.files.erase(command.slot)
        used_s = self.files.used_s(command.slot)
        self._answer(SlotDone(command.id, tokens, size, 1000 * (time.monotonic() - began), used_s))
        return True
