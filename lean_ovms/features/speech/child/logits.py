"""Chooses the next token: Whisper's rules for timestamps, suppressed tokens, penalties and sampling."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..params import TranscribeParams
from .whisper_files import WhisperFiles

Logits = NDArray[np.float32]
NEVER = -np.inf
LEAST_FACTOR = 1e-30
"""The least repetition penalty that is applied: a logit divided by a smaller one could exceed float32's range."""


class Rules:
    """The rules of one model about the tokens that may come next."""

    def __init__(self, files: WhisperFiles) -> None:
        self._files = files
        self._suppress = np.array(sorted({*files.suppress, files.no_timestamps}), np.int64)
        self._begin = np.array(files.begin_suppress, np.int64)

    def apply(self, logits: Logits, tokens: Sequence[int], times: bool) -> None:
        """Masks the tokens that may not come next, by setting their logits to minus infinity.

        Args:
            logits: The logits [vocabulary], which are changed.
            tokens: The tokens of the text so far.
            times: Whether the text has timestamps.
        """
        logits[self._suppress] = NEVER
        if not tokens and len(self._begin):
            logits[self._begin] = NEVER
        if times:
            self._times(logits, tokens)

    def _times(self, logits: Logits, tokens: Sequence[int]) -> None:
        """Applies the rules of timestamps to the logits of the next token.

        Timestamps come in pairs and do not decrease. The next token must be one if all timestamps together are more
        probable than any single text token.
        """
        first, eot = self._files.first_time, self._files.eot
        if not tokens:
            logits[:first] = NEVER
            logits[first + self._files.initial_timestamp + 1 :] = NEVER
            return
        last_is_time = tokens[-1] >= first
        before_is_time = len(tokens) < 2 or tokens[-2] >= first
        if last_is_time:
            if before_is_time:
                logits[first:] = NEVER
            else:
                logits[:eot] = NEVER
        latest = next((token for token in reversed(tokens) if token >= first), None)
        if latest is not None:
            logits[first : latest if last_is_time and not before_is_time else latest + 1] = NEVER
        text = float(logits[:first].max())
        if text == NEVER:
            return
        top = float(logits[first:].max())
        if top > NEVER and top + np.log(np.exp(logits[first:] - top, dtype=np.float64).sum()) > text:
            logits[:first] = NEVER


def log_sum(logits: Logits) -> float:
    """Returns the logarithm of the sum of the exponentials of logits."""
    top = float(logits.max())
    return top + float(np.log(np.exp(logits - top).sum(dtype=np.float64)))


def probability(logits: Logits, token: int) -> float:
    """Returns the probability of a token."""
    return float(np.exp(float(logits[token]) - log_sum(logits)))


def penalize(logits: Logits, tokens: Sequence[int], params: TranscribeParams) -> None:
    """Applies the penalties of a request to the logits of the tokens in its text."""
    if not tokens:
        return
    seen, counts = np.unique(np.array(tokens, np.int64), return_counts=True)
    if params.repetition_penalty != 1.0:
        values, factor = logits[seen], np.float32(max(LEAST_FACTOR, params.repetition_penalty))
        logits[seen] = np.where(values > 0, values / factor, values * factor)
    if params.presence_penalty or params.frequency_penalty:
        logits[seen] -= params.presence_penalty + params.frequency_penalty * counts.astype(np.float32)


def sample(logits: Logits, temperature: float, params: TranscribeParams, rng: np.random.Generator) -> int:
    """Returns the likeliest token, or with a temperature a random one among those that top_k and top_p allow."""
    if temperature <= 0:
        return int(logits.argmax())
    with np.errstate(over="ignore"):  # with a tiny temperature all but the likeliest become impossible
        scaled = (logits.astype(np.float64) - logits.max()) / temperature
    if params.top_k <= 0 and params.top_p >= 1.0:  # nothing is excluded, so there is no need to sort
        shares = np.cumsum(np.exp(scaled))
        return int(np.searchsorted(shares, (1.0 - rng.random()) * shares[-1]))
    order = np.argsort(-scaled, kind="stable")
    if params.top_k > 0:
        order = order[: params.top_k]
    shares = np.exp(scaled[order])
    shares /= shares.sum()
    if params.top_p < 1.0:
        count = int(np.searchsorted(np.cumsum(shares), params.top_p)) + 1
        order, shares = order[:count], shares[:count] / shares[:count].sum()
    return int(order[min(int(np.searchsorted(np.cumsum(shares), rng.random(), side="right")), len(order) - 1)])
