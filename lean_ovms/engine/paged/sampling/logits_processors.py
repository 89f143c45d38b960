"""Changes logits before a token is sampled, one row [vocab] at a time, in place.

The order is vLLM's (vllm/v1/sample/sampler.py): allowed ids, bad words, minimum length, bias, penalties. The end of
reasoning, when its budget is used up, overrides all of these, but not a grammar. A great top_k or a sampler chain comes
last. The penalties are those of transformers (RepetitionPenaltyLogitsProcessor) and OpenAI (presence and frequency,
over generated tokens). Forbidden tokens get -inf.
"""

from __future__ import annotations

from array import array

import numpy as np
from numpy.typing import NDArray

from ....types import SamplingParams
from ...generation.fair_queue import Thinking
from ..sequence import LogitArrays, NoToken, Sequence
from .logit_state import ThinkingState, TokenCounts

LogitsRow = NDArray[np.float32]
FORBIDDEN = np.float32(-np.inf)
FIRST = 64
"""The tokens that are searched first for one that is not forbidden, which is mostly found."""
LEAST_FACTOR = 1e-30
"""The least repetition penalty that is applied: a logit divided by a smaller one could exceed float32's range."""
NONE_LEFT = "the request allows no further token"


def edit(row: LogitsRow, sequence: Sequence) -> None:
    """Applies all parameters of a sequence's request to its row of logits. Raises NoToken."""
    params, request, stops = sequence.params, sequence.request, sequence.stops
    if sequence.matcher is not None:
        sequence.matcher.apply(row)
    if params.allowed_token_ids is not None:
        only(row, _arrays(sequence).allowed)
    row[banned(sequence.ids, sequence.prompt, request.bad_words)] = FORBIDDEN
    if sequence.generated < params.min_tokens and stops:
        _go_on(row, stops, ends=sequence.matcher is not None)
    if params.logit_bias:
        arrays = _arrays(sequence)
        row[arrays.biased] += arrays.bias
    if params.penalised:
        counts = counts_of(sequence)
        penalise(row, counts.ids, counts.counts, params)
    if request.thinking is not None:
        _end_reasoning(row, sequence, request.thinking)
    if sequence.keeps_many and params.top_k < len(row):
        row[row < np.partition(row, -params.top_k)[-params.top_k]] = FORBIDDEN
    if sequence.sampler_chain is not None:
        sequence.sampler_chain.apply(row)
    if row[:FIRST].max() == FORBIDDEN and row.max() == FORBIDDEN:
        raise NoToken(NONE_LEFT)


def touched(sequence: Sequence) -> NDArray[np.int64] | None:
    """Returns the tokens whose logits `edit` may change, possibly with repetitions; None for all tokens."""
    params, request = sequence.params, sequence.request
    whole = sequence.matcher is not None or sequence.sampler_chain is not None or sequence.keeps_many
    if whole or params.allowed_token_ids is not None or request.thinking is not None:
        return None
    ids = [np.array([*(word[-1] for word in request.bad_words), *sequence.stops], np.int64)]
    if params.logit_bias:
        ids.append(_arrays(sequence).biased)
    if params.penalised:
        ids.append(counts_of(sequence).ids)
    return np.concatenate(ids)


def _end_reasoning(row: LogitsRow, sequence: Sequence, thinking: Thinking) -> None:
    """Forces the next token of the end of reasoning if the budget is used up and a grammar permits the token."""
    if sequence.thinking is None:
        sequence.thinking = ThinkingState(thinking, sequence.ids[sequence.prompt :])
    token = sequence.thinking.forced
    if token is None or (sequence.matcher is not None and row[token] == FORBIDDEN):
        return
    row[:] = FORBIDDEN
    row[token] = 0


def _arrays(sequence: Sequence) -> LogitArrays:
    if sequence.arrays is None:
        allowed, bias = sequence.params.allowed_token_ids or (), sequence.params.logit_bias
        sequence.arrays = LogitArrays(
            np.array(allowed, np.int64),
            np.array([token for token, _ in bias], np.int64),
            np.array([added for _, added in bias], np.float32),
        )
    return sequence.arrays


def only(row: LogitsRow, allowed: NDArray[np.int64]) -> None:
    """Forbids all tokens except these."""
    kept = row[allowed]
    row[:] = FORBIDDEN
    row[allowed] = kept


def banned(ids: array[int], prompt: int, bad_words: tuple[tuple[int, ...], ...]) -> list[int]:
    """Returns the tokens that would complete a bad word, whose other tokens end the text so far.

    Args:
        ids: The tokens of the prompt and the completion.
        prompt: The number of prompt tokens.
        bad_words: The token ids of the bad words.
    """
    made = len(ids) - prompt
    found = []
    for word in bad_words:
        before = len(word) - 1
        if before <= made and tuple(ids[len(ids) - before :]) == word[:-1]:
            found.append(word[-1])
    return found


def penalise(row: LogitsRow, ids: NDArray[np.int64], times: NDArray[np.float32], params: SamplingParams) -> None:
    """Applies the penalties to a row of logits.

    Args:
        row: The logits, changed in place.
        ids: The places in the row of the tokens so far. Their positive logits are divided by the repetition penalty,
            and negative ones multiplied.
        times: For each of these the number of times that the other two penalties count it.
        params: The parameters with the penalties.
    """
    values = row[ids]
    if params.repetition_penalty != 1:
        factor = np.float32(max(LEAST_FACTOR, params.repetition_penalty))
        values = np.where(values < 0, values * factor, values / factor)
    if params.presence_penalty or params.frequency_penalty:
        values = values - np.float32(params.frequency_penalty) * times
        values -= np.float32(params.presence_penalty) * (times > 0)
    row[ids] = values


def _go_on(row: LogitsRow, stops: frozenset[int], *, ends: bool) -> None:
    """Forbids the stop tokens, so that the text continues.

    Args:
        row: The logits [vocab], changed in place.
        stops: The ids of the stop tokens.
        ends: Whether they remain allowed if a grammar allows nothing else; the text then ends, however short it is.
    """
    ids = list(stops)
    kept = row[ids] if ends else None
    row[ids] = FORBIDDEN
    if kept is not None and row.max() == FORBIDDEN:
        row[ids] = kept


def counts_of(sequence: Sequence) -> TokenCounts:
    """Returns the counts of a sequence's tokens, which are made when they are first needed."""
    if sequence.counts is None:
        sequence.counts = TokenCounts(sequence.ids[: sequence.prompt], sequence.ids[sequence.prompt :])
    return sequence.counts
