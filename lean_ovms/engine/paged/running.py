"""The running sequences of the paged engine, with their rows, their blocks and what the prefix cache knows of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..generation.fair_queue import FairQueue
from ..generation.sequence import ClientQueue
from .block_manager import BlockManager, Parent
from .block_tables import BlockTables
from .drafting.proposer import Proposer
from .lora.adapters import AdapterTable
from .model_inputs import Chunk
from .network import Network
from .sequence import Sequence
from .state_cache import NO_STATE, Kind, StateCache


class RunningSequences:
    """Adds sequences and removes them; `scheduler` decides which.

    prefilling: sequences whose prompts are computed, in this order. caching: prompts may share the blocks of others.
    message_starts: tokens that a message of a chat may begin with.
    changed: the decoding sequences, or their blocks, are others than in the last step.
    """

    def __init__(
        self,
        network: Network,
        blocks: BlockManager,
        tables: BlockTables,
        proposer: Proposer,
        adapters: AdapterTable,
        states: StateCache,
        waiting: FairQueue[Sequence],
        *,
        caching: bool,
        interval: int,
    ) -> None:
        """waiting: charges clients for tokens. interval: tokens of a prompt between checkpoints of states."""
        self.blocks = blocks
        self.tables = tables
        self.states = states
        self.waiting = waiting
        self.prefilling: list[Sequence] = []
        self.decoding: list[Sequence] = []
        self.caching = caching
        self.message_starts: frozenset[int] = frozenset()
        self.changed = True
        self._network = network
        self._proposer = proposer
        self._adapters = adapters
        self._interval = interval
        self._moving: list[
            Sequence
        ] = []  # of the plain ones, those whose states the running step writes to other slots
        self._regroup = True
        self._jumping: list[Sequence] = []  # of the decoding, those with a grammar that may jump forward
        self._plain: list[Sequence] = []  # of the decoding, those without draft tokens
        self._plain_rows = np.zeros(0, np.int64)

    @property
    def running(self) -> list[Sequence]:
        return self.decoding + self.prefilling

    def blocks_of(self, client: ClientQueue) -> int:
        return sum(len(s.blocks) for s in self.running if s.client is client)

    def computed(self, chunk: Chunk) -> None:
        """Records that a part of a prompt is in the KV cache; others can share its full blocks from now on."""
        sequence = chunk.sequence
        for end in chunk.ends:
            self.tables.computed[sequence.row] = end
            self._register(sequence, end)
            self._advance(sequence)
            if (kind := self._checkpoint_kind(sequence, end)) is not None:
                self._keep(sequence, kind)

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
        self._keep_answer(sequence)

    def reject(self, sequence: Sequence) -> None:
        """Drops the draft tokens of a sequence that are left, with the states behind them."""
        sequence.draft_tokens = []
        self._drop_written(sequence)

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Makes child go on from where parent is: it shares full blocks, and gets a copy of the one being written.

        A row and a block must be free.
        """
        self._adapters.acquire(child.params.adapter)
        row = self.tables.allocate([], child.params.adapter)
        self.tables.copy(parent.row, row)
        whole, rest = divmod(int(self.tables.computed[parent.row]), self.blocks.block_size)
        child.row, child.state = row, "decode"
        child.blocks, child.chain = parent.blocks[:whole], list(parent.chain)
        self.blocks.share(child.blocks)
        if rest:
            block = self.blocks.allocate()
            self._network.copy_block(parent.blocks[whole], block)
            child.blocks.append(block)
            self.tables.table[row, whole] = block
        self.tables.held[row] = len(child.blocks)
        child.state_slot = self.states.share(parent.state_slot)
        self.decoding.append(child)
        self._regroup = True

    def leave(self, sequence: Sequence) -> None:
        """Removes a running sequence; its blocks are freed, and stay in the prefix cache until they are needed."""
        if sequence.row >= 0:
            (self.prefilling if sequence.state == "prefill" else self.decoding).remove(sequence)
            self._charge(sequence)
            self._register(sequence, int(self.tables.computed[sequence.row]))
            self.blocks.release(sequence.blocks)
            self.tables.free(sequence.row)
            self._adapters.release(sequence.params.adapter)
            self._drop_written(sequence)
            self.states.release(sequence.state_slot)
            sequence.blocks, sequence.chain, sequence.row, sequence.state_slot = [], [], -1, NO_STATE
            self._regroup = True
        sequence.state = "over"
        sequence.draft_tokens, sequence.jump_forward = [], False
        self._proposer.leave(sequence)

    def _group(self) -> None:
        self._plain = [s for s in self.decoding if not (s.params.lookahead or s.jump_forward)]
        self._jumping = [s for s in self.decoding if s.matcher is not None and s.search is None]
        self._plain_rows = np.array([s.row for s in self._plain], np.int64)
        self._regroup, self.changed = False, True

    def _charge(self, sequence: Sequence) -> None:
        """Charges a sequence's client for the tokens generated since the last time."""
        if len(sequence.ids) > sequence.charged:
            self.waiting.charge(sequence.client, len(sequence.ids) - sequence.charged)
            sequence.charged = len(sequence.ids)

    # --- the prefix cache

    def _known(self, sequence: Sequence, start: int) -> list[tuple[int, int]]:
        """Returns a sequence's blocks in the prefix cache from a block's border on; at least one token is not in them.

        Of a hybrid network those behind the last state that was kept cannot be used; it is kept at their end next time.
        There are none for a sequence that needs log probabilities of its prompt, which all has to be computed.
        """
        beginning = self._beginning(sequence)
        if beginning is None or sequence.needs_prompt_logprobs:
            return []
        parent = sequence.chain[-1] if sequence.chain else beginning
        found = self.blocks.match(sequence.ids, start, len(sequence.ids) - 1, parent)
        usable = self.states.matched([serial for _, serial in found])
        if usable < len(found):
            self.blocks.release([block for block, _ in found[usable:]])
            sequence.shared_ends.add(start + len(found) * self.blocks.block_size)
        return found[:usable]

    def _beginning(self, sequence: Sequence) -> Parent | None:
        """Returns the parent of a sequence's first block in the prefix cache; None: the sequence does not use it.

        Without a prefix cache the choices of one request still share its prompt.
        """
        asked, request = sequence.params, sequence.request
        salt = asked.salt if self.caching else str(request.id) if request.sampling.n > 1 else ""
        if not (self.caching or salt):
            return None
        return salt if asked.adapter is None else (asked.adapter.key, salt)

    def _register(self, sequence: Sequence, tokens: int) -> None:
        beginning = self._beginning(sequence)
        if beginning is not None:
            self.blocks.register_all(sequence.blocks, sequence.ids, tokens, sequence.chain, beginning)

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

    # --- states of hybrid networks

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
        if end in sequence.shared_ends:
            return "shared"
        if end == self._last_end(sequence):
            return "prompt"
        return "inner" if end in (sequence.message_end, end // self._interval * self._interval) else None

    def _last_end(self, sequence: Sequence) -> int:
        """Returns the end of the last block that another prompt could share with a sequence that is the same."""
        size = self.blocks.block_size
        return (len(sequence.ids) - 1) // size * size

    def _first_message_end(self, sequence: Sequence) -> int:
        """Returns the end of the last whole block of a chat's first message, 0 if there is none.

        Other chats may begin with it. The next message begins with the same token, as the first one behind a token for
        the beginning of texts.
        """
        for place, token in enumerate(sequence.ids[:2]):
            if token in self.message_starts and sequence.ids.count(token) > 1:
                return sequence.ids.index(token, place + 1) // self.blocks.block_size * self.blocks.block_size
        return 0

    def _checkpoint_ends(self, sequence: Sequence, start: int, end: int) -> list[int]:
        """Returns where the states of a prompt are to be written while its tokens from start to end are computed.

        The last one is where the chunk ends, sooner than `end` if it could not write all that are wanted.
        """
        if not self.states.total or self._beginning(sequence) is None:
            return [end]
        inner = range(start // self._interval * self._interval, end, self._interval)
        wanted = {*inner, self._last_end(sequence), sequence.message_end, *sequence.shared_ends}
        ends = [*sorted(at for at in wanted if start < at < end), end]
        if len(ends) > 2 and ends[1] - ends[0] < max(ends[0] - start, ends[2] - ends[1]):
            return ends[:2]  # the network writes states at equal distances
        return ends[:3]

    def _keep(self, sequence: Sequence, kind: Kind) -> None:
        """Makes a sequence's state a checkpoint, if it is behind a cached block."""
        computed = int(self.tables.computed[sequence.row])
        if self.states.total and computed and computed == len(sequence.chain) * self.blocks.block_size:
            self.states.keep(sequence.chain, sequence.state_slot, kind)

    def _keep_answer(self, sequence: Sequence) -> None:
        """Makes the state of a decoding sequence a checkpoint at the end of a block, in place of its last one."""
        computed = int(self.tables.computed[sequence.row])
        if not self.states.total or computed % self.blocks.block_size or sequence.search is not None:
            return
        self._register(sequence, computed)
        if sequence.answer_end and self.states.unused(sequence.answer_end):
            self.states.forget(sequence.answer_end)
        self._keep(sequence, "answer")
        sequence.answer_end = sequence.chain[-1] if sequence.chain else 0
