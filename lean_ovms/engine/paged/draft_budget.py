"""How many draft tokens the sequences of a batch get, by what steps with them and without them cost.

A step of few sequences reads weights more than it computes, so draft tokens are nearly free; at more rows each takes
time from all sequences. Where that begins depends on the network and the machine, and what it is worth on how many
tokens are accepted. So both are measured, together with what the drafts themselves take.
"""

from __future__ import annotations

from dataclasses import dataclass

SHARE = 0.015
"""How much of the time draft tokens may cost where they do not pay."""
SAVED = 3
"""Steps without draft tokens whose time is the most that a balance has, above zero or below."""
REFRESH = 64
"""Steps with draft tokens after which some without are measured again: they take longer as contexts grow."""
LONGEST = 32
RATE = 0.2
MOST = 2
"""A measured step counts as at most MOST times the known one."""

LEAST_S = 0.005
"""After a shorter step there are no balances: what it takes varies with what else the process does."""


@dataclass(slots=True)
class Balance:
    """What draft tokens have saved in batches of about the same size, and what a step without any takes.

    step_s: 0 before it is known. length: most draft tokens of a sequence in the next step. drafts: steps with draft
    tokens since step_s was measured, which has to come first.
    """

    step_s: float = 0.0
    saved_s: float = 0.0
    length: int = 1
    drafts: int = REFRESH


class DraftBudget:
    """Gives a batch draft tokens as long as they save time, and else as often as costs SHARE of the time.

    A token is worth the time of a step without draft tokens by the number of its sequences. A step with draft tokens
    saves what its tokens are worth less its time, drafts included; any other adds SHARE of its time to the balance.
    Below zero there are no draft tokens. Drafts begin with one token for each sequence; a step that saves time doubles
    what the next may have, any other halves it. Batches of 1, 2, 3 to 4, 5 to 8 and so on have balances of their own,
    so one that shrinks may have them again.
    """

    def __init__(self) -> None:
        self._balances: dict[int, Balance] = {}
        self._last: Balance | None = None  # that of the last step, None if it had draft tokens

    def most(self, sequences: int) -> int:
        """Returns the most draft tokens of a sequence in the next step of so many sequences."""
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
