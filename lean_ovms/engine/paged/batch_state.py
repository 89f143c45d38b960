"""The running sequences of the paged engine, with their block table rows, KV blocks and draft tokens."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..generation.fair_queue import ClientQueue
from .block_manager import BlockManager, BlockTables
from .network import AdapterProvider, Network
from .parts import DraftSource
from .sequence import Sequence
from .state_checkpoints import StateCheckpoints

FEW_SEQUENCES = 2
"""The most decoding sequences with which grammars jump forward, and short n-grams suffice for draft tokens: a step with
few sequences spends its time on reading weights. With the demo model, whose steps take a quarter of a millisecond, 4
streams took up to a third more CPU time with jumps than without, and 1 or 2 up to a third less (2026-11)."""


class BatchState:
    """Keeps the running sequences. The scheduler decides which are added and removed."""

    def __init__(
        self,
        network: Network,
        blocks: BlockManager,
        tables: BlockTables,
        checkpoints: StateCheckpoints,
        adapters: AdapterProvider,
    ) -> None:
        """Creates an empty batch.

        Args:
            network: The network, which copies blocks.
            blocks: The blocks of the KV cache.
            tables: The block tables, with a row for each running sequence.
            checkpoints: The states of a hybrid network's sequences.
            adapters: Counts the running sequences of each adapter.
        """
        self.blocks = blocks
        self.tables = tables
        self.checkpoints = checkpoints
        self.adapters = adapters
        self.prefilling: list[Sequence] = []
        """The sequences in prefill, in the order in which they are computed."""
        self.decoding: list[Sequence] = []
        """The decoding sequences."""
        self.searching: list[Sequence] = []
        """The first sequence of each running beam search."""
        self.left_out: frozenset[ClientQueue] = frozenset()
        """The clients whose sequences the next step leaves out."""
        self.active: list[Sequence] = []
        """The decoding sequences of the other clients, as of the last call of `group`."""
        self.plain: list[Sequence] = []
        """The active sequences without draft tokens, as of the last call of `group`."""
        self.plain_rows: NDArray[np.int64] = np.zeros(0, np.int64)
        """The rows of the plain sequences."""
        self.speculating: list[Sequence] = []
        """The active sequences that may have draft tokens."""
        self.regroup = True
        """Whether `group` must be called, since the decoding sequences or their draft tokens have changed."""
        self.changed = True
        """Whether the decoding sequences, their blocks or their state slots differ from those of the last step."""
        self._network = network

    @property
    def running(self) -> list[Sequence]:
        """All running sequences: those that decode and those in prefill."""
        return self.decoding + self.prefilling

    @property
    def slots_used(self) -> int:
        """The number of slots in use. A beam search takes one."""
        return len(self.decoding) + len(self.prefilling) - sum(len(s.members) - 1 for s in self.searching)

    @property
    def rows_used(self) -> int:
        """The number of rows that are in use, or reserved for the beams of searches."""
        return self.slots_used + sum(s.rows - 1 for s in self.searching)

    def blocks_of(self, client: ClientQueue) -> int:
        """Returns the number of blocks that the running sequences of a client have."""
        return sum(len(s.blocks) for s in self.running if s.client is client)

    def group(self) -> None:
        """Divides the active sequences into plain ones and those that may have draft tokens."""
        self.active = self.decoding
        if self.left_out:
            self.active = [s for s in self.decoding if s.client not in self.left_out]
        self.plain = [s for s in self.active if not s.drafting]
        self.speculating = [
            s for s in self.active if s.search is None and (s.matcher is not None or s.params.num_assistant_tokens)
        ]
        self.plain_rows = np.array([s.row for s in self.plain], np.int64)
        self.regroup, self.changed = False, True

    def leave_out(self, clients: frozenset[ClientQueue]) -> None:
        """Makes the next step leave out the sequences of some clients."""
        if clients != self.left_out:
            self.left_out, self.regroup = clients, True

    def start(self, sequence: Sequence) -> None:
        """Adds a sequence in prefill. Cached blocks, if any, have been assigned to it already."""
        sequence.row = self.tables.allocate(sequence.blocks, sequence.adapter, sequence.shift)
        sequence.state = "prefill"
        self.prefilling.append(sequence)
        if sequence.search is not None:
            self.searching.append(sequence)

    def decode(self, sequence: Sequence) -> None:
        """Moves a sequence whose prompt is computed from prefill to the decoding sequences."""
        self.prefilling.remove(sequence)
        self.decoding.append(sequence)
        sequence.state = "decode"
        self.regroup = True

    def decoded(self, rows: NDArray[np.int64]) -> None:
        """Records that a step has computed one token of each plain sequence, at these rows of the tables."""
        self.tables.computed[rows] += 1
        if self.checkpoints.take_moved():
            self.changed = True

    def grow(self, sequence: Sequence, blocks: int) -> None:
        """Allocates further blocks for a sequence. As many must be free."""
        new = [self.blocks.allocate() for _ in range(blocks)]
        sequence.blocks += new
        self.tables.append(sequence.row, new)
        self.changed = True

    def shrink(self, sequence: Sequence) -> None:
        """Frees the blocks of a sequence that its tokens do not need."""
        need = self.blocks.blocks(len(sequence.ids))
        if len(sequence.blocks) > need:
            self.blocks.release(sequence.blocks[need:])
            del sequence.blocks[need:]
            self.tables.num_blocks[sequence.row] = need

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Makes a beam continue from another: it shares full blocks, and gets a copy of the block being filled.

        A row and a block must be free.
        """
        self.adapters.acquire(child.adapter)
        row = self.tables.allocate([], child.adapter, child.shift)
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
        self.tables.num_blocks[row] = len(child.blocks)
        child.state_slot = self.checkpoints.states.share(parent.state_slot)
        self.decoding.append(child)
        self.regroup = True

    def remove(self, sequence: Sequence) -> None:
        """Removes a running sequence. Its blocks are freed, and stay in the prefix cache until they are evicted."""
        (self.prefilling if sequence.state == "prefill" else self.decoding).remove(sequence)
        self.blocks.release(sequence.blocks)
        self.tables.free(sequence.row)
        self.adapters.release(sequence.adapter)
        self.checkpoints.leave(sequence)
        sequence.blocks, sequence.chain, sequence.row = [], [], -1
        self.regroup = True


class Speculation:
    """Decides which decoding sequences of a batch get draft tokens in a step, and how many.

    Draft tokens that a grammar forces need no model. All others come from a DraftSource, which a feature supplies.
    `step_runner` accepts or rejects draft tokens once the step is computed.
    """

    def __init__(self, batch: BatchState, source: DraftSource | None) -> None:
        """Creates the object, without draft tokens; the source is of those that no grammar forces, None for none."""
        self.source = source
        self._batch = batch

    @property
    def asks_network(self) -> bool:
        """Whether draft tokens may come from a network, which has to know every step."""
        return self.source is not None and self.source.asks_network

    def choose(self) -> None:
        """Chooses the draft tokens that need no model, and marks the sequences that have, or may get, draft tokens."""
        batch, source = self._batch, self.source
        if batch.regroup:
            batch.group()
        few = len(batch.active) <= FEW_SEQUENCES
        for sequence in batch.speculating:
            matcher = sequence.matcher if few and sequence.jump_forward_score > 0 else None
            sequence.draft_tokens = matcher.forced() if matcher is not None else []
            sequence.jump_forward = bool(sequence.draft_tokens)
        if source is not None and batch.speculating:
            source.copy(batch.speculating, len(batch.active), few=few, room=self.room)
        asks_network = self.asks_network
        for sequence in batch.speculating:
            drafting = bool(sequence.draft_tokens or (sequence.params.num_assistant_tokens and asks_network))
            if drafting is not sequence.drafting:
                sequence.drafting, batch.regroup = drafting, True

    def propose(self, sequences: list[Sequence], left: int, each: int) -> None:
        """Gets draft tokens from a network, and limits those of other sources to the room in the step.

        Args:
            sequences: The sequences that may have draft tokens in the next step.
            left: The number of draft tokens for which the step has room.
            each: The most draft tokens of a sequence that has them without a model.
        """
        batch, source = self._batch, self.source
        left = min(left, batch.checkpoints.spare(len(batch.running)))
        longest = source.most(len(batch.active)) if source is not None else 0
        wanted: list[tuple[Sequence, int]] = []
        for sequence in sequences:
            if sequence.draft_tokens:
                most = min(self.room(sequence), left, each)
                sequence.draft_tokens = sequence.draft_tokens[: max(0, most)]
                left -= len(sequence.draft_tokens)
            elif sequence.row >= 0:
                room = max(0, min(self.room(sequence), left, sequence.params.num_assistant_tokens, longest))
                wanted.append((sequence, room))
                left -= room
        if source is not None:
            source.propose(wanted)

    def room(self, sequence: Sequence) -> int:
        """Returns how many draft tokens a sequence may have by the free blocks and, in a hybrid, slots for states."""
        batch, known = self._batch, len(sequence.ids)
        free = (len(sequence.blocks) + batch.blocks.available) * batch.blocks.block_size - known
        return min(sequence.limit - known - 1, free, batch.checkpoints.spare(len(batch.running)))

    def fit(self, sequence: Sequence) -> int:
        """Limits a sequence's draft tokens to the room that is left, and allocates a state slot for each.

        Returns the number of tokens that can be computed, including the newest one; 0 if not even that one can be.
        """
        room = max(0, self.room(sequence))
        del sequence.draft_tokens[room:]  # others have taken blocks meanwhile
        del sequence.alternatives[min(len(sequence.draft_tokens), room - len(sequence.draft_tokens)) :]
        count = 1 + len(sequence.draft_tokens)
        if self._batch.checkpoints.enabled:
            count = self._batch.checkpoints.write_states(sequence, count)
            del sequence.draft_tokens[max(0, count - 1) :]
        return count

    def reject(self, sequence: Sequence) -> None:
        """Drops a sequence's remaining draft tokens, with the states after them and their blocks."""
        sequence.draft_tokens, sequence.alternatives = [], []
        self._batch.shrink(sequence)
        self._batch.checkpoints.drop_written(sequence)

    def leave(self, sequence: Sequence) -> None:
        """Drops the draft tokens of a sequence that is no longer running."""
        sequence.draft_tokens, sequence.alternatives = [], []
        sequence.drafting = sequence.jump_forward = False
        if self.source is not None:
            self.source.leave(sequence)
