"""The running sequences of the paged engine, with their rows and their blocks."""

from __future__ import annotations

import sys

import numpy as np

from ..generation.fair_queue import FairQueue
from ..generation.sequence import ClientQueue
from .block_manager import BlockManager
from .block_tables import BlockTables
from .drafting.draft_budget import DraftBudget
from .drafting.ngrams import NgramProposer
from .drafting.proposer import Proposer
from .hooks import StepHook
from .network import Network
from .parts import AdapterProvider
from .prefixes import Prefixes
from .sequence import Sequence
from .state_cache import NO_STATE, StateCache

FEW_SEQUENCES = 2
"""Decoding sequences up to which grammars jump forward and short n-grams suffice for draft tokens: a step of few
sequences reads weights more than it computes. With the demo model, whose steps take a quarter of a millisecond, 4
streams took up to a third more CPU time with jumps than without, 1 and 2 up to a third less (2026-11)."""


class RunningSequences(Prefixes):
    """Adds sequences and removes them; `scheduler` decides which.

    prefilling: sequences whose prompts are computed, in this order. speculating: decoding sequences that may have draft
    tokens.
    """

    def __init__(
        self,
        network: Network,
        blocks: BlockManager,
        tables: BlockTables,
        proposer: Proposer | None,
        adapters: AdapterProvider,
        states: StateCache,
        waiting: FairQueue[Sequence],
        *,
        caching: bool,
        interval: int,
        hooks: list[StepHook],
    ) -> None:
        """waiting: charges clients for tokens. caching, interval, hooks: of Prefixes."""
        super().__init__(network, blocks, tables, states, caching=caching, interval=interval, hooks=hooks)
        self.waiting = waiting
        self.prefilling: list[Sequence] = []
        self.decoding: list[Sequence] = []
        self.proposer = proposer
        self.draft_budget = DraftBudget()
        self._adapters = adapters
        self._regroup = True
        self.speculating: list[Sequence] = []
        self._plain: list[Sequence] = []  # of the decoding, those without draft tokens
        self._plain_rows = np.zeros(0, np.int64)

    @property
    def running(self) -> list[Sequence]:
        return self.decoding + self.prefilling

    def blocks_of(self, client: ClientQueue) -> int:
        return sum(len(s.blocks) for s in self.running if s.client is client)

    def _spare_states(self) -> int:
        """Returns how many states may be written for draft tokens; the other sequences need a slot more at most."""
        return self.states.available - len(self.running) if self.states.total else sys.maxsize

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Makes child go on from where parent is: it shares full blocks, and gets a copy of the one being written.

        A row and a block must be free.
        """
        self._adapters.acquire(child.params.adapter)
        row = self.tables.allocate([], child.params)
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
        sequence.draft_tokens, sequence.alternatives = [], []
        sequence.drafting = sequence.jump_forward = False
        sequence.ngrams = None  # 140 bytes for a token, and other choices of its request may go on for long
        if self.proposer is not None:
            self.proposer.leave(sequence)

    def _group(self) -> None:
        self._plain = [s for s in self.decoding if not s.drafting]
        self.speculating = [
            s for s in self.decoding if s.search is None and (s.matcher is not None or s.params.lookahead)
        ]
        self._plain_rows = np.array([s.row for s in self._plain], np.int64)
        self._regroup, self.changed = False, True

    def _speculate(self) -> None:
        """Sets draft tokens that need no model: where a grammar leaves no choice, or an n-gram occurred before.

        A sequence that gets them, or may get those of a draft model, is not one of the plain ones.
        """
        if self._regroup:
            self._group()
        few = len(self.decoding) <= FEW_SEQUENCES
        alone = len(self.decoding) == 1  # its steps are the same each time
        longest = sys.maxsize if alone else self.draft_budget.most(len(self.decoding))
        for sequence in self.speculating:
            matcher = sequence.matcher if few and sequence.jump_forward_score > 0 else None
            sequence.draft_tokens = matcher.forced() if matcher is not None else []
            sequence.jump_forward = bool(sequence.draft_tokens)
            if sequence.params.lookahead and self.proposer is None and not sequence.jump_forward and longest:
                sequence.ngrams = sequence.ngrams or NgramProposer(sequence.params.ngram)
                most = min(sequence.params.lookahead, self._room(sequence), longest)
                sequence.draft_tokens = sequence.ngrams.propose(sequence.ids, most, few)
            drafting = bool(sequence.draft_tokens or (sequence.params.lookahead and self.proposer is not None))
            if drafting is not sequence.drafting:
                sequence.drafting, self._regroup = drafting, True

    def _room(self, sequence: Sequence) -> int:
        """Returns how many draft tokens a sequence may have, without preempting any other.

        A hybrid network writes the state behind each of them, so that none has to be computed again.
        """
        known = len(sequence.ids)
        free = (len(sequence.blocks) + self.blocks.available) * self.blocks.block_size - known
        return min(sequence.limit - known - 1, free, self._spare_states())

    def _charge(self, sequence: Sequence) -> None:
        """Charges a sequence's client for the tokens generated since the last time."""
        if len(sequence.ids) > sequence.charged:
            self.waiting.charge(sequence.client, len(sequence.ids) - sequence.charged)
            sequence.charged = len(sequence.ids)
