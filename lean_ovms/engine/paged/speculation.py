"""Decides which sequences get draft tokens in a step, and how many.

Draft tokens that a grammar forces need no model. All others come from a DraftSource, which a feature supplies.
`step_runner` accepts or rejects draft tokens once the step is computed.
"""

from __future__ import annotations

from .batch_state import BatchState
from .parts import DraftSource
from .sequence import Sequence

FEW_SEQUENCES = 2
"""The most decoding sequences with which grammars jump forward, and short n-grams suffice for draft tokens: a step with
few sequences spends its time on reading weights. With the demo model, whose steps take a quarter of a millisecond, 4
streams took up to a third more CPU time with jumps than without, and 1 or 2 up to a third less (2026-11)."""


class Speculation:
    """Chooses draft tokens for the decoding sequences of a batch."""

    def __init__(self, batch: BatchState, source: DraftSource | None) -> None:
        """Creates the object, without draft tokens; the source is of those that no grammar forces, None for none."""
        self.source = source
        self._batch = batch

    @property
    def asks_network(self) -> bool:
        """Whether draft tokens may come from a network, which has to know every step."""
        return self.source is not None and self.source.asks_network

    def choose(self) -> None:
        """Chooses draft tokens that need no model; sequences that have or may get some are not plain any more."""
        batch, source = self._batch, self.source
        if batch.regroup:
            batch.group()
        few = len(batch.decoding) <= FEW_SEQUENCES
        for sequence in batch.speculating:
            matcher = sequence.matcher if few and sequence.jump_forward_score > 0 else None
            sequence.draft_tokens = matcher.forced() if matcher is not None else []
            sequence.jump_forward = bool(sequence.draft_tokens)
        if source is not None and batch.speculating:
            source.copy(batch.speculating, len(batch.decoding), few=few, room=self.room)
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
        longest = source.most(len(batch.decoding)) if source is not None else 0
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
