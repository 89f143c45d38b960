"""A request and its sequences while they live in the engine: plain state that every backend needs.

A GenerationRequest is a Submit that was checked; its Sequences are what is scheduled: one for each of n choices, one
for a whole beam search. Backends have sequences of their own with what they need beyond this.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from ...types import Image, SamplingParams


@dataclass(slots=True, eq=False)
class ClientQueue:
    """A client with work."""

    name: str
    """The name of the client."""
    serial: int
    """A number that grows with each client that comes."""
    charged: float
    """The tokens that it was charged for, counted from where the others were when it came."""
    groups: dict[int, SequenceGroup] = field(default_factory=dict)
    """All its requests, by their numbers."""
    levels: dict[int, OrderedDict[int, SequenceGroup]] = field(default_factory=dict)
    """Those with waiting sequences, by priority, the next one first."""
    running: int = 0
    """The number of its running sequences."""
    queued: int = 0
    """The number of requests of which no sequence has started."""
    queued_tokens: int = 0
    """The tokens of the prompts of these."""
    passes: int = 0
    """How many sequences of others have started since its next one lacks KV blocks."""
    paused: bool = False
    """Whether none of its sequences may start now."""


@dataclass(slots=True, eq=False)
class SequenceGroup:
    """The sequences of one HTTP request, which may be several Submits (a list of prompts)."""

    client: ClientQueue
    """The client that sends it."""
    key: int
    """The number of the HTTP request."""
    priority: int
    """The lower one starts first."""
    waiting: deque[Any] = field(default_factory=deque)
    """The sequences that have not started, or will start again."""
    running: int = 0
    """The number of its running sequences."""


@dataclass(frozen=True, slots=True)
class ImagePrompt:
    """A prompt for a model with vision: text in which <ov_genai_image_0>, ... stand for the images."""

    text: str
    """The text."""
    add_special_tokens: bool
    """Whether the tokenizer adds special tokens such as BOS."""
    images: tuple[Image, ...] = ()
    """The images, by their numbers."""
    salt: str = ""
    """What is cached of its images is shared with prompts of the same salt only."""
    audio: tuple[bytes, ...] = ()
    """The samples (types.audio) of <ov_genai_audio_0>, ..."""


class Thinking(NamedTuple):
    """A limit of reasoning."""

    budget: int
    """The number of tokens inside the reasoning after which its end is forced."""
    start: tuple[int, ...]
    """The ids that begin reasoning."""
    end: tuple[int, ...]
    """The ids that end it."""
    opened: bool
    """Whether the prompt ends inside it."""


class MatchingCost(Protocol):
    """The cost of matching a text with a grammar."""

    @property
    def mask_s(self) -> float:
        """The CPU seconds that a token takes."""

    @property
    def notices(self) -> Sequence[str]:
        """What the grammar does not impose of what was asked for, for the client."""


@dataclass(slots=True, eq=False)
class GenerationRequest:
    """A request in the engine, from its command to its last token."""

    id: int
    """The number of the request."""
    sampling: SamplingParams
    """The parameters by which tokens are chosen."""
    unfinished: set[int]
    """The indices of the choices that the front end still waits for."""
    constraint: str = ""
    """The grammar of the answer, as a structural tag; "" for none."""
    cost: MatchingCost | None = None
    """The cost of its grammar, when it is known."""
    sequences: list[Any] = field(default_factory=list)
    """The sequences that the backend computes for it."""
    prompt: list[int] = field(default_factory=list)
    """The token ids of the prompt."""
    max_tokens: int = 0
    """The most tokens of each choice."""
    stops: frozenset[int] = frozenset()
    """The token ids that end a choice."""
    details: bool = False
    """Whether alternatives of the tokens are wanted."""
    image_prompt: ImagePrompt | None = None
    """The prompt of a model with vision, None if it is text alone."""
    prompt_counted: bool = True
    """Whether the front end has the exact number of prompt tokens."""
    client: str = ""
    """Who sends it; clients share the time of the engine."""
    group_key: int = 0
    """The number of the HTTP request, which may have several prompts; 0: it has this one alone."""
    priority: int = 0
    """The lower one starts first."""
    group: SequenceGroup | None = None
    """The group of its HTTP request in the FairQueue."""
    queued: bool = False
    """Whether none of its sequences has started; the FairQueue sets it."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """The token ids of each way to write a bad word."""
    thinking: Thinking | None = None
    """The limit of reasoning, None if there is none."""
    adapter: str = ""
    """The LoRA adapters in the notation of the model's set of adapters; "" for none."""
    native: Any = None
    """The backend's own form of the request, which its `check` may leave here for `add`."""

    def cancel(self, index: int | None) -> set[int]:
        """Takes a choice from the unfinished ones, or all of them for None. Returns those that it took."""
        cancelled = set(self.unfinished) if index is None else self.unfinished & {index}
        self.unfinished -= cancelled
        return cancelled

    def seed(self, index: int) -> int:
        seeds = self.sampling.seeds
        return seeds[index] if index < len(seeds) else 0


@dataclass(slots=True, eq=False, kw_only=True)
class QueuedSequence:
    """One choice that is generated for a request, from the queue to its last token."""

    request: GenerationRequest
    """The request."""
    index: int
    """The number of the choice."""
    started: bool = False
    """Whether it has run at least once."""
    started_at: float = 0.0
    """When it first ran, by the scheduler's clock."""
    has_output: bool = False
    """Whether it has output since it was last started."""
    output_since: int = 0
    """The step since which it has that output."""
    charged: int = 0
    """The part of its length that its client was charged for, in tokens."""
    retries: int = 0
    """The number of failed steps that interrupted it."""
    reported: int = 0
    """The prompt tokens of its last Progress."""

    @property
    def length(self) -> int:
        """Prompt and generated tokens."""
        raise NotImplementedError

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
    """Returns whether tokens[begin:end] ends with `shortest` to `longest` tokens that occur `times` times in a row.

    It is vLLM's check_sequence_repetition, of its repetition_detection.
    """
    for size in range(shortest, min(longest, (end - begin) // times) + 1):
        first = end - size * times
        if tokens[end - 1] == tokens[end - 1 - size] and tokens[first : end - size] == tokens[first + size : end]:
            return True
    return False
