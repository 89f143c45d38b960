"""The states of a hybrid network: which slots a step reads and writes, and which states are kept as checkpoints.

Linear attention and short convolutions summarize all earlier tokens in one state of a fixed size, which cannot be
divided. So a prompt can continue from cached blocks only if the state after them was kept, at a checkpoint. For any
other network this module does nothing.

Rule 1, slots: a slot that several sequences or a checkpoint refer to is never written. A step reads a sequence's state
from one slot. It writes the next state to the same slot if only this sequence uses it, or else to another slot, which
the sequence takes after the step (`assign_state_slots`, `write_states`, `take_written_state`).

Rule 2, several states in one step: the state after each draft token is written, so that those after rejected tokens can
be dropped, and none has to be computed again. For a part of a prompt up to three states are written, at equal
distances.

Rule 3, kinds of checkpoints. The first three are at block boundaries from which others can continue:
- "shared", at the end of a prefix that several prompts share, at most MOST_SHARED_ENDS in a prompt; and at the end of
  cached blocks that could not be used because there was no state after them.
- "prompt", after the last block of a prompt that the same prompt could reuse.
- "completion", after the last whole block of an answer, replacing the one before, unless a prompt has continued from
  it; and where a sequence is preempted.
- "inner", inside a prompt: every `interval` tokens, at the end of a chat's first message, and before its last message.

Rule 4, replacement: checkpoints are replaced when slots are needed. The first to go are those inside a prompt, and
those from which only one prompt continued, once it has a later checkpoint. Next come the least recently used ones; a
checkpoint that several prompts share counts as used whenever a later one of theirs is.
"""

from __future__ import annotations

import sys
from array import array
from collections import OrderedDict
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Literal

import numpy as np

from .block_manager import BlockManager, BlockTables
from .model_inputs import ONE_STATE, Chunk
from .network import CHUNK_TOKENS, MOST_PROMPTS, Network
from .sequence import NO_STATE, Sequence

MOST_SHARED_ENDS = 4
"""The most "shared" checkpoints in one prompt."""


class StateCheckpoints:
    """Assigns state slots to an engine's sequences, and keeps checkpoints of their states."""

    def __init__(
        self, states: StateCache, network: Network, blocks: BlockManager, tables: BlockTables, interval: int
    ) -> None:
        """Creates the manager, without checkpoints.

        Args:
            states: The state slots; there are none for a network without states.
            network: The network, which can reset the state in a slot.
            blocks: The blocks of the KV cache. Checkpoints are at block boundaries.
            tables: The block tables of running sequences.
            interval: The number of prompt tokens between two "inner" checkpoints.
        """
        self.states = states
        self.enabled = states.total > 0
        """Whether the network has states."""
        self.most_prompts = MOST_PROMPTS if CHUNK_TOKENS in network.inputs else sys.maxsize
        """The most prompts of which a step computes parts."""
        self.interval = interval
        self.message_starts: frozenset[int] = frozenset()
        """The ids of tokens with which a message of a chat may begin."""
        self._network = network
        self._blocks = blocks
        self._tables = tables
        self._reassigned: list[Sequence] = []  # plain sequences whose states the running step writes to other slots

    # --- slots

    def spare(self, running: int) -> int:
        """Returns how many slots draft tokens may take, as each running sequence may need another one."""
        return self.states.available - running if self.enabled else sys.maxsize

    def slots(self, sequence: Sequence) -> tuple[int, ...]:
        """Returns the slots that a chunk of a sequence reads and writes, in the form of `Chunk.states`."""
        return (sequence.state_slot, *sequence.written) if self.enabled else ()

    def begin(self, sequence: Sequence) -> None:
        """Gives a starting sequence the state after its cached blocks, or the empty state."""
        sequence.message_ends = self._message_ends(sequence.ids)
        if sequence.chain:
            self.restore(sequence)
        else:
            sequence.state_slot = self.states.allocate()
            self._network.clear_state(sequence.state_slot)

    def restore(self, sequence: Sequence) -> None:
        """Replaces a sequence's state by the one after its cached blocks."""
        self.states.release(sequence.state_slot)
        first = sequence.index == 0 and not sequence.preempted
        sequence.state_slot = self.states.restore(sequence.chain, counts=first)

    def write_states(self, sequence: Sequence, count: int) -> int:
        """Allocates up to `count` slots for the states that a step writes for a sequence; returns their number."""
        sequence.written = []
        slot = self.states.writable(sequence.state_slot)
        while slot != NO_STATE:
            sequence.written.append(slot)
            if len(sequence.written) == count:
                break
            slot = self.states.allocate()
        return len(sequence.written)

    def assign_state_slots(self, plain: list[Sequence]) -> None:
        """Chooses the slots that decode steps of plain sequences read and write: the same one, unless others use it."""
        self._reassigned = []
        if not self.enabled:
            return
        for sequence in sorted(plain, key=lambda s: s.search is None):  # beams must have a slot each
            if sequence.row < 0:
                continue
            slot = self.states.writable(sequence.state_slot)
            assert slot != NO_STATE  # capacity.rows_of leaves enough of them
            self._tables.states[sequence.row] = sequence.state_slot, slot
            if slot != sequence.state_slot:
                sequence.written = [slot]
                self._reassigned.append(sequence)

    def take_moved(self) -> bool:
        """Gives sequences the states that a decode step has written to other slots; returns whether any moved."""
        moved, self._reassigned = [sequence for sequence in self._reassigned if sequence.row >= 0], []
        for sequence in moved:
            self.take_written_state(sequence)
        return bool(moved)

    def take_written_state(self, sequence: Sequence) -> None:
        """Assigns the next one of the states that a step has written to the sequence."""
        if not sequence.written:
            return
        slot = sequence.written.pop(0)
        if slot != sequence.state_slot:
            self.states.release(sequence.state_slot)
            sequence.state_slot = slot

    def drop_written(self, sequence: Sequence) -> None:
        """Frees the slots of states that a step has written for a sequence and that were not assigned to it."""
        for slot in sequence.written:
            if slot != sequence.state_slot:
                self.states.release(slot)
        sequence.written = []

    def leave(self, sequence: Sequence) -> None:
        """Frees all slots of a sequence that is no longer running."""
        self.drop_written(sequence)
        self.states.release(sequence.state_slot)
        sequence.state_slot = NO_STATE

    # --- prompts

    def write_prompt_states(self, sequence: Sequence, start: int, end: int, *, cached: bool) -> list[int]:
        """Allocates slots for the states to be written while a part of a prompt is computed.

        Args:
            sequence: The sequence of the prompt.
            start: The number of tokens that are computed already.
            end: The number of tokens that should be computed after the step.
            cached: Whether others can share the computed tokens.

        Returns:
            The numbers of tokens after which states are written. The last one is the end of the chunk, which is before
            `end` if the network could not write all needed states. The list is empty if there is no slot.
        """
        ends = self._ends(sequence, start, end) if self.enabled and cached else [end]
        if not self.enabled:
            return ends
        written = self.write_states(sequence, len(ends))
        if written == len(ends):
            return ends
        for slot in sequence.written[1:]:
            self.states.release(slot)
        del sequence.written[1:]
        return ends[-1:] if written else []

    def prompt_chunk(self, sequence: Sequence, start: int, ends: list[int], wanted: int) -> Chunk:
        """Returns the chunk for a part of a prompt.

        Args:
            sequence: The sequence of the prompt.
            start: The number of tokens that are computed already.
            ends: The numbers of tokens after which states are written, as `write_prompt_states` returned them.
            wanted: The number of last tokens for which logits are computed.
        """
        first = ends[0] - start if len(ends) > 1 else 0
        every = ends[1] - ends[0] if len(ends) > 2 else ONE_STATE
        return Chunk(sequence, start, ends[-1] - start, wanted, self.slots(sequence), first, every)

    def note_shared(self, sequence: Sequence, common: int) -> bool:
        """Notes a prefix of whole blocks that another prompt shares; returns whether a checkpoint comes after it."""
        start = int(self._tables.computed[sequence.row])
        sequence.shared_ends = {end for end in sequence.shared_ends if end > start}
        if len(sequence.shared_ends) < MOST_SHARED_ENDS:
            sequence.shared_ends.add(common)
        return common in sequence.shared_ends

    def _ends(self, sequence: Sequence, start: int, end: int) -> list[int]:
        inner = range(start // self.interval * self.interval, end, self.interval)
        last = self._last_end(sequence)
        wanted = {*inner, *sequence.message_ends, sequence.cached_end, *sequence.shared_ends, last}
        ends = [*sorted(at for at in wanted if start < at < end), end]
        if len(ends) > 2 and ends[1] - ends[0] < max(ends[0] - start, ends[2] - ends[1]):
            return ends[:2]  # the network writes states at equal distances
        return ends[:3]

    def _message_ends(self, ids: array[int]) -> tuple[int, ...]:
        """Returns the last block boundaries in a chat's first message and before its last message.

        Other chats may share these prefixes. Messages begin with the same token as the first one, after a token that
        begins the text; so does the answer to be generated.
        """
        size = self._blocks.block_size
        for token in ids[:2]:
            if token in self.message_starts and ids.count(token) > 1:
                starts = np.flatnonzero(np.frombuffer(ids, np.int64) == token)
                return tuple((starts[[1, -2]] // size * size).tolist())
        return ()

    def _last_end(self, sequence: Sequence) -> int:
        """Returns the end of the last block that another sequence with the same prompt could share."""
        size = self._blocks.block_size
        return (len(sequence.ids) - 1) // size * size

    # --- checkpoints

    def prompt_computed(self, sequence: Sequence, end: int) -> None:
        """Records that `end` tokens of a prompt are computed, and makes a checkpoint there if one is needed."""
        self.take_written_state(sequence)
        if (kind := self._kind(sequence, end)) is not None:
            self.add(sequence, kind)

    def add(self, sequence: Sequence, kind: Kind) -> None:
        """Makes a sequence's state a checkpoint if it is after a cached block."""
        computed, chain = int(self._tables.computed[sequence.row]), sequence.chain
        at_end = chain and computed == len(chain) * self._blocks.block_size
        if self.enabled and at_end and self._blocks.has(chain[-1]):
            self.states.add(chain, sequence.state_slot, kind)

    def add_completion(self, sequence: Sequence) -> None:
        """Makes the state of a decoding sequence a checkpoint, which replaces its last "completion" checkpoint."""
        if sequence.completion_end and self.states.unused(sequence.completion_end):
            self.states.remove(sequence.completion_end)
        self.add(sequence, "completion")
        sequence.completion_end = sequence.chain[-1] if sequence.chain else 0

    def _kind(self, sequence: Sequence, end: int) -> Kind | None:
        """Returns the kind of checkpoint to make after `end` tokens of a prompt; None for none."""
        if end == sequence.cached_end or end in sequence.shared_ends:
            return "shared"
        if end == self._last_end(sequence):
            return "prompt"
        return "inner" if end in sequence.message_ends or end % self.interval == 0 else None


Kind = Literal["shared", "prompt", "completion", "inner"]
"""The place of a checkpoint; see rule 3."""
SHARED = 2
"""The number of prompts that must continue from a checkpoint for its prefix to count as shared."""


@dataclass(slots=True)
class Checkpoint:
    """A state that is kept after the end of a prefix."""

    slot: int
    """The slot of the state."""
    uses: int = 0
    """The number of prompts that have continued from it."""


class StateCache:
    """Counts the references to state slots, and finds checkpoints by the serial number of their last block.

    A slot holds the state of running sequences, of a checkpoint, or of both. States are never copied, neither for a
    checkpoint nor for a sequence that continues from one.
    """

    def __init__(self, total: int) -> None:
        """Creates a cache of free slots; none if the network has no states."""
        self.total = total
        self.replaced: Callable[[int], object] = lambda serial: None
        """Called with the serial number of each checkpoint that is replaced, before its slot is written."""
        self._free = list(range(total - 1, -1, -1))
        self._users = [0] * total  # sequences, by slot
        self._used = 0
        self._checkpointed = [False] * total  # slots of checkpoints
        self._checkpoints: OrderedDict[int, Checkpoint] = OrderedDict()  # by serial number, the first to replace first

    @property
    def available(self) -> int:
        """The number of slots that `allocate` can return, including those of replaceable checkpoints."""
        return self.total - self._used

    def allocate(self) -> int:
        """Returns a slot for one sequence, whose content is undefined; NO_STATE if there is none."""
        if not self._free:
            idle = (serial for serial, one in self._checkpoints.items() if not self._users[one.slot])
            serial = next(idle, None)
            if serial is None:
                return NO_STATE
            self.replaced(serial)
            self.remove(serial)
        return self.share(self._free.pop())

    def share(self, slot: int) -> int:
        """Adds a sequence to the users of a slot, and returns the slot."""
        if slot != NO_STATE:
            self._used += not self._users[slot]
            self._users[slot] += 1
        return slot

    def release(self, slot: int) -> None:
        """Removes a sequence from the users of a slot."""
        if slot == NO_STATE:
            return
        self._users[slot] -= 1
        assert self._users[slot] >= 0
        if not self._users[slot]:
            self._used -= 1
            if not self._checkpointed[slot]:
                self._free.append(slot)

    def writable(self, slot: int) -> int:
        """Returns the slot for a sequence's next state: its own if nobody else uses that, or a new one; or NO_STATE."""
        if self._users[slot] == 1 and not self._checkpointed[slot]:
            return slot
        new = self.allocate()
        if new == NO_STATE and self._users[slot] == 1:
            self.remove(next(serial for serial, one in self._checkpoints.items() if one.slot == slot))
            return slot
        return new

    # --- checkpoints

    def matched(self, chain: Seq[int]) -> int:
        """Returns how many blocks of a cached prefix can be reused, which are those up to its last checkpoint."""
        if not self.total:
            return len(chain)
        return next((at for at in range(len(chain), 0, -1) if chain[at - 1] in self._checkpoints), 0)

    def restore(self, chain: Seq[int], *, counts: bool) -> int:
        """Returns the slot of the checkpoint after a prefix for one more user, which `counts` as a use by a prompt."""
        if not self.total:
            return NO_STATE
        found = self._checkpoints[chain[-1]]
        found.uses += counts
        self._checkpoints.move_to_end(chain[-1])
        self._touch(chain[:-1], demote=False)
        return self.share(found.slot)

    def add(self, chain: Seq[int], slot: int, kind: Kind) -> None:
        """Makes a slot the checkpoint at the end of a cached prefix, unless there is one already.

        Args:
            chain: The serial numbers of the blocks of the prefix.
            slot: The slot that has the state.
            kind: The place of the checkpoint.
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
        """Removes the checkpoint after a block, if there is one."""
        found = self._checkpoints.pop(serial, None)
        if found is not None:
            self._checkpointed[found.slot] = False
            if not self._users[found.slot]:
                self._free.append(found.slot)

    def checkpoint(self, serial: int) -> int:
        """Returns the slot of the checkpoint after a block; NO_STATE if there is none."""
        found = self._checkpoints.get(serial)
        return NO_STATE if found is None else found.slot

    def unused(self, serial: int) -> bool:
        """Returns whether there is a checkpoint after a block from which no prompt has continued."""
        found = self._checkpoints.get(serial)
        return found is not None and not found.uses

    def _touch(self, chain: Seq[int], *, demote: bool) -> None:
        """Marks a prompt's shared checkpoints as recently used; `demote` makes its others the first to go."""
        for serial in reversed(chain):
            found = self._checkpoints.get(serial)
            if found is not None and (demote or found.uses >= SHARED):
                self._checkpoints.move_to_end(serial, last=found.uses >= SHARED)
