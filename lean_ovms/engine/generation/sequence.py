"""A request and its sequences while they live in the engine: plain state that every backend needs.

A GenerationRequest is a Submit that was checked; its Sequences are what is scheduled: one for each of n choices, one
for a whole beam search. Backends have sequences of their own with what they need beyond this.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ...types import SamplingParams
from .loaded_model import GrammarCost, ImagePrompt, Thinking


@dataclass(slots=True, eq=False)
class ClientQueue:
    """A client with work. charged: its tokens, from where the others were when it came.

    groups: all its requests; levels: those with waiting sequences, by priority, the next one first.
    queued, queued_tokens: requests of which no sequence has started, and their prompts. passes: starts of others since
    its next sequence lacks KV blocks. paused: not now.
    """

    name: str
    serial: int
    charged: float
    groups: dict[int, SequenceGroup] = field(default_factory=dict)
    levels: dict[int, OrderedDict[int, SequenceGroup]] = field(default_factory=dict)
    running: int = 0
    queued: int = 0
    queued_tokens: int = 0
    passes: int = 0
    paused: bool = False


@dataclass(slots=True, eq=False)
class SequenceGroup:
    """The sequences of one HTTP request, which may be several Submits (a list of prompts)."""

    client: ClientQueue
    key: int
    priority: int
    waiting: deque[Any] = field(default_factory=deque)
    running: int = 0


@dataclass(slots=True, eq=False)
class GenerationRequest:
    """One Submit. unfinished: indices of the choices that the front end still waits for. constraint: its grammar.

    prompt: token ids. max_tokens: most tokens of each choice. stops: ids that end it. details: alternatives of its
    tokens are wanted. cost: of the constraint, when it is known. sequences: of the backend.
    image_prompt: its prompt, for a model with vision. prompt_counted: the front end has the exact number of prompt
    tokens. client, group_key, priority, adapter: as in protocol.Submit. group, queued (none of its sequences has
    started): FairQueue's. bad_words: ids of each way to write a bad word. native: the backend's own form of the
    request, which its `check` may leave here for `add`.
    """

    id: int
    sampling: SamplingParams
    unfinished: set[int]
    constraint: str = ""
    cost: GrammarCost | None = None
    sequences: list[Any] = field(default_factory=list)
    prompt: list[int] = field(default_factory=list)
    max_tokens: int = 0
    stops: frozenset[int] = frozenset()
    details: bool = False
    image_prompt: ImagePrompt | None = None
    prompt_counted: bool = True
    client: str = ""
    group_key: int = 0
    priority: int = 0
    group: SequenceGroup | None = None
    queued: bool = False
    bad_words: tuple[tuple[int, ...], ...] = ()
    thinking: Thinking | None = None
    adapter: str = ""
    native: Any = None

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
    """One choice that is generated for a request, from the queue to its last token.

    started: it has run at least once, first at started_at by the scheduler's clock. has_output: since it was last
    started, from the step output_since on. charged: of its length, tokens that its client was charged for.
    retries: failed steps that interrupted it. reported: prompt tokens of its last Progress.
    """

    request: GenerationRequest
    index: int
    started: bool = False
    started_at: float = 0.0
    has_output: bool = False
    output_since: int = 0
    charged: int = 0
    retries: int = 0
    reported: int = 0

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
