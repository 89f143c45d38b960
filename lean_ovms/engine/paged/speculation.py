"""Decides which sequences get draft tokens in a step, and how many.

Some need no model: where a grammar leaves no choice, or where an n-gram occurred before. Others are a proposer's. What
is right of them is seen when the step is computed: `step_runner` accepts and rejects them.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from .batch_state import BatchState
from .parts import Proposer, TextProposerFactory
from .sequence import Sequence

SHARE = 0.015
"""How much of the time draft tokens may cost where they do not pay."""
SAVED = 3
"""Steps without draft tokens whose time is the most that a balance has, above zero or below."""
REFRESH = 64
"""Steps with draft tokens after which some without are measured again: they take longer as contexts grow."""
LONGEST = 32
"""The most draft tokens of a sequence in a step."""
RATE = 0.2
"""How much of the difference between a measured step and the known one the known one changes by."""
MOST = 2
"""A measured step counts as at most MOST times the known one."""
LEAST_S = 0.005
"""After a shorter step there are no balances: what it takes varies with what else the process does."""


@dataclass(slots=True)
class Balance:
    """The time that draft tokens have saved in batches of about the same size, and that of a step without any."""

    step_s: float = 0.0
    """The seconds of a step without draft tokens; 0: not known yet."""
    saved_s: float = 0.0
    """The seconds that draft tokens have saved, less what they have cost."""
    length: int = 1
    """The most draft tokens of each sequence in the next step, if all have some."""
    drafts: int = REFRESH
    """The steps with draft tokens since `step_s` was measured, which has to come first."""


class DraftBudget:
    """Gives a batch draft tokens as long as they save time, and else as often as costs SHARE of the time.

    A step of few sequences reads weights more than it computes, so draft tokens are nearly free; at more rows each
    takes time from all sequences. Where that begins depends on the network and the machine, and what it is worth on how
    many tokens are accepted. So both are measured, together with what the drafts themselves take.

    A token is worth the time of a step without draft tokens by the number of its sequences. A step with draft tokens
    saves what its tokens are worth less its time, drafts included; any other adds SHARE of its time to the balance.
    Below zero there are no draft tokens. Drafts begin with as many tokens as there are sequences, which those with a
    draft share; a step that saves time doubles what the next may have, any other halves it. Batches of 1, 2, 3 to 4, 5
    to 8 and so on have balances of their own, so one that shrinks may have them again.
    """

    def __init__(self) -> None:
        self._balances: dict[int, Balance] = {}
        self._last: Balance | None = None  # that of the last step, None if it had draft tokens

    def most(self, sequences: int) -> int:
        """Returns the most draft tokens of each sequence in the next step, if all of so many have some."""
        balance = self._balances.get((sequences - 1).bit_length())
        if balance is None:
            return 0 if self._balances else LONGEST
        return balance.length if balance.saved_s >= 0 and balance.drafts < REFRESH else 0

    def learn(self, sequences: int, drafted: int, accepted: int, seconds: float) -> None:
        """Updates the balance from a step without prompts.

        The first step without draft tokens is charged as those with them are: its number of rows is another.
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
        """Forgets what was measured, as ChunkSizes.forget does."""
        self._balances.clear()
        self._last = None


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
            batch: The running sequences.
            proposer: A draft model, or a head of the model; None: there is neither.
            new_text_proposer: Makes what drafts from the text of a sequence, where there is no proposer; None: only
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
        """Sets the proposer's draft tokens, and cuts those of others to what a step has room for.

        Args:
            sequences: Those that may have draft tokens in the next step.
            left: Draft tokens for which the step has room.
            each: Most draft tokens of a sequence that has some without a model.
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
