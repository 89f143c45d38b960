"""The tokens that a chain of samplers still considers, with the samplers that only remove some of them.

Their semantics are those of llama.cpp (src/llama-sampler.cpp). A token whose logit is -inf remains a candidate, as
there: it counts for `min_keep` and for the greatest possible entropy, but it is never sampled.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ....engine.generation.request_validator import GREEDY_BELOW
from ....engine.paged.sampling import reductions

Row = NDArray[np.float32]
Places = NDArray[np.int64]
FORBIDDEN = np.float32(-np.inf)
MAX_SURPRISE = np.float32(1e30)
"""The surprise of a token that is never sampled, instead of infinity."""
LEAST_SIGMAS, MAX_SIGMAS = 1e-30, 1e6
"""The bounds of top_n_sigma: in single precision 0 times infinity is not a number, and no logit is as great as that."""
SORTED = (256, 4096)
"""How many of the first tokens are sorted at once; mostly these decide, and sorting a whole vocabulary takes 10 ms."""
FEW = 8
"""If at most one in this many candidates is allowed, the forbidden ones are left out before the likeliest are found."""


class Candidates:
    """The candidates of one step: at first all tokens of a row of logits."""

    def __init__(self, row: Row) -> None:
        """Begins with all tokens of a row [vocab], which `write` changes, as may the samplers."""
        self.row = row
        self.logits = row
        """The logits of the candidates."""
        self.ids: Places | None = None
        """The ids of the candidates, in ascending order; None for all tokens."""

    def __len__(self) -> int:
        return len(self.logits)

    def keep(self, places: Places) -> None:
        """Removes all candidates except those at these places."""
        places = np.sort(places)
        self.ids = places if self.ids is None else self.ids[places]
        self.logits = self.logits[places]

    def find(self, ids: Places) -> tuple[Places, Places]:
        """Returns, for each id that is a candidate, its place among the candidates and its place in `ids`."""
        if self.ids is None:
            return ids, np.arange(len(ids))
        at = np.minimum(self.ids.searchsorted(ids), len(self) - 1)
        known = np.flatnonzero(self.ids[at] == ids)
        return at[known], known

    def probabilities(self) -> Row:
        """Returns the probability of each candidate, the softmax of the logits."""
        weights: Row = np.exp(self.logits - self.logits.max())
        weights /= weights.sum(dtype=np.float64)
        return weights

    def surprises(self, probabilities: Row) -> tuple[Row, float]:
        """Returns -log(probability) of each candidate, at most MAX_SURPRISE, and the mean of it, the entropy."""
        # The greatest weight of a softmax is 1, so its probability tells the sum of all weights.
        found = np.minimum(self.logits.max() - self.logits - np.log(probabilities.max()), MAX_SURPRISE)
        return found, float(np.dot(probabilities, found))

    def write(self) -> None:
        """Writes the logits of the candidates into the row, and -inf for all other tokens."""
        if self.ids is None:
            self.row[:] = self.logits
            return
        self.row[:] = FORBIDDEN
        self.row[self.ids] = self.logits


def top_k(candidates: Candidates, most: int) -> None:
    """Keeps the `most` likeliest candidates, forbidden ones among them if there are no others."""
    logits = candidates.logits
    if most >= len(candidates):
        return
    allowed = logits > FORBIDDEN
    count = int(np.count_nonzero(allowed))
    if count > len(candidates) // FEW:
        candidates.keep(reductions.largest(logits[None], most)[0])
        return
    places = np.flatnonzero(allowed)  # searching among equal logits would take ten times as long
    if count > most:
        places = places[reductions.largest(logits[places][None], most)[0]]
    else:
        places = np.concatenate([places, np.flatnonzero(~allowed[: 2 * most])[: most - count]])
    candidates.keep(places)


def top_p(candidates: Candidates, mass: float, min_keep: int) -> None:
    """Keeps the likeliest candidates that together have at least the probability `mass`, and at least `min_keep`."""
    found = candidates.probabilities()
    candidates.keep(_first(-found, found, mass, min_keep))


def typical_p(candidates: Candidates, mass: float, min_keep: int) -> None:
    """Keeps the candidates whose surprise is nearest to the entropy, with more than the probability `mass` together.

    This is locally typical sampling (Meister et al., 2022).
    """
    found = candidates.probabilities()
    surprises, entropy = candidates.surprises(found)
    candidates.keep(_first(np.abs(surprises - np.float32(entropy)), found, np.nextafter(mass, 2), min_keep))


def _first(scores: Row, weights: Row, mass: float, min_keep: int) -> Places:
    """Returns the places with the lowest scores whose weights together reach `mass`, at least `min_keep` of them."""
    count = len(scores)
    if min_keep >= count:
        return np.arange(count)
    for most in (*SORTED, count):
        near = scores.argpartition(most - 1)[:most] if most < count else np.arange(count)
        order = near[_ascending(scores[near])]
        reached = np.flatnonzero(weights[order].cumsum(dtype=np.float64) >= mass)
        needed = max(int(reached[0]) + 1, min_keep) if len(reached) else count
        if needed <= len(order):
            return order[:needed]
    return order


def _ascending(scores: Row) -> Places:
    """Returns the places of scores in ascending order, and of equal ones the first one first.

    The bits of a number, those of a negative one inverted except for the sign, have its order as an integer. Followed
    by the places, they are sorted in half of the time that a stable argsort takes.
    """
    bits = scores.view(np.int32).astype(np.int64)
    keys = (bits ^ (bits >> 31 & 0x7FFFFFFF)) << 32 | np.arange(len(scores))
    keys.sort()
    return keys & 0xFFFFFFFF


def min_p(candidates: Candidates, fraction: float, min_keep: int) -> None:
    """Keeps the candidates with at least this fraction of the greatest probability, and at least `min_keep`."""
    least = candidates.logits.max() + np.float32(np.log(fraction))
    places = np.flatnonzero(candidates.logits >= least)
    if len(places) < min_keep:
        top_k(candidates, min_keep)
    else:
        candidates.keep(places)


def top_n_sigma(candidates: Candidates, sigmas: float) -> None:
    """Forbids the candidates whose logits are more than so many standard deviations below the greatest."""
    if len(candidates) > 1:
        logits, most = candidates.logits, candidates.logits.max()
        below = logits - most if logits.min() > FORBIDDEN else (logits - most)[logits > FORBIDDEN]
        below -= below.mean(dtype=np.float64)
        with np.errstate(over="ignore"):  # logits with the greatest penalties have an infinite deviation
            deviation = np.sqrt(np.dot(below, below) / len(below))
        places = np.flatnonzero(logits >= most - np.float32(min(max(sigmas, LEAST_SIGMAS), MAX_SIGMAS)) * deviation)
        kept = logits[places]
        logits.fill(FORBIDDEN)
        logits[places] = kept


def exclude_top_choices(candidates: Candidates, threshold: float, min_keep: int) -> None:
    """Removes all candidates with at least the probability `threshold`, except the least likely one of them (XTC)."""
    found = candidates.probabilities()
    above = np.flatnonzero((found >= threshold) & (found > 0))
    removed = len(above) - 1
    if removed > 0 and len(candidates) - removed >= min_keep:
        kept = np.ones(len(candidates), np.bool_)
        kept[above] = False
        kept[above[found[above].argmin()]] = True
        candidates.keep(np.flatnonzero(kept))


def temperature(candidates: Candidates, value: float) -> None:
    """Divides the logits by the temperature; near 0 only the likeliest candidate remains."""
    candidates.logits = candidates.logits - candidates.logits.max()
    if value > GREEDY_BELOW:
        candidates.logits /= np.float32(value)
    else:
        top_k(candidates, 1)


def dynamic_temperature(candidates: Candidates, least: float, most: float, exponent: float) -> None:
    """Applies a temperature between two values, which rises with the entropy.

    Args:
        candidates: The candidates.
        least: The temperature for an entropy of 0.
        most: The temperature for the greatest possible entropy.
        exponent: The exponent of the entropy as a fraction of the greatest.
    """
    if len(candidates) > 1:
        _, entropy = candidates.surprises(candidates.probabilities())
        part = max(0.0, entropy / float(np.log(len(candidates))))
        temperature(candidates, least + (most - least) * part**exponent)
