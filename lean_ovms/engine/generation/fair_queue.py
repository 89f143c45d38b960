"""The queue that decides whose sequence starts next, and the requests and sequences in it.

A GenerationRequest is a checked Submit. Its sequences are what is scheduled: one for each of n choices, or one for a
whole beam search. Backends derive their own sequence classes with more state.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from ...types import SamplingParams

if TYPE_CHECKING:
    from .image_prompts import ImagePrompt


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


class TokenCost(Protocol):
    """The cost that a request adds to each of its tokens: that of a grammar's mask, and of a sampler chain."""

    @property
    def token_s(self) -> float:
        """The CPU seconds for one token."""

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
    cost: TokenCost | None = None
    """The cost of the grammar's masks or of the sampler chain; None until it is known."""
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
    """The number of its tokens when it first produced output since it was last started."""
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


S = TypeVar("S", bound=QueuedSequence)
MAX_RETRY_AFTER_S = 60
"""The largest Retry-After of a full queue, in seconds."""


class FairQueue(Generic[S]):
    """A queue of sequences, with counts of the running ones by client. `len` and iteration are of the waiting ones.

    It is fair between clients, then between requests. Each client is charged for the tokens of its prompts and answers,
    and the one with the lowest charge is next, which is fair whatever the lengths are ("Fairness in Serving Large
    Language Models", OSDI 2024). A client that comes back after an idle time begins at the mean of the others, so that
    nobody saves up or owes. Within a client: by priority, and among equals one sequence of each HTTP request in turn.

    While others wait, each client is entitled to an equal share of the slots, and each of its requests to an equal
    share of these. A client or request below its share precedes those above theirs, and may take a slot from one
    (`giver`).
    """

    def __init__(self, slots: int, *, priority_across_clients: bool = False) -> None:
        """Creates an empty queue; `slots` sequences run at once, and priorities count within a client or across."""
        self.clock: Callable[[], float] = time.monotonic
        self.clients: dict[str, ClientQueue] = {}  # those with waiting or running sequences
        self.queued = 0  # requests of which no sequence has started
        self.slots = slots
        self.priority_across_clients = priority_across_clients
        self._starts: deque[float] = deque(maxlen=32)  # the latest
        self._size = 0
        self._serial = 0
        self._mean = 0.0  # grows like the mean of the clients' `charged`
        self._paused: list[ClientQueue] = []

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[S]:
        for client in self.clients.values():
            for level in client.levels.values():
                for group in level.values():
                    yield from group.waiting

    # --- in and out

    def add(self, request: GenerationRequest) -> None:
        """Queues all sequences of a new request, after those of the same HTTP request."""
        client = self.clients.get(request.client)
        if client is None:
            self._serial += 1
            client = self.clients[request.client] = ClientQueue(request.client, self._serial, self._mean)
        key = request.group_key or -request.id
        group = client.groups.get(key)
        if group is None:
            group = client.groups[key] = SequenceGroup(client, key, request.priority)
        request.group, request.queued = group, True
        self.queued += 1
        client.queued += 1
        client.queued_tokens += len(request.prompt)
        group.waiting.extend(request.sequences)
        self._size += len(request.sequences)
        self._insert(group)

    def put_back(self, sequence: S, *, first: bool) -> None:
        """Queues a preempted sequence again, before the others of its request; if `first`, of its client."""
        group = sequence.group
        self._size += 1
        group.waiting.appendleft(sequence)
        self._insert(group)
        if first:
            group.client.levels[group.priority].move_to_end(group.key, last=False)

    def pop(self, group: SequenceGroup) -> S:
        """Removes and returns the group's next sequence."""
        sequence: S = group.waiting.popleft()
        self._size -= 1
        if not group.waiting:
            self._leave_level(group)
        return sequence

    def remove(self, request: GenerationRequest, index: int | None = None) -> None:
        """Removes the waiting sequences of a request, or only one of them."""
        group = request.group
        if group is None or not group.waiting:
            return
        before = len(group.waiting)
        group.waiting = deque(
            s for s in group.waiting if s.request is not request or (index is not None and s.index != index)
        )
        self._size -= before - len(group.waiting)
        if not group.waiting:
            self._leave_level(group)
            self._tidy(group)

    def dequeued(self, request: GenerationRequest) -> None:
        """Notes that a request no longer waits, since a sequence has started or the request has ended."""
        if request.queued and request.group is not None:
            request.queued = False
            client = request.group.client
            self.queued -= 1
            client.queued -= 1
            client.queued_tokens -= len(request.prompt)

    def _insert(self, group: SequenceGroup) -> None:
        """Appends a group with waiting sequences to those of its priority, unless it is among them."""
        client = group.client
        self.clients.setdefault(client.name, client)
        client.groups.setdefault(group.key, group)
        client.levels.setdefault(group.priority, OrderedDict()).setdefault(group.key, group)

    def _leave_level(self, group: SequenceGroup) -> None:
        levels = group.client.levels
        del levels[group.priority][group.key]
        if not levels[group.priority]:
            del levels[group.priority]

    def _tidy(self, group: SequenceGroup) -> None:
        client = group.client
        if not group.waiting and not group.running:
            client.groups.pop(group.key, None)
            if not client.groups:
                self.clients.pop(client.name, None)

    # --- running sequences

    def started(self, sequence: S) -> None:
        """Counts a sequence as running, and gives the next turn to another request of its client."""
        self.dequeued(sequence.request)
        self._starts.append(self.clock())
        group = sequence.group
        client = group.client
        group.running += 1
        client.running += 1
        client.passes = 0
        if group.waiting:
            client.levels[group.priority].move_to_end(group.key)

    def stopped(self, sequence: S) -> None:
        """Stops counting a sequence as running."""
        group = sequence.group
        group.running -= 1
        group.client.running -= 1
        self._tidy(group)

    def charge(self, client: ClientQueue, tokens: int) -> None:
        """Charges a client for tokens that the engine has computed or is about to compute."""
        client.charged += tokens
        self._mean += tokens / max(1, len(self.clients))

    def retry_after_s(self, queued: int) -> int:
        """Returns the seconds after which a refused request should be sent again.

        This is the time in which an eighth of the `queued` requests will start, estimated from the mean time between
        recent starts, the present moment included. Earlier the queue would still be full; later it would be idle.
        """
        between = (self.clock() - self._starts[0]) / len(self._starts) if self._starts else 0.0
        return max(1, min(MAX_RETRY_AFTER_S, math.ceil(between * queued / 8)))

    # --- the order

    def next_group(self) -> SequenceGroup | None:
        """Returns the request whose sequence is next; None if only paused clients have waiting sequences."""
        if len(self.clients) == 1:
            [client] = self.clients.values()
            return None if client.paused or not client.levels else self._first(client)
        share = self.share(self.slots)
        best, least = None, None
        for client in self.clients.values():
            if client.levels and not client.paused:
                level = min(client.levels) if self.priority_across_clients else 0
                rank = (level, client.running >= share, client.charged, client.running, client.serial)
                if least is None or rank < least:
                    best, least = client, rank
        return self._first(best) if best is not None else None

    def _first(self, client: ClientQueue) -> SequenceGroup:
        """Returns the client's next group: the first of the most urgent priority, below its share if one is."""
        level = client.levels[min(client.levels)]
        if len(client.groups) > 1:
            share = self._group_share(client)
            for group in level.values():
                if group.running < share:
                    return group
        return next(iter(level.values()))

    def share(self, total: int) -> int:
        """Returns an equal share of `total` for each client with work, at least 1."""
        return max(1, total // max(1, len(self.clients)))

    def _group_share(self, client: ClientQueue) -> int:
        return max(1, max(client.running, self.share(self.slots)) // len(client.groups))

    def giver(self, group: SequenceGroup) -> ClientQueue | SequenceGroup | None:
        """Returns who is above its share and should give a slot to this group, which is below its own; or None."""
        client, share = group.client, self.share(self.slots)
        if client.running < share and len(self.clients) > 1:
            most = max(self.clients.values(), key=attrgetter("running"))
            if most.running > share:
                return most
        if len(client.groups) > 1:
            share = self._group_share(client)
            if group.running < share:
                largest = max(client.groups.values(), key=attrgetter("running"))
                if largest.running > share and largest.priority >= group.priority:
                    return largest
        return None

    def pause(self, client: ClientQueue) -> None:
        """Skips a client's sequences until `resume`."""
        client.paused = True
        self._paused.append(client)

    def resume(self) -> None:
        """Ends the pause of all clients."""
        while self._paused:
            self._paused.pop().paused = False

    def restore(self, passed: list[S]) -> None:
        """Queues sequences again that were popped and not started, at their former positions."""
        for sequence in reversed(passed):
            self.put_back(sequence, first=True)
