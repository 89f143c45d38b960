"""Declares what LLM and AsyncLLM return. Classes and attributes have vLLM's names.

https://docs.vllm.ai/en/stable/api/vllm/outputs.html
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Generic, Protocol, TypeVar

from ...models.generation import Call, Collector, CompletedChoice, DeltaStream, Generation, collect
from ...types import SamplingParams, TokenLogprob
from ...types.push import StreamIterator

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Logprob:
    """The log probability of a token."""

    logprob: float
    """The log probability."""
    rank: int | None
    """The rank among all tokens, 1 for the likeliest; None if it is not known."""
    decoded_token: str
    """The text of the token."""


Logprobs = list[dict[int, Logprob] | None]
"""For each token the log probabilities in its place, by token id; None where they are not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionOutput:
    """One answer to a prompt."""

    index: int
    """The place among the answers."""
    text: str
    """The text; of a chat, without what the model's parsers take out."""
    token_ids: list[int]
    """The ids of its tokens."""
    cumulative_logprob: float | None = None
    """The sum of the log probabilities; None if they were not asked for."""
    logprobs: Logprobs | None = None
    """The log probabilities of each token; None if they were not asked for."""
    finish_reason: str | None = None
    """"stop" or "length"; None if it continues."""
    stop_reason: str | int | None = None
    """The stop string or token id that ended it; None if neither did."""
    reasoning: str = ""
    """The reasoning of a chat, as the model's parser reads it."""
    tool_calls: list[Call] = field(default_factory=list)
    """The tool calls of a chat, as the model's parser reads them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutput:
    """The answers to one prompt."""

    request_id: str
    """A number of the request, as a text."""
    prompt: str | None
    """The text of the prompt; None if it was given as token ids."""
    prompt_token_ids: list[int]
    """The token ids of the prompt."""
    prompt_logprobs: Logprobs | None = None
    """The log probabilities of the prompt; None if they were not asked for, or are not known yet."""
    outputs: list[CompletionOutput]
    """The answers."""
    finished: bool = True
    """Whether all of them have ended."""
    num_cached_tokens: int | None = None
    """The tokens of the prompt that were in the prefix cache; None if it is not known."""


@dataclass(frozen=True)
class Started:
    """A generation that has been started."""

    request_id: str
    """A number of the request, as a text."""
    generation: Generation
    """The generation."""
    deltas: DeltaStream
    """The results that it yields."""
    prompt: str | None
    """The text of the prompt; None if it was given as token ids."""
    sampling: SamplingParams
    """The sampling parameters."""
    scored: bool
    """Whether the log probabilities of its prompt are requested."""

    async def complete(self) -> RequestOutput:
        """Returns the output at the end. Raises RequestError."""
        try:
            return self._output(await collect(self.deltas, self.sampling.n), finished=True)
        finally:
            await self.generation.aclose()

    async def stream(self) -> AsyncGenerator[RequestOutput, None]:
        """Yields the output so far, each time that there is more; the last one is finished. Raises RequestError."""
        collector = Collector(self.sampling.n)
        pieces = StreamIterator(self.deltas)
        try:
            async for deltas in pieces:
                collector.add(deltas)
                choices = collector.choices(ended=False)
                if not all(choice.finish for choice in choices):
                    yield self._output(choices, finished=False)
            yield self._output(collector.choices(ended=True), finished=True)
        finally:
            await pieces.aclose()
            await self.generation.aclose()

    @cached_property
    def _prompt_logprobs(self) -> Logprobs:
        """Returns the log probabilities of the prompt, the same for each output once they are known."""
        return _by_id(self.generation.prompt_entries())

    def _output(self, choices: list[CompletedChoice], *, finished: bool) -> RequestOutput:
        shown = [choice for choice in choices if choice.finish or not finished]  # a beam search may find fewer choices
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.prompt,
            prompt_token_ids=self.generation.prompt_ids,
            # The first choice computes them, and the tokens of others may come before.
            prompt_logprobs=self._prompt_logprobs if self.scored and self.generation.prompt_scored else None,
            outputs=[_completion(i, choice, logprobs=self.sampling.logprobs) for i, choice in enumerate(shown)],
            finished=finished,
            num_cached_tokens=self.generation.usage.cached_tokens,
        )


def _completion(index: int, choice: CompletedChoice, *, logprobs: bool) -> CompletionOutput:
    return CompletionOutput(
        index=index,
        text=choice.text,
        token_ids=choice.tokens.copy(),
        cumulative_logprob=sum(token.logprob or 0.0 for token in choice.logprobs) if logprobs else None,
        logprobs=_by_id(choice.logprobs) if logprobs else None,
        finish_reason=choice.finish or None,
        stop_reason=choice.stop,
        reasoning=choice.reasoning,
        tool_calls=[replace(call) for call in choice.calls],
    )


def _by_id(tokens: list[TokenLogprob]) -> Logprobs:
    """Returns the log probabilities of each token, and of the likeliest in its place."""
    return [None if token.logprob is None else _place(token) for token in tokens]


def _place(token: TokenLogprob) -> dict[int, Logprob]:
    found: dict[int, Logprob] = {}
    for rank, one in [*enumerate(token.top, 1), (token.rank or None, token)]:
        if one.logprob is not None:
            found.setdefault(one.id, Logprob(one.logprob, rank, one.token))
    return found


# --- beam search


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamSearchSequence:
    """One text of a beam search."""

    tokens: list[int]
    """The ids of the prompt and of the found tokens."""
    text: str
    """The text of the prompt and of the found tokens."""
    logprobs: list[dict[int, Logprob]]
    """The log probabilities of the found tokens."""
    cum_logprob: float
    """The sum of the log probabilities."""
    finish_reason: str | None
    """"stop" or "length"."""
    stop_reason: str | int | None = None
    """The stop string or token id that ended it."""


@dataclass(frozen=True, slots=True)
class BeamSearchOutput:
    """The result of a beam search."""

    sequences: list[BeamSearchSequence]
    """The best first."""


# --- vectors, scores, classes, speech


@dataclass(frozen=True, slots=True)
class PoolingOutput:
    """The result of a pooling model for a text."""

    data: Any
    """A vector or the numbers of the labels, as an array of numpy; if each token has its own, with a row for each."""


@dataclass(frozen=True, slots=True)
class EmbeddingOutput:
    """The vector of one text."""

    embedding: list[float]
    """The numbers of the vector."""


@dataclass(frozen=True, slots=True)
class ScoringOutput:
    """The score of how well two texts fit each other."""

    score: float
    """The score."""


@dataclass(frozen=True, slots=True)
class ClassificationOutput:
    """The classes of a text, with their probabilities."""

    probs: list[float]
    """The probability of each label of the model."""
    label: str | None = None
    """The likeliest label; None if the labels have no names."""


@dataclass(frozen=True, slots=True)
class PoolingRequestOutput(Generic[T]):
    """The result of one input, or of one pair."""

    request_id: str
    """A number of the request, as a text."""
    outputs: T
    """The result."""
    finished: bool = True
    """Always true, as in vLLM."""


EmbeddingRequestOutput = PoolingRequestOutput[EmbeddingOutput]
ScoringRequestOutput = PoolingRequestOutput[ScoringOutput]
ClassificationRequestOutput = PoolingRequestOutput[ClassificationOutput]


@dataclass(frozen=True, slots=True)
class SpeechOutput:
    """A spoken text."""

    audio: bytes = field(repr=False)
    """The bytes of a file, a WAV file unless another format was asked for."""
    sample_rate: int
    """Samples a second."""


class AudioTranscript(Protocol):
    """The text that is said in an audio file."""

    text: str
    """The whole text."""
    segments: Sequence[Any]
    """The pieces of the text, each with its times in seconds, if segments were asked for."""
    words: Sequence[Any]
    """The words of the text, each with its times in seconds, if words were asked for."""
    language: str
    """The code of the language."""
    seconds: float
    """The length of the audio."""
