"""The interface of grammars that are matched with bitmasks, for any grammar library."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Matcher(Protocol):
    """The state of one text in its grammar."""

    def prepare(self) -> None:
        """Compute the mask early, while the network computes. Optional before `apply`."""
        ...

    def apply(self, line: NDArray[np.float32]) -> None:
        """Forbid, in logits [vocab], what may not come next. Raises logits.NoToken."""
        ...

    def consume(self, token: int) -> bool:
        """The next token; True when the grammar is over and nothing may follow."""
        ...

    def forced(self) -> list[int]:
        """Tokens of the text that has to come next, as far as the grammar leaves no choice.

        The same text may have other tokens, of which the model chooses: these are a guess.
        """
        ...

    def fork(self) -> Matcher:
        """The same state for another text that goes on from here."""
        ...


def one_by_one(matchers: list[Matcher]) -> None:
    """Compute their masks."""
    for matcher in matchers:
        matcher.prepare()
