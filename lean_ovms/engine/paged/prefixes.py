"""What is computed of each running sequence, and what of that others can begin with: KV blocks, and states of hybrid
networks.

Prompts that begin alike share blocks, also when they come together: one waits while another computes what both begin
with. With a hybrid network they share what ends with a checkpoint, so there is one where prompts part.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from .block_manager import BlockManager, Parent
from .block_tables import BlockTables
from .hooks import StepHook
from .model_inputs import ONE_STATE, Chunk
from .network import Network
from .sequence import Sequence
from .state_cache import NO_STATE, Kind, StateCache

MOST_SHARED_ENDS = 4
"""Places in a prompt at most where a hybrid network keeps its state because other prompts begin alike."""


class Prefixes:
    """Records what is computed, and finds what is known of a prompt.

    caching: prompts may share the blocks of others. message_starts: tokens that
    a message of a chat may begin with. changed: the decoding sequences, their blocks or the slots of their states are
    others than in the last step.
    """

    def __init__(
        self,
        network: Network,
        blocks: BlockManager,
        tables: BlockTables,
        states: StateCache,
        *,
        caching: bool,
        interval: int,
        hooks: list[StepHook],
    ) -> None:
        """interval: tokens of a prompt between checkpoints of states. hooks: of features."""
        self.blocks = blocks
        self.tables = tables
        self.states = states
        self.caching = caching
        self.message_starts: frozenset[int] = frozenset()
        self.changed = True
        self.hooks = hooks
        self._network = network
        self._interval = interval
        self._moving: list[Sequence] = []  # plain sequences whose states the running step writes to other slots

    def computed(self, chunk: Chunk) -> None:
        """Records that a part of a prompt is in the KV cache; others can share its full blocks from now on."""
        sequence = chunk.sequence
        for end in chunk.ends:
            self.tables.computed[sequence.row] = end
            self._register(sequence, end)
            self._advance(sequence)
            if (kind := self._checkpoint_kind(sequence, end)) is not None:
                self._add_checkpoint(sequence, kind)

    def decoded(self, rows: NDArray[np.int64]) -> None:
        """Records that a step has computed one token of each of these plain sequences."""
        self.tables.computed[rows] += 1
        for sequence in self._moving:
            if sequence.row >= 0:
                self._advance(sequence)
                self.changed = True

    def accept(self, sequence: Sequence, tokens: int) -> None:
        """Records that the first tokens of a sequence with draft tokens are in the KV cache, one more than before."""
        self.tables.computed[sequence.row] = tokens
        self._advance(sequence)
        self._checkpoint_completion(sequence)

    def reject(self, sequence: Sequence) -> None:
        """Drops the draft tokens of a sequence that are left, with the states behind them and the blocks for them."""
        sequence.draft_tokens, sequence.alternatives = [], []
        need = self.blocks.blocks(len(sequence.ids))
        if len(sequence.blocks) > need:
            self.blocks.release(sequence.blocks[need:])
            del sequence.blocks[need:]
            self.tables.num_blocks[sequence.row] = need
        self._drop_written(sequence)

    def spoil(self, sequence: Sequence) -> None:
        """Drops what was computed of a sequence from the prefix cache, for good: it is not finite."""
        for member in sequence.members:
            member.spoiled = True
            self.blocks.spoil(member.chain)

    def lacks(self, blocks: int) -> bool:
        """Returns whether fewer blocks can be allocated, also after features have given back theirs."""
        if self.blocks.available < blocks:
            for hook in self.hooks:
                hook.give_back()
        return self.blocks.available < blocks

    # --- the prefix cache

    def is_held(self, sequence: Sequence) -> bool:
        """Returns whether a feature lets a sequence wait, for blocks that are being read, for example."""
        return any(hook.must_wait(sequence, self._root(sequence)) for hook in self.hooks)

    def _known(self, sequence: Sequence, start: int) -> list[tuple[int, int]]:
        """Returns a sequence's blocks in the prefix cache from a block's border on; at least one token is not in them.

        Of a hybrid network those behind the last state that was kept cannot be used; it is kept at their end next time.
        There are none for a sequence that needs log probabilities of its prompt, which all has to be computed.
        """
        root = self._root(sequence)
        if root is None or sequence.needs_prompt_logprobs:
            return []
        parent = sequence.chain[-1] if sequence.chain else root
        found = self.blocks.match(sequence.ids, start, len(sequence.ids) - 1, parent)
        usable, size = self.states.matched([serial for _, serial in found]), self.blocks.block_size
        if (images := sequence.params.images) is not None:
            usable = max(0, images.cached(start // size + usable, size) - start // size)
        if usable < len(found):
            self.blocks.release([block for block, _ in found[usable:]])
            sequence.cached_end = start + len(found) * size
        return found[:usable]

    def _root(self, sequence: Sequence) -> Parent | None:
        """Returns the parent of a sequence's first block in the prefix cache; None: the sequence does not use it.

        Without a prefix cache the choices of one request still share its prompt.
        """
        params, request = sequence.params, sequence.request
        if sequence.spoiled:
            return None
        salt = params.salt if self.caching else str(request.id) if request.sampling.n > 1 else ""
        if not (self.caching or salt):
            return None
        return salt if params.adapter is None else (params.adapter.key, salt)

    def _register(self, sequence: Sequence, tokens: int) -> None:
        root = self._root(sequence)
        if root is not None:
            self.blocks.register_all(sequence.blocks, sequence.ids, tokens, sequence.chain, root)

    def _catch_up(self, sequence: Sequence) -> None:
        """Shares blocks that another sequence with the same prompt has computed meanwhile."""
        start, size = int(self.tables.computed[sequence.row]), self.blocks.block_size
        if start != size * len(sequence.chain) or len(sequence.blocks) != len(sequence.chain):
            return  # something of a block is its own, or it holds one from a step that failed
        if found := self._known(sequence, start):
            blocks = [block for block, _ in found]
            sequence.blocks += blocks
            sequence.chain += [serial for _, serial in found]
            self.tables.append(sequence.row, blocks)
            self.tables.computed[sequence.row] = start + len(found) * size
            self.states.release(sequence.state_slot)
            self._restore(sequence)
            if not sequence.preempted:
                sequence.cached += len(found) * size

    def _leaders(self, prompts: list[Sequence]) -> dict[Sequence, Sequence]:
        """Returns for which other prompt of a step a prompt waits, because that computes what both begin with."""
        leaders: dict[Sequence, Sequence] = {}
        known: dict[tuple[Parent, bytes], list[Sequence]] = {}
        size, computed = self.blocks.block_size, self.tables.computed
        for sequence in prompts:
            root = self._root(sequence)
            if root is None or sequence.row < 0:
                continue
            self._catch_up(sequence)
            alike = known.setdefault((root, sequence.ids[:size].tobytes()), [])
            for other in alike if not sequence.needs_prompt_logprobs else ():
                if self._leads(other, sequence) and computed[other.row] >= computed[sequence.row]:
                    leaders[sequence] = other
                    break
            else:
                alike.append(sequence)
        return leaders

    def _leads(self, first: Sequence, second: Sequence) -> bool:
        """Returns whether a running prompt is yet to compute blocks with which another begins too.

        A hybrid network keeps its state at their end.
        """
        size, start = self.blocks.block_size, int(self.tables.computed[first.row])
        root = self._root(first)
        at = start // size * size
        if root is None or self._root(second) != root or len(second.ids) <= at + size:
            return False
        if first.ids[at : at + size] != second.ids[at : at + size]:
            return False
        common = _common(first.ids, second.ids) // size * size
        if common <= start or not self.states.total:
            return common > start
        first.shared_ends = {end for end in first.shared_ends if end > start}
        if len(first.shared_ends) < MOST_SHARED_ENDS:
            first.shared_ends.add(common)
        return common in first.shared_ends

    # --- states of hybrid networks

    def _begin_state(self, sequence: Sequence, waiting: Iterable[Sequence]) -> None:
        """Gives a sequence that starts the state behind its cached blocks, or that of no tokens."""
        for other in waiting:
            self._leads(sequence, other)
        sequence.message_ends = self._message_ends(sequence)
        if sequence.chain:
            self._restore(sequence)
        else:
            sequence.state_slot = self.states.allocate()
            self._network.clear_state(sequence.state_slot)

    def _restore(self, sequence: Sequence) -> None:
        """Gives a sequence the state behind its cached blocks."""
        first = sequence.index == 0 and not sequence.preempted
        sequence.state_slot = self.states.restore(sequence.chain, counts=first)

    def _write_states(self, sequence: Sequence, count: int) -> int:
        """Allocates slots for the states that a step writes for a sequence; returns how many, at most `count`."""
        sequence.written = []
        slot = self.states.writable(sequence.state_slot)
        while slot != NO_STATE:
            sequence.written.append(slot)
            if len(sequence.written) == count:
                break
            slot = self.states.allocate()
        return len(sequence.written)

    def _write_prompt_states(self, sequence: Sequence, start: int, end: int) -> list[int]:
        """Allocates slots for what `_checkpoint_ends` returns, or at least for the last; [] if there is none for it."""
        ends = self._checkpoint_ends(sequence, start, end)
        if not self.states.total:
            return ends
        written = self._write_states(sequence, len(ends))
        if written == len(ends):
            return ends
        for slot in sequence.written[1:]:
            self.states.release(slot)
        del sequence.written[1:]
        return ends[-1:] if written else []

    def _prompt_chunk(self, sequence: Sequence, start: int, ends: list[int], wanted: int) -> Chunk:
        """Returns a part of a prompt, of which states are written where `_write_prompt_states` said."""
        first = ends[0] - start if len(ends) > 1 else 0
        every = ends[1] - ends[0] if len(ends) > 2 else ONE_STATE
        return Chunk(sequence, start, ends[-1] - start, wanted, self._slots(sequence), first, every)

    def _slots(self, sequence: Sequence) -> tuple[int, ...]:
        """Returns Chunk.states of a sequence."""
        return (sequence.state_slot, *sequence.written) if self.states.total else ()

    def _move(self, plain: list[Sequence]) -> None:
        """Chooses the slots in which the next decode steps read and write states: one, unless others use it."""
        self._moving = []
        if not self.states.total or not self.changed:
            return
        for sequence in sorted(plain, key=lambda s: s.search is None):  # beams must have a slot each
            if sequence.row < 0:
                continue
            slot = self.states.writable(sequence.state_slot)
            assert slot != NO_STATE  # capacity.rows_of leaves enough of them
            self.tables.states[sequence.row] = sequence.state_slot, slot
            if slot != sequence.state_slot:
                sequence.written = [slot]
                self._moving.append(sequence)

    def _advance(self, sequence: Sequence) -> None:
        """Takes the next one of the states that a step has written as the sequence's."""
        if not sequence.written:
            return
        slot = sequence.written.pop(0)
        if slot != sequence.state_slot:
            self.states.release(sequence.state_slot)
            sequence.state_slot = slot

    def _drop_written(self, sequence: Sequence) -> None:
        for slot in sequence.written:
            if slot != sequence.state_slot:
                self.states.release(slot)
        sequence.written = []

    def _checkpoint_kind(self, sequence: Sequence, end: int) -> Kind | None:
        """Returns which kind of checkpoint is wanted behind so many tokens of a prompt; None: none."""
        if end == sequence.cached_end or end in sequence.shared_ends:
            return "shared"
        if end == self._last_end(sequence):
            return "prompt"
        return "inner" if end in sequence.message_ends or end % self._interval == 0 else None

    def _last_end(self, sequence: Sequence) -> int:
        """Returns the end of the last block that another prompt could share with a sequence that is the same."""
        size = self.blocks.block_size
        return (len(sequence.ids) - 1) // size * size

    def _message_ends(self, sequence: Sequence) -> tuple[int, ...]:
        """Returns the ends of the last whole blocks of a chat's first message, and of all before its last message.

        Other chats may begin with these. Messages begin with the same token, as the first one behind a token for the
        beginning of texts; so does the answer that is to be generated.
        """
        for token in sequence.ids[:2]:
            if token in self.message_starts and sequence.ids.count(token) > 1:
                starts = np.flatnonzero(np.frombuffer(sequence.ids, np.int64) == token)
                return tuple((starts[[1, -2]] // self.blocks.block_size * self.blocks.block_size).tolist())
        return ()

    def _checkpoint_ends(self, sequence: Sequence, start: int, end: int) -> list[int]:
        """Returns where the states of a prompt are to be written while its tokens from start to end are computed.

        The last one is where the chunk ends, sooner than `end` if it could not write all that are wanted.
        """
        if not self.states.total or self._root(sequence) is None:
            return [end]
        inner = range(start // self._interval * self._interval, end, self._interval)
        wanted = {*inner, *sequence.message_ends, sequence.cached_end, *sequence.shared_ends, self._last_end(sequence)}
        ends = [*sorted(at for at in wanted if start < at < end), end]
        if len(ends) > 2 and ends[1] - ends[0] < max(ends[0] - start, ends[2] - ends[1]):
            return ends[:2]  # the network writes states at equal distances
        return ends[:3]

    def _add_checkpoint(self, sequence: Sequence, kind: Kind) -> None:
        """Makes a sequence's state a checkpoint, if it is behind a cached block."""
        computed, chain = int(self.tables.computed[sequence.row]), sequence.chain
        at_end = chain and computed == len(chain) * self.blocks.block_size
        if self.states.total and at_end and self.blocks.has(chain[-1]):
            self.states.add(chain, sequence.state_slot, kind)

    def _checkpoint_computed(self, sequence: Sequence) -> None:
        """Makes the state of a sequence that is preempted a checkpoint, if it is at the end of a block."""
        if sequence.row >= 0 and sequence.search is None:
            self._register(sequence, int(self.tables.computed[sequence.row]))
            self._add_checkpoint(sequence, "completion")

    def _checkpoint_completion(self, sequence: Sequence) -> None:
        """Makes the state of a decoding sequence a checkpoint at the end of a block, in place of its last one."""
        computed = int(self.tables.computed[sequence.row])
        if (
            not self.states.total
            or sequence.row < 0
            or sequence.search is not None
            or computed % self.blocks.block_size
        ):
            return
        self._register(sequence, computed)
        if sequence.completion_end and self.states.unused(sequence.completion_end):
            self.states.remove(sequence.completion_end)
        self._add_checkpoint(sequence, "completion")
        sequence.completion_end = sequence.chain[-1] if sequence.chain else 0


def _common(ids: array[int], others: array[int]) -> int:
    """Returns how many tokens two sequences begin with alike; the last one of the second is not among them."""
    most = min(len(ids), len(others) - 1)
    equal = np.frombuffer(ids, np.int64, most) == np.frombuffer(others, np.int64, most)
    return most if equal.all() else int(equal.argmin())
