"""Gives a batch draft tokens as long as they save time: their cost and their gain are both measured."""

from __future__ import annotations

from dataclasses import dataclass

SHARE = 0.015
"""The fraction of the time that draft tokens may cost while they do not pay off."""
SAVED = 3
"""The limit of a balance, above and below zero: the time of this many steps without draft tokens."""
REFRESH = 64
"""The steps with draft tokens after which some without are measured again: they take longer as contexts grow."""
LONGEST = 32
"""The most draft tokens of a sequence in a step."""
RATE = 0.2
"""The weight of a new measurement of a step in its moving average."""
MOST = 2
"""A measurement of a step is limited to MOST times the known value."""
LEAST_S = 0.005
"""If steps take fewer seconds, there are no balances, since their time varies with the process's other work."""


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
        self._last: Balance | None = None  # of the last step; None if it had draft tokens

    def most(self, sequences: int) -> int:
        """Returns the most draft tokens of each sequence in the next step, if all `sequences` have some."""
        balance = self._balances.get((sequences - 1).bit_length())
        if balance is None:
            return 0 if self._balances else LONGEST
        return balance.length if balance.saved_s >= 0 and balance.drafts < REFRESH else 0

    def learn(self, sequences: int, drafted: int, accepted: int, seconds: float) -> None:
        """Updates the balance with the measurement of a step without prompts.

        The first step without draft tokens after others is charged like these, since its number of rows changes, too.
        DraftSource.learn describes the parameters.
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
        """Discards the measurements, for instance of a network's first steps, which take longer than all others."""
        self._balances.clear()
        self._last = None
