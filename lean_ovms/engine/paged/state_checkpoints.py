"""The states of a hybrid network: which slots a step reads and writes, and which states are kept as checkpoints.

Linear attention and short convolutions know of all tokens before in one state of a fixed size, which cannot be cut. So
a prompt can go on from cached blocks only where the state behind them was kept: at a checkpoint. With any other
network none of this does anything.

Rule 1, slots: what several sequences or a checkpoint refer to is never written. A step reads a sequence's state from
one slot and writes the next one to the same slot, if that is the sequence's alone, or else to another, which the
sequence takes when the step is done (`assign_state_slots`, `write_states`, `take_written_state`).

Rule 2, several states in one step: for draft tokens the state behind each is written, so that those behind wrong ones
are dropped and none is computed again. For a part of a prompt up to three are written, at equal distances.

Rule 3, kinds of checkpoints, of which the first three begin at a border of blocks that others can share:
- "shared", where prompts part that begin alike, at most MOST_SHARED_ENDS in a prompt; and where cached blocks ended
  that had no state behind them: next time they can be used.
- "prompt", behind the last block of a prompt that the same prompt could share.
- "completion", behind the last whole block of an answer, in place of the one before, unless a prompt went on from that;
  and where a sequence is preempted.
- "inner", in the middle of a prompt: every `interval` tokens, at the end of a chat's first message, and of all before
  its last message.

Rule 4, which give way: checkpoints are replaced when slots are wanted. First come those in the middle of a prompt, and
those that one prompt alone went on from, once that has one further on. Then come those that were used longest ago; one
that several prompts begin with counts as used whenever one behind it is.
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
"""Places in a prompt at most where a hybrid network keeps its state because other prompts begin alike."""


class StateCheckpoints:
    """Uses the slots of states for the sequences of one engine, as the module's rules say."""

    def __init__(
        self, states: StateCache, network: Network, blocks: BlockManager, tables: BlockTables, interval: int
    ) -> None:
        """Begins without states.

        Args:
            states: The slots; none for a network without states.
            network: The network, which clears slots.
            blocks: The blocks of the KV cache, at whose ends there are checkpoints.
            tables: The rows of running sequences.
            interval: Tokens of a prompt between two inner checkpoints.
        """
        self.states = states
        self.enabled = states.total > 0
        """Whether the network has states."""
        self.most_prompts = MOST_PROMPTS if CHUNK_TOKENS in network.inputs else sys.maxsize
        """Prompts at most of which a step computes parts."""
        self.interval = interval
        self.message_starts: frozenset[int] = frozenset()
        """Tokens that a message of a chat may begin with."""
        self._network = network
        self._blocks = blocks
        self._tables = tables
        self._reassigned: list[Sequence] = []  # plain sequences whose states the running step writes to other slots

    # --- slots

    def spare(self, running: int) -> int:
        """Returns how many states may be written for draft tokens; each running sequence needs a slot more at most."""
        return self.states.available - running if self.enabled else sys.maxsize

    def slots(self, sequence: Sequence) -> tuple[int, ...]:
        """Returns the slots that a chunk of a sequence reads and writes, as `Chunk.states`."""
        return (sequence.state_slot, *sequence.written) if self.enabled else ()

    def begin(self, sequence: Sequence) -> None:
        """Gives a sequence that starts the state behind its cached blocks, or that of no tokens."""
        sequence.message_ends = self._message_ends(sequence.ids)
        if sequence.chain:
            self.restore(sequence)
        else:
            sequence.state_slot = self.states.allocate()
            self._network.clear_state(sequence.state_slot)

    def restore(self, sequence: Sequence) -> None:
        """Gives a sequence the state behind its cached blocks, instead of the one that it has."""
        self.states.release(sequence.state_slot)
        first = sequence.index == 0 and not sequence.preempted
        sequence.state_slot = self.states.restore(sequence.chain, counts=first)

    def write_states(self, sequence: Sequence, count: int) -> int:
        """Allocates slots for the states that a step writes for a sequence; returns how many, at most `count`."""
        sequence.written = []
        slot = self.states.writable(sequence.state_slot)
        while slot != NO_STATE:
            sequence.written.append(slot)
            if len(sequence.written) == count:
                break
            slot = self.states.allocate()
        return len(sequence.written)

    def assign_state_slots(self, plain: list[Sequence]) -> None:
        """Chooses the slots in which the next decode steps read and write states: one slot for both, unless others
        refer to it.

        Args:
            plain: The decoding sequences of one token each.
        """
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

    def keep_state_slots(self) -> None:
        """Notes that the next decode step reads and writes the same slots as the one before."""
        self._reassigned = []

    def take_moved(self) -> bool:
        """Takes the states that a decode step has written to other slots; returns whether there are any."""
        moved = [sequence for sequence in self._reassigned if sequence.row >= 0]
        for sequence in moved:
            self.take_written_state(sequence)
        return bool(moved)

    def take_written_state(self, sequence: Sequence) -> None:
        """Takes the next one of the states that a step has written as the sequence's."""
        if not sequence.written:
            return
        slot = sequence.written.pop(0)
        if slot != sequence.state_slot:
            self.states.release(sequence.state_slot)
            sequence.state_slot = slot

    def drop_written(self, sequence: Sequence) -> None:
        """Frees the slots of states that a step has written for a sequence and that it did not take."""
        for slot in sequence.written:
            if slot != sequence.state_slot:
                self.states.release(slot)
        sequence.written = []

    def leave(self, sequence: Sequence) -> None:
        """Frees all slots of a sequence that does not run any more."""
        self.drop_written(sequence)
        self.states.release(sequence.state_slot)
        sequence.state_slot = NO_STATE

    # --- prompts

    def write_prompt_states(self, sequence: Sequence, start: int, end: int, *, cached: bool) -> list[int]:
        """Allocates slots for the states that are written while a part of a prompt is computed.

        Args:
            sequence: The sequence of the prompt.
            start: The tokens that are computed already.
            end: The tokens that are to be computed then.
            cached: Whether others can share what is computed.

        Returns:
            The numbers of tokens behind which states are written, of which the last one is where the chunk ends: sooner
            than `end` if the network could not write all that are wanted. Empty if there is no slot.
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
        """Returns a part of a prompt.

        Args:
            sequence: The sequence of the prompt.
            start: The tokens that are computed already.
            ends: Where states are written, as `write_prompt_states` returned it.
            wanted: The tokens at the end of the part whose logits are wanted.
        """
        first = ends[0] - start if len(ends) > 1 else 0
        every = ends[1] - ends[0] if len(ends) > 2 else ONE_STATE
        return Chunk(sequence, start, ends[-1] - start, wanted, self.slots(sequence), first, every)

    def note_shared(self, sequence: Sequence, common: int) -> bool:
        """Notes that another prompt begins with so many of a sequence's tokens, which end with a block.

        Returns whether the state behind them will be kept, so that the other can wait for it.
        """
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
        """Returns the ends of the last whole blocks of a chat's first message, and of all before its last message.

        Other chats may begin with these. Messages begin with the same token, as the first one behind a token for the
        beginning of texts; so does the answer that is to be generated.
        """
        size = self._blocks.block_size
        for token in ids[:2]:
            if token in self.message_starts and ids.count(token) > 1:
                starts = np.flatnonzero(np.frombuffer(ids, np.int64) == token)
                return tuple((starts[[1, -2]] // size * size).tolist())
        return ()

    def _last_end(self, sequence: Sequence) -> int:
        """Returns the end of the last block that another prompt could share with a sequence that is the same."""
        size = self._blocks.block_size
        return (len(sequence.ids) - 1) // size * size

    # --- checkpoints

    def prompt_computed(self, sequence: Sequence, end: int) -> None:
        """Takes the state behind so many tokens of a prompt, and keeps it if a checkpoint is wanted there."""
        self.take_written_state(sequence)
        if (kind := self._kind(sequence, end)) is not None:
            self.add(sequence, kind)

    def add(self, sequence: Sequence, kind: Kind) -> None:
        """Makes a sequence's state a checkpoint, if it is behind a cached block."""
        computed, chain = int(self._tables.computed[sequence.row]), sequence.chain
        at_end = chain and computed == len(chain) * self._blocks.block_size
        if self.enabled and at_end and self._blocks.has(chain[-1]):
            self.states.add(chain, sequence.state_slot, kind)

    def add_completion(self, sequence: Sequence) -> None:
        """Makes the state of a decoding sequence a checkpoint, in place of its last one."""
        if sequence.completion_end and self.states.unused(sequence.completion_end):
            self.states.remove(sequence.completion_end)
        self.add(sequence, "completion")
        sequence.completion_end = sequence.chain[-1] if sequence.chain else 0

    def _kind(self, sequence: Sequence, end: int) -> Kind | None:
        """Returns which kind of checkpoint is wanted behind so many tokens of a prompt; None: none."""
        if end == sequence.cached_end or end in sequence.shared_ends:
            return "shared"
        if end == self._last_end(sequence):
            return "prompt"
        return "inner" if end in sequence.message_ends or end % self.interval == 0 else None


Kind = Literal["shared", "prompt", "completion", "inner"]
"""Where a checkpoint is: at the end of a prefix that several prompts share, of the last whole block of a prompt or a
completion, or in the middle of a prompt."""
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
    """Counts the references to slots and finds checkpoints by the serial number of the last block of their prefix.

    A slot has the state of running sequences, of a checkpoint, or of both. Nothing is copied, neither for a checkpoint
    nor for a sequence that goes on from one.
    """

    def __init__(self, total: int) -> None:
        """Begins with all slots free.

        Args:
            total: The number of slots; 0: the network has no states, and nothing is kept.
        """
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

    def matched(self, chain: Seq[int]) -> int:
        """Returns how many blocks of a chain of cached ones can be reused: those up to the last checkpoint."""
        if not self.total:
            return len(chain)
        return next((at for at in range(len(chain), 0, -1) if chain[at - 1] in self._checkpoints), 0)

    def restore(self, chain: Seq[int], *, counts: bool) -> int:
        """Returns the slot of the checkpoint at the end of a prefix, with one more user.

        Args:
            chain: The serial numbers of the blocks of the prefix.
            counts: Whether this use counts as that of another prompt that has the prefix.
        """
        if not self.total:
            return NO_STATE
        found = self._checkpoints[chain[-1]]
        found.uses += counts
        self._checkpoints.move_to_end(chain[-1])
        self._touch(chain[:-1], demote=False)
        return self.share(found.slot)

    def add(self, chain: Seq[int], slot: int, kind: Kind) -> None:
        """Makes a slot the checkpoint behind a chain of cached blocks, unless there is one.

        Args:
            chain: The serial numbers of all blocks before it.
            slot: The slot that has the state.
            kind: Where it is.
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

    def _touch(self, chain: Seq[int], *, demote: bool) -> None:
        """Counts the shared prefixes of a prompt as used.

        Args:
            chain: The serial numbers of the prompt's blocks.
            demote: Whether its other checkpoints become the first to be replaced.
        """
        for serial in reversed(chain):
            found = self._checkpoints.get(serial)
            if found is not None and (demote or found.uses >= SHARED):
                self._checkpoints.move_to_end(serial, last=found.uses >= SHARED)
