"""What the scripted pipeline does as one with every capability: alternatives, and answers without forbidden tokens."""

from __future__ import annotations

from typing import NamedTuple

from .fake_tokenizer import VOCAB_SIZE
from .pipeline import PipelineRequest


class FakeDetails(NamedTuple):
    """Of one token: the script is always the likeliest."""

    logprob: float
    rank: int
    top: list[tuple[int, float]]


def logprob(token: int) -> float:
    """Encodes the token, so that a test can match them; exact in binary."""
    return -(token + 1) / 1024


def details(token: int, most: int, named: tuple[int, ...] = ()) -> FakeDetails:
    """The token itself and those that follow it in the vocabulary, each a half less likely; or the named ones."""
    if named:
        return FakeDetails(logprob(token), 1, [(other, logprob(other)) for other in named])
    others = [(token + place) % VOCAB_SIZE for place in range(most)]
    return FakeDetails(logprob(token), 1, [(other, logprob(token) - place / 2) for place, other in enumerate(others)])


def permitted(answer: list[int], request: PipelineRequest) -> list[int]:
    """The answer without the tokens that the request excludes."""
    sampling = request.sampling
    allowed = None if sampling.allowed_token_ids is None else {*sampling.allowed_token_ids, *request.stops}
    banned = {token for token, bias in sampling.logit_bias if bias <= -100}
    if allowed is None and not banned and not request.bad_words:
        return answer
    longest = max(map(len, request.bad_words), default=1)
    found: list[int] = []
    for token in answer:
        text = (*found[-longest:], token)
        completes = any(text[-len(word) :] == word for word in request.bad_words)
        if token not in banned and (allowed is None or token in allowed) and not completes:
            found.append(token)
    return found
