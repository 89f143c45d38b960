"""Decides which sequences get draft tokens in a step, and how many.

Some draft tokens need no model: those that a grammar forces, and those that followed the same n-gram before. All others
come from a proposer. `step_runner` accepts or rejects them once the step is computed.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from .batch_state import BatchState
from .parts import Proposer, TextProposerFactory
from .sequence import Sequence

SHARE = 0.015
"""The fraction of the time that draft tokens may cost while they do not pay off."""
SAVED = 3
"""The limit of a balance, above and below zero: the time of this many steps without draft tokens."""
REFRESH = 64
"""The number of steps with draft tokens after which steps without any are measured again, since they take longer as
contexts grow."""
LONGEST = 32
"""The most draft tokens of a sequence in a step."""
RATE = 0.2
"""The weight of a new measurement of a step in its moving average."""
MOST = 2
"""A measurement of a step is limited to MOST times the known value."""
LEAST_S = 0.005
"""If steps are shorter than this, in seconds, there are no balances, since their time varies with other work of the
process."""


@dataclass(slots=True)
class Balance:
    """The time saved by draft tokens in batches of a similar size, and the duration of a step without any."""

    step_s: float = 0.0
    """The seconds of a step without draft tokens; 0 if not known yet."""
    saved_s: float = 0.0
    """The seconds that draft tokens have saved, minus those that they have cost."""
    length: int = 1
    """The most draft tokens of each sequence in the next step, if all sequences have some."""
    drafts: int = REFRESH
    """The number of steps with draft tokens since `step_s` was measured."""


class DraftBudget:
    """Gives a batch draft tokens as long as they save time; otherwise so rarely that they cost only SHARE of the time.

    A step with few sequences spends its time on reading weights, so draft tokens are nearly free; with more rows, each
    takes time from all sequences. Where this begins depends on the network and the machine, and the gain depends on how
    many tokens are accepted. So both are measured, together with the cost of drafting.

    A token is worth the time of a step without draft tokens divided by its number of sequences. A step with draft
    tokens saves the worth of its tokens minus its time, including drafting; each step without any adds SHARE of its
    time to the balance. If the balance is negative there are no draft tokens. At first a step may have as many draft
    tokens as there are sequences, shared by those with a draft. A step that saves time doubles this number for the
    next, any other halves it. Batches of 1, 2, 3 to 4, 5 to 8 and so on sequences have separate balances, so that a
    shrinking batch may get drafts again.
    """

    def __init__(self) -> None:
        self._balances: dict[int, Balance] = {}
        self._last: Balance | None = None  # that of the last step, None if it had draft tokens

    def most(self, sequences: int) -> int:
        """Returns the most draft tokens of each sequence in the next step, if all `sequences` have some."""
        balance = self._balances.get((sequences - 1).bit_length())
        if balance is None:
            return 0 if self._balances else LONGEST
        return balance.length if balance.saved_s >= 0 and balance.drafts < REFRESH else 0

    def learn(self, sequences: int, drafted: int, accepted: int, seconds: float) -> None:
        """Updates the balance with the measurement of a step without prompts.

        The first step without draft tokens after others is charged like these, since its number of rows changes, too.

        Args:
            sequences: The number of decoding sequences.
            drafted: The number of draft tokens.
            accepted: The number of accepted draft tokens.
            seconds: The duration of the step, including drafting.
        """
        if seconds < LEAST_S:
            self.forget()
            return
        balance = self._balances.setdefault((sequences - 1).bit_length(), Balance())
        before, self._last = self._last, None if drafted else balance
        if drafted or before is None:
            balance.drafts += drafted > 0
            if balance.step_s:
                saved = balance.step_s * (sequences + accepted) / sequences - seconds
                balance.saved_s += saved
                if drafted:
                    balance.length = min(LONGEST, 2 * balance.length) if saved > 0 else max(1, balance.length // 2)
        elif before is balance:
            balance.drafts = 0
            if not balance.step_s:
                balance.step_s = balance.saved_s = seconds
            seconds = min(seconds, MOST * balance.step_s)
            balance.step_s += RATE * (seconds - balance.step_s)
            balance.saved_s += SHARE * seconds
        most = SAVED * balance.step_s
        balance.saved_s = max(-most, min(most, balance.saved_s))

    def forget(self) -> None:
        """Discards the measurements, for instance those of a network's first steps, which take longer than all
        others.
        """
        self._balances.clear()
        self._last = None


FEW_SEQUENCES = 2
"""The most decoding sequences with which grammars jump forward, and short n-grams suffice for draft tokens: a step with
few sequences spends its time on reading weights. With the demo model, whose steps take a quarter of a millisecond, 4
streams took up to a third more CPU time with jumps than without, and 1 or 2 up to a third less (2026-11)."""


class Speculation:
    """Chooses draft tokens for the decoding sequences of a batch."""

    def __init__(
        self, batch: BatchState, proposer: Proposer | None, new_text_proposer: TextProposerFactory | None
    ) -> None:
        """Begins without measurements.

        Args:
            batch: The running sequences.
            proposer: A draft model or a draft head of the model; None for neither.
            new_text_proposer: Creates a proposer that uses a sequence's own text, if there is no other proposer; None
                if only grammars draft.
        """
        self.proposer = proposer
        self._new_text_proposer = new_text_proposer
        self.budget = DraftBudget()
        self._batch = batch

    def choose(self) -> None:
        """Chooses the draft tokens that need no model.

        A sequence that has some, or may get some from the proposer, is no longer a plain one.
        """
        batch = self._batch
        if batch.regroup:
            batch.group()
        decoding = len(batch.decoding)
        few = decoding <= FEW_SEQUENCES
        # One alone has the same steps each time.
        left = sys.maxsize if decoding == 1 else decoding * self.budget.most(decoding)
        new = self._new_text_proposer if self.proposer is None else None
        copying: list[Sequence] = []
        for sequence in batch.speculating:
            matcher = sequence.matcher if few and sequence.jump_forward_score > 0 else None
            sequence.draft_tokens = matcher.forced() if matcher is not None else []
            sequence.jump_forward = bool(sequence.draft_tokens)
            if sequence.params.lookahead and new is not None and not sequence.jump_forward and left:
                sequence.copies = sequence.copies or new(sequence.params.ngram)
                most = min(sequence.params.lookahead, self.room(sequence), left)
                sequence.draft_tokens = sequence.copies.propose(sequence.ids, most, few)
                if sequence.draft_tokens:
                    copying.append(sequence)
            drafting = bool(sequence.draft_tokens or (sequence.params.lookahead and self.proposer is not None))
            if drafting is not sequence.drafting:
                sequence.drafting, batch.regroup = drafting, True
        for sequence in copying:
            del sequence.draft_tokens[max(1, left // len(copying)) :]

    def propose(self, sequences: list[Sequence], left: int, each: int) -> None:
        """Gets draft tokens from the proposer, and limits those of other sources to the room in the step.

        Args:
            sequences: The sequences that may have draft tokens in the next step.
            left: The number of draft tokens for which the step has room.
            each: The most draft tokens of a sequence that has them without a model.
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
        """Returns how many draft tokens a sequence may have without preempting another sequence.

        A hybrid network needs a slot for the state after each draft token, so that none has to be computed again.
        """
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
        sequence.copies = None  # 140 bytes for a token, and other choices of its request may go on for long
        if self.proposer is not None:
            self.proposer.leave(sequence)
