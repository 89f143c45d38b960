"""Which sequences get draft tokens in a step, and how many.

Some need no model: where a grammar leaves no choice, or where an n-gram occurred before. Others are a proposer's. What
is right of them is seen when the step is computed: `step_runner` accepts and rejects them.
"""

from __future__ import annotations

import sys

from .batch_state import BatchState
from .draft_budget import DraftBudget
from .parts import Proposer, TextProposerFactory
from .sequence import Sequence

FEW_SEQUENCES = 2
"""Decoding sequences up to which grammars jump forward and short n-grams suffice for draft tokens: a step of few
sequences reads weights more than it computes. With the demo model, whose steps take a quarter of a millisecond, 4
streams took up to a third more CPU time with jumps than without, 1 and 2 up to a third less (2026-11)."""


class Speculation:
    """Gives the decoding sequences of a batch draft tokens."""

    def __init__(
        self, batch: BatchState, proposer: Proposer | None, new_text_proposer: TextProposerFactory | None
    ) -> None:
        """Begins with a budget of which nothing is measured.

        Args:
            batch: the running sequences.
            proposer: a draft model, or a head of the model; None: there is neither.
            new_text_proposer: makes what drafts from the text of a sequence, where there is no proposer; None: only
                grammars draft then.
        """
        self.proposer = proposer
        self._new_text_proposer = new_text_proposer
        self.budget = DraftBudget()
        self._batch = batch

    def choose(self) -> None:
        """Sets the draft tokens that need no model.

        A sequence that gets them, or may get those of a draft model, is not one of the plain ones.
        """
        batch = self._batch
        if batch.regroup:
            batch.group()
        decoding = len(batch.decoding)
        few = decoding <= FEW_SEQUENCES
        longest = sys.maxsize if decoding == 1 else self.budget.most(decoding)  # one alone: each step is the same
        new = self._new_text_proposer if self.proposer is None else None
        for sequence in batch.speculating:
            matcher = sequence.matcher if few and sequence.jump_forward_score > 0 else None
            sequence.draft_tokens = matcher.forced() if matcher is not None else []
            sequence.jump_forward = bool(sequence.draft_tokens)
            if sequence.params.lookahead and new is not None and not sequence.jump_forward and longest:
                sequence.copies = sequence.copies or new(sequence.params.ngram)
                most = min(sequence.params.lookahead, self.room(sequence), longest)
                sequence.draft_tokens = sequence.copies.propose(sequence.ids, most, few)
            drafting = bool(sequence.draft_tokens or (sequence.params.lookahead and self.proposer is not None))
            if drafting is not sequence.drafting:
                sequence.drafting, batch.regroup = drafting, True

    def propose(self, sequences: list[Sequence], left: int, each: int) -> None:
        """Sets the proposer's draft tokens, and cuts those of others to what a step has room for.

        Args:
            sequences: those that may have draft tokens in the next step.
            left: draft tokens for which the step has room.
            each: most draft tokens of a sequence that has some without a model.
        """
        batch = self._batch
        left = min(left, batch.checkpoints.spare(len(batch.running)))
        longest = self.budget.most(len(batch.decoding))
        wanted: list[tuple[Sequence, int]] = []
        for sequence in sequences:
            if sequence.draft_tokens:
                most = min(self.room(sequence), left, each)
                sequence.draft_tokens = sequence.draft_tokens[: max(0, most)]
                left -= len(sequence.draft_tokens)
            elif sequence.row >= 0:
                room = max(0, min(self.room(sequence), left, sequence.params.lookahead, longest))
                wanted.append((sequence, room))
                left -= room
        if self.proposer is not None:
            self.proposer.propose(wanted)

    def room(self, sequence: Sequence) -> int:
        """Returns how many draft tokens a sequence may have, without preempting any other.

        A hybrid network writes the state behind each of them, so that none has to be computed again.
        """
        batch, known = self._batch, len(sequence.ids)
        free = (len(sequence.blocks) + batch.blocks.available) * batch.blocks.block_size - known
        return min(sequence.limit - known - 1, free, batch.checkpoints.spare(len(batch.running)))

    def fit(self, sequence: Sequence) -> int:
        """Cuts a sequence's draft tokens to what there is room for now, and gives each a slot for the state behind it.

        Returns how many tokens can be computed with draft tokens, the newest one among them; 0: not even that one.
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
        """Drops the draft tokens of a sequence that are left, with the states behind them and the blocks for them."""
        sequence.draft_tokens, sequence.alternatives = [], []
        self._batch.shrink(sequence)
        self._batch.checkpoints.drop_written(sequence)

    def leave(self, sequence: Sequence) -> None:
        """Forgets the draft tokens of a sequence that does not run any more."""
        sequence.draft_tokens, sequence.alternatives = [], []
        sequence.drafting = sequence.jump_forward = False
        sequence.copies = None  # 140 bytes for a token, and other choices of its request may go on for long
        if self.proposer is not None:
            self.proposer.leave(sequence)
