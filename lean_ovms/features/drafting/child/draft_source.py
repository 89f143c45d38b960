"""Gives the sequences of an engine draft tokens, from a network or from their own texts, as long as these save time."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from ....engine.paged.block_manager import BlockManager, BlockTables
from ....engine.paged.model_inputs import Chunk
from ....engine.paged.sequence import Sequence
from . import ngrams
from .draft_budget import DraftBudget

if TYPE_CHECKING:
    from .drafter import Drafter


class BudgetedDrafts:
    """An engine.paged.parts.DraftSource that drafts with a network, or else with n-grams of the texts."""

    def __init__(self, drafter: Drafter | None) -> None:
        """Begins without measurements of a drafter: a draft model or a draft head, or None for n-grams."""
        self.asks_network = drafter is not None
        self.budget = DraftBudget()
        self.drafter = drafter
        self.texts: dict[Sequence, ngrams.NgramProposer] = {}
        """The drafters of running sequences by n-grams of their texts."""

    def copy(self, sequences: list[Sequence], decoding: int, *, few: bool, room: Callable[[Sequence], int]) -> None:
        """Sets draft tokens from the texts of sequences, if there is no network."""
        # The steps of a single sequence must not depend on measured times, so the budget does not limit it.
        left = sys.maxsize if decoding == 1 else decoding * self.budget.most(decoding)
        if self.asks_network or not left:
            return
        copying: list[Sequence] = []
        for sequence in sequences:
            if not sequence.params.num_assistant_tokens or sequence.draft_tokens:
                continue
            text = self.texts.get(sequence)
            if text is None:
                text = self.texts[sequence] = ngrams.NgramProposer(sequence.params.max_ngram_size)
            most = min(sequence.params.num_assistant_tokens, room(sequence), left)
            sequence.draft_tokens = text.propose(sequence.ids, most, few)
            if sequence.draft_tokens:
                copying.append(sequence)
        for sequence in copying:
            del sequence.draft_tokens[max(1, left // len(copying)) :]

    def most(self, decoding: int) -> int:
        """Returns the most draft tokens of each decoding sequence that the budget allows."""
        return self.budget.most(decoding)

    def propose(self, wanted: list[tuple[Sequence, int]]) -> None:
        """Sets the network's draft tokens."""
        if self.drafter is not None:
            self.drafter.propose(wanted)

    def computed(self, decoding: int, chunks: list[Chunk]) -> None:
        """Passes a computed step on to the network."""
        if self.drafter is not None:
            self.drafter.computed(decoding, chunks)

    def learn(self, sequences: int, drafted: int, accepted: int, seconds: float) -> None:
        """Passes the measurement of a step on to the budget."""
        self.budget.learn(sequences, drafted, accepted, seconds)

    def forget(self) -> None:
        """Discards the measurements."""
        self.budget.forget()

    def leave(self, sequence: Sequence) -> None:
        """Frees what is kept for a sequence that has ended or was preempted."""
        # A text takes 140 bytes per token, and other choices of its request may run for long.
        self.texts.pop(sequence, None)
        if self.drafter is not None:
            self.drafter.leave(sequence)


def of_texts(blocks: BlockManager, tables: BlockTables) -> BudgetedDrafts:
    """Returns a source of drafts without a network: an engine.paged.parts.DraftSourceFactory."""
    return BudgetedDrafts(None)
