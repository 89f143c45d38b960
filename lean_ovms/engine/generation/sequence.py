"""Requests and their sequences inside the engine, with the state that every backend needs.

A GenerationRequest is a checked Submit. Its sequences are what is scheduled: one for each of n choices, or one for a
whole beam search. Backends derive their own sequence classes with more state.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from ...types import Image, SamplingParams


@dataclass(slots=True, eq=False)
class ClientQueue:
    """A client with unfinished requests."""

    name: str
    """The name of the client."""
    serial: int
    """A number that increases with each new client."""
    charged: float
    """The tokens charged to it, including the mean charge of the other clients at its arrival."""
    groups: dict[int, SequenceGroup] = field(default_factory=dict)
    """All requests of the client, by number."""
    levels: dict[int, OrderedDict[int, SequenceGroup]] = field(default_factory=dict)
    """The requests with waiting sequences by priority, in the order of their turns."""
    running: int = 0
    """The number of running sequences."""
    queued: int = 0
    """The number of requests of which no sequence has started."""
    queued_tokens: int = 0
    """The number of prompt tokens of these queued requests."""
    passes: int = 0
    """The number of sequences of other clients that have started since its next sequence began to lack KV blocks."""
    paused: bool = False
    """Whether none of its sequences may start now."""


@dataclass(slots=True, eq=False)
class SequenceGroup:
    """The sequences of one HTTP request, which may consist of several Submits (for a list of prompts)."""

    client: ClientQueue
    """The client that sent the request."""
    key: int
    """The number of the HTTP request."""
    priority: int
    """The priority; lower values start first."""
    waiting: deque[Any] = field(default_factory=deque)
    """The sequences that have not started, or that were preempted."""
    running: int = 0
    """The number of running sequences."""


@dataclass(frozen=True, slots=True)
class ImagePrompt:
    """A prompt for a model with vision: a text in which <ov_genai_image_0>, ... mark the places of the images."""

    text: str
    """The text."""
    add_special_tokens: bool
    """Whether the tokenizer adds special tokens such as BOS."""
    images: tuple[Image, ...] = ()
    """The images, in the order of their tags' numbers."""
    salt: str = ""
    """The salt of the prefix cache: cached blocks with images are shared only with prompts that have the same salt."""
    audio: tuple[bytes, ...] = ()
    """The samples (types.audio) for the tags <ov_genai_audio_0>, ..."""


class Thinking(NamedTuple):
    """The limit of reasoning tokens."""

    budget: int
    """The number of reasoning tokens after which the end of the reasoning is forced."""
    start: tuple[int, ...]
    """The token ids that begin the reasoning."""
    end: tuple[int, ...]
    """The token ids that end the reasoning."""
    opened: bool
    """Whether the prompt ends inside the reasoning."""


class MatchingCost(Protocol):
    """The cost of computing a grammar's token masks."""

    @property
    def mask_s(self) -> float:
        """The CPU seconds for the mask of one token."""

    @property
    def notices(self) -> Sequence[str]:
        """Warnings for the client about parts of its schema that the grammar does not enforce."""


@dataclass(slots=True, eq=False)
class GenerationRequest:
    """A request in the engine, from its command to its last token."""

    id: int
    """The number of the request."""
    sampling: SamplingParams
    """The parameters by which tokens are chosen."""
    unfinished: set[int]
    """The indices of the choices that are not finished."""
    constraint: str = ""
    """The grammar of the answer, as a structural tag; "" for none."""
    cost: MatchingCost | None = None
    """The cost of the grammar's masks; None until it is known."""
    sequences: list[Any] = field(default_factory=list)
    """The sequences that the backend computes for it."""
    prompt: list[int] = field(default_factory=list)
    """The token ids of the prompt."""
    max_tokens: int = 0
    """The most tokens of each choice."""
    stops: frozenset[int] = frozenset()
    """The token ids that end a choice."""
    details: bool = False
    """Whether log probabilities of alternative tokens are requested."""
    image_prompt: ImagePrompt | None = None
    """The prompt of a model with vision; None for a prompt of text alone."""
    prompt_counted: bool = True
    """Whether the front end has the exact number of prompt tokens."""
    client: str = ""
    """The name of the client that sent the request. Clients share the engine's time fairly."""
    group_key: int = 0
    """The number of the HTTP request, which may have several prompts; 0 if it has only this one."""
    priority: int = 0
    """The priority; lower values start first."""
    group: SequenceGroup | None = None
    """The group of its HTTP request in the FairQueue."""
    queued: bool = False
    """Whether none of the sequences has started; set by the FairQueue."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """The token ids of each spelling of a bad word."""
    thinking: Thinking | None = None
    """The limit of reasoning tokens; None for none."""
    adapter: str = ""
    """The LoRA adapters in the notation of the model's set of adapters; "" for none."""
    native: Any = None
    """The backend's own form of the request, which `check` may store here for `add`."""

    def cancel(self, index: int | None) -> set[int]:
        """Removes a choice from the unfinished ones, or all choices if index is None. Returns the removed indices."""
        cancelled = set(self.unfinished) if index is None else self.unfinished & {index}
        self.unfinished -= cancelled
        return cancelled

    def seed(self, index: int) -> int:
        seeds = self.sampling.seeds
        return seeds[index] if index < len(seeds) else 0


@dataclass(slots=True, eq=False, kw_only=True)
class QueuedSequence:
    """One choice of a request, from the queue to its last token."""

    request: GenerationRequest
    """The request."""
    index: int
    """The number of the choice."""
    started: bool = False
    """Whether it has run at least once."""
    started_at: float = 0.0
    """When it first ran, in seconds of the scheduler's clock."""
    has_output: bool = False
    """Whether it has produced output since it was last started."""
    output_since: int = 0
    """The step at which it first produced output since it was last started."""
    charged: int = 0
    """The number of its tokens for which its client has been charged."""
    retries: int = 0
    """The number of failed steps in which it took part."""
    reported: int = 0
    """The number of prompt tokens in its latest Progress record."""

    @property
    def group(self) -> SequenceGroup:
        """The group of a sequence that was added to a FairQueue."""
        assert self.request.group is not None
        return self.request.group

    @property
    def client(self) -> ClientQueue:
        """The client of a sequence that was added to a FairQueue."""
        return self.group.client

    @property
    def constrained(self) -> bool:
        return bool(self.request.constraint)

    @property
    def beams(self) -> bool:
        return self.request.sampling.beams > 1


def repeats(tokens: Sequence[int], end: int, shortest: int, longest: int, times: int, begin: int = 0) -> bool:
    """Returns whether tokens[begin:end] ends with a pattern of `shortest` to `longest` tokens repeated `times` times.

    This is vLLM's check_sequence_repetition.

    Args:
        tokens: The tokens.
        end: The end of the tokens to examine.
        shortest: The shortest length of a pattern.
        longest: The longest length of a pattern.
        times: The number of repetitions.
        begin: The beginning of the tokens to examine.
    """
    for size in range(shortest, min(longest, (end - begin) // times) + 1):
        first = end - size * times
        if tokens[end - 1] == tokens[end - 1 - size] and tokens[first : end - size] == tokens[first + size : end]:
            return True
    return False
