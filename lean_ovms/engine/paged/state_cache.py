"""Slots for the states of a hybrid network, and the checkpoints among them: the states behind cached prefixes. No
openvino.

A state is what linear attention and short convolutions know of all tokens before, so a prefix can be reused only where
the state behind it was kept. A slot has the state of running sequences, of a checkpoint, or of both: what several refer
to is never written, and a step that reads it writes to another slot. So nothing is copied, neither for a checkpoint nor
for a sequence that goes on from one.

Checkpoints are replaced when slots are wanted. First come those in the middle of a prompt, and those that one prompt
alone went on from, once that has one further on. Then come those that were used longest ago; one that several prompts
begin with counts as used whenever one behind it is.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["shared", "prompt", "completion", "inner"]
"""Where a checkpoint is: at the end of a prefix that several prompts share, of the last whole block of a prompt or a
completion, or in the middle of a prompt."""
NO_STATE = -1
SHARED = 2
"""Prompts that go on from a checkpoint, from which on its prefix is a shared one."""


@dataclass(slots=True)
class Checkpoint:
    """A state that is kept."""

    slot: int
    """The slot that has the state."""
    uses: int = 0
    """How many prompts went on from it."""


class StateCache:
    """Counts the references to slots and finds checkpoints by the serial number of the last block of their prefix."""

    def __init__(self, total: int) -> None:
        """Begins with all slots free. total: their number; 0: the network has no states, and nothing is kept."""
        self.total = total
        self.replaced: Callable[[int], object] = lambda serial: None
        """Called with the serial number of each checkpoint that gives way to another state, whose slot is not written
        yet."""
        self._free = list(range(total - 1, -1, -1))
        self._users = [0] * total  # sequences, by slot
        self._used = 0
        self._checkpointed = [False] * total  # slots of checkpoints
        self._checkpoints: OrderedDict[int, Checkpoint] = OrderedDict()  # by serial number, the first to replace first

    @property
    def checkpoints(self) -> int:
        """The number of checkpoints."""
        return len(self._checkpoints)

    @property
    def available(self) -> int:
        """Slots that `allocate` can give."""
        return self.total - self._used

    def allocate(self) -> int:
        """Returns a slot for one sequence, NO_STATE if there is none; its content is undefined."""
        if not self._free:
            idle = (serial for serial, one in self._checkpoints.items() if not self._users[one.slot])
            serial = next(idle, None)
            if serial is None:
                return NO_STATE
            self.replaced(serial)
            self.remove(serial)
        return self.share(self._free.pop())

    def share(self, slot: int) -> int:
        """Counts one more sequence that uses a slot; returns the slot."""
        if slot != NO_STATE:
            self._used += not self._users[slot]
            self._users[slot] += 1
        return slot

    def release(self, slot: int) -> None:
        """Counts one sequence less that uses a slot."""
        if slot == NO_STATE:
            return
        self._users[slot] -= 1
        assert self._users[slot] >= 0
        if not self._users[slot]:
            self._used -= 1
            if not self._checkpointed[slot]:
                self._free.append(slot)

    def writable(self, slot: int) -> int:
        """Returns the slot to which a sequence with its state in `slot` writes the next one, NO_STATE if there is none.

        It is the same slot if that is this sequence's alone. Else it is a new one, and the sequence uses both.
        """
        if self._users[slot] == 1 and not self._checkpointed[slot]:
            return slot
        new = self.allocate()
        if new == NO_STATE and self._users[slot] == 1:
            self.remove(next(serial for serial, one in self._checkpoints.items() if one.slot == slot))
            return slot
        return new

    # --- checkpoints

    def matched(self, chain: Sequence[int]) -> int:
        """Returns how many blocks of a chain of cached ones can be reused: those up to the last checkpoint."""
        if not self.total:
            return len(chain)
        return next((at for at in range(len(chain), 0, -1) if chain[at - 1] in self._checkpoints), 0)

    def restore(self, chain: Sequence[int], *, counts: bool) -> int:
        """Returns the slot of the checkpoint at the end of a chain, with one more user.

        counts: whether it is another prompt that goes on from it.
        """
        if not self.total:
            return NO_STATE
        found = self._checkpoints[chain[-1]]
        found.uses += counts
        self._checkpoints.move_to_end(chain[-1])
        self._touch(chain[:-1], demote=False)
        return self.share(found.slot)

    def add(self, chain: Sequence[int], slot: int, kind: Kind) -> None:
        """Makes a slot the checkpoint behind a chain of cached blocks, unless there is one.

        Args:
            chain: the serial numbers of all blocks before it.
            slot: the slot that has the state.
            kind: where it is.
        """
        serial = chain[-1]
        known = self._checkpoints.get(serial)
        if known is None:
            known = self._checkpoints[serial] = Checkpoint(slot)
            self._checkpointed[slot] = True
            self._checkpoints.move_to_end(serial, last=kind != "inner")
        if kind == "shared":
            known.uses = max(known.uses, SHARED)
        if kind != "inner":
            self._checkpoints.move_to_end(serial)
            self._touch(chain[:-1], demote=kind == "prompt")

    def remove(self, serial: int) -> None:
        """Drops the checkpoint behind a block, if there is one."""
        found = self._checkpoints.pop(serial, None)
        if found is not None:
            self._checkpointed[found.slot] = False
            if not self._users[found.slot]:
                self._free.append(found.slot)

    def checkpoint(self, serial: int) -> int:
        """Returns the slot of the checkpoint behind a block; NO_STATE: there is none."""
        found = self._checkpoints.get(serial)
        return NO_STATE if found is None else found.slot

    def unused(self, serial: int) -> bool:
        """Returns whether there is a checkpoint behind a block from which no prompt went on."""
        found = self._checkpoints.get(serial)
        return found is not None and not found.uses

    def _touch(self, chain: Sequence[int], *, demote: bool) -> None:
        """Counts the shared prefixes of a prompt as used. demote: the other checkpoints in it are replaced first."""
        for serial in reversed(chain):
            found = self._checkpoints.get(serial)
            if found is not None and (demote or found.uses >= SHARED):
                self._checkpoints.move_to_end(serial, last=found.uses >= SHARED)
