"""The queue of texts that wait for a forward pass; it chooses those of the next batch.

A batch holds texts of about one length, of any number of requests. Measured 2026-11 on MiniLM: in batches of similar
length and up to 1,024 padded tokens, 120 short and 8 long texts took a ninth of the time that they took in one batch.
Larger batches are no faster per token.

Clients share the model fairly by tokens, and so do the requests of one client: each is charged the tokens that were
computed for it, so one short text overtakes the 2,000 documents of another request. Of one client's requests (with
--priority_across_clients of all), those with a lower priority value go first. Every AGING-th batch serves the oldest
request.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field

import numpy as np

from ....types import Image
from ..types import PER_TOKEN, PoolingParams
from .pooler import Array, Batch

BUCKET = 16
"""Lengths are rounded up to a multiple of it: each new shape costs 15 to 46 ms of code generation."""
SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Numbers of texts in a batch, for the same reason."""
MAX_PADDING = 0.25
"""The most of a row, or of the rows of a batch, that may be padding, as a fraction."""
SMALL_TOKENS = 256
"""A batch of fewer tokens takes nearly as long as one of this size, so any shorter texts may fill it."""
FIXED_TOKENS = 80
"""A batch takes the time of so many tokens, whatever it holds: weights are read, and a new shape is prepared."""
AGING = 4
IMAGE_TOKENS = 256
"""The number of tokens that an image counts as: the patches of a usual vision tower."""
ALONE = 1 << 30
"""A padded length beyond any batch's."""


@dataclass(slots=True, eq=False)
class ClientShare:
    """The share of the model that a client with waiting requests has used."""

    charged: float
    """The client's virtual time in tokens. It begins at the least of the other clients' times and grows by the tokens
    that are computed for the client."""


@dataclass(slots=True, eq=False)
class QueuedPooling:
    """A request whose inputs are tokenized."""

    id: int
    """The number of the request; numbers ascend with arrival."""
    params: PoolingParams
    """How its inputs are encoded."""
    missing: int
    """The number of inputs without a result."""
    client: str = ""
    """The name of the client that sent it; "" for all whose names are unknown."""
    share: ClientShare = field(init=False)
    """What its client has used, from the time at which it is queued."""
    unpooled: int = 0
    """The number of tokens at the beginning of each input that do not count in its pooled vector."""
    charged: float = 0.0
    """The request's virtual time in tokens. It begins at the least of its client's other requests' times and grows by
    the tokens that are computed for the request."""
    waiting_tokens: int = 0
    """The number of tokens of its waiting inputs."""
    isolated: bool = False
    """Whether the request gets batches of its own, since a batch that it shared has failed."""
    buckets: dict[int, list[QueuedText]] = field(default_factory=dict)
    """The waiting inputs, by their padded lengths."""

    @property
    def per_token(self) -> bool:
        """Whether the request's results have a row for each token."""
        return self.params.output == PER_TOKEN


@dataclass(slots=True, eq=False)
class QueuedText:
    """One input of a request. Ids and types are lists, since numpy is slower for texts of few tokens."""

    request: QueuedPooling
    """The request to which the input belongs."""
    index: int
    """The index of the input in the request."""
    ids: list[int]
    """The token ids, special ones included."""
    types: list[int] | None = None
    """The type of each token; None if all types are 0."""
    images: tuple[Image, ...] = ()
    """The images of the input; an input with images is computed in a batch of its own."""

    @property
    def bucket(self) -> int:
        """The padded length by which the text is queued."""
        return ALONE if self.images else -(-len(self.ids) // BUCKET) * BUCKET

    @property
    def cost(self) -> int:
        """The number of tokens that its request is charged for the text."""
        return len(self.ids) + IMAGE_TOKENS * len(self.images)


class TextQueue:
    """All waiting texts, and the choice of the next batch among them."""

    def __init__(self, batch_tokens: int, *, priority_across_clients: bool = False) -> None:
        """Creates an empty queue.

        Args:
            batch_tokens: The most tokens in a batch, padding included.
            priority_across_clients: Whether priorities are compared across clients, or only within one.
        """
        self.requests: dict[int, QueuedPooling] = {}
        self.waiting = self.padded_tokens = 0
        """How many texts wait, and the sum of their padded lengths."""
        self._batch_tokens = self._room_tokens = batch_tokens
        self._across = priority_across_clients
        self._batches = 0

    def add(self, request: QueuedPooling, items: list[QueuedText]) -> None:
        same = [other for other in self.requests.values() if other.client == request.client]
        least = min((other.share.charged for other in self.requests.values()), default=0.0)
        request.share = same[0].share if same else ClientShare(least)
        request.charged = min((other.charged for other in same), default=0.0)
        self.requests[request.id] = request
        for item in items:
            self.put(item)

    def put(self, item: QueuedText) -> None:
        request = item.request
        self.requests[request.id] = request
        request.buckets.setdefault(item.bucket, []).append(item)
        request.waiting_tokens += item.cost
        self.waiting += 1
        self.padded_tokens += item.bucket

    def restore(self, item: QueuedText) -> None:
        """Puts back a text of a batch that was not computed, and refunds its request and its client."""
        self._charge(item, -1)
        request = item.request
        shares = (other.share for other in self.requests.values() if other.client == request.client)
        if (share := next(shares, request.share)) is not request.share:  # of requests that came in the meantime
            share.charged = max(share.charged, request.share.charged)
            request.share = share
        self.put(item)

    def remove(self, number: int) -> None:
        """Drops the waiting texts of a request."""
        if request := self.requests.pop(number, None):
            self.waiting -= sum(map(len, request.buckets.values()))
            self.padded_tokens -= sum(size * len(items) for size, items in request.buckets.items())
            request.buckets.clear()

    def next_batch(self, tokens: int = 0) -> list[QueuedText]:
        """Removes and returns the texts of the next batch, at least one of a queue that is not empty.

        A batch of several texts has at most `tokens` tokens, padding included; 0 stands for the usual limit.
        """
        self._batches += 1
        self._room_tokens = tokens or self._batch_tokens
        ranked = self._ranked()
        first = min(ranked, key=lambda one: one.id) if self._batches % AGING == 0 else ranked[0]
        sharing = [first] if first.isolated else _sharing(first, ranked)
        own = max(first.buckets)
        size = self._best_size(own, sharing) if self._is_small(first) else own
        room = self._room(size)
        chosen = self._pop([first], 1, own, own) if size > own else []
        chosen += self._pop(sharing, room - len(chosen), size, size * (1 - MAX_PADDING))
        small = min(room, SMALL_TOKENS // size)  # short texts are limited by their padded length
        if len(chosen) < small:
            chosen += self._pop(sharing, small - len(chosen), size, 0)
        for item in chosen[_usable(len(chosen)) :]:
            self.restore(item)
        return chosen[: _usable(len(chosen))]

    def _room(self, size: int) -> int:
        """Returns the most texts of this padded length that a batch may hold."""
        return max(count for count in SIZES if count == 1 or count * size <= self._room_tokens)

    def _is_small(self, request: QueuedPooling) -> bool:
        return request.waiting_tokens <= self._batch_tokens

    def _best_size(self, own: int, sharing: list[QueuedPooling]) -> int:
        """Returns the padded length whose batch computes the most tokens in its time; it is at least `own`.

        `own` is the padded length of the most urgent text. Only texts of small requests may make its batch longer, so
        that a short text does not wait for the many documents of another request.
        """
        waiting: dict[int, int] = {own: 0}
        for request in sharing:
            if self._is_small(request):
                for size, items in request.buckets.items():
                    waiting[size] = waiting.get(size, 0) + len(items)
        if len(waiting) == 1:
            return own
        sizes = sorted((size for size in waiting if size >= own), reverse=True)
        return max(sizes, key=lambda size: self._yield(size, own, waiting))

    def _yield(self, size: int, own: int, waiting: dict[int, int]) -> float:
        """Returns the useful tokens of a batch of this padded length, divided by its cost in tokens."""
        room = self._room(size)
        rows, useful = (1, own) if size > own else (0, 0)
        for length in sorted((one for one in waiting if size * (1 - MAX_PADDING) <= one <= size), reverse=True):
            count = min(waiting[length], room - rows)
            rows, useful = rows + count, useful + count * length
        return useful / (FIXED_TOKENS + _rows(_usable(rows)) * size) if rows else 0.0

    def _ranked(self) -> list[QueuedPooling]:
        """Returns all requests, the most urgent first: those of the client with the least time, then of the next."""
        tokens = {one: min(one.waiting_tokens, self._batch_tokens) for one in self.requests.values()}
        within = sorted(tokens, key=lambda one: (one.params.priority, one.charged + tokens[one], one.id))
        clients: dict[ClientShare, tuple[int, float, int]] = {}
        for one in within:  # the first of a client decides
            level = one.params.priority if self._across else 0
            clients.setdefault(one.share, (level, one.share.charged + tokens[one], one.id))
        return sorted(within, key=lambda one: clients[one.share])

    def _pop(self, requests: list[QueuedPooling], count: int, longest: int, shortest: float) -> list[QueuedText]:
        """Removes and returns at most `count` texts whose padded lengths are from `shortest` to `longest`."""
        chosen: list[QueuedText] = []
        for request in requests:
            for size in sorted(request.buckets, reverse=True):
                if not shortest <= size <= longest:
                    continue
                items = request.buckets[size]
                while items and len(chosen) < count:
                    chosen.append(items.pop())
                if not items:
                    del request.buckets[size]
            if len(chosen) == count:
                break
        for item in chosen:
            self._charge(item, 1)
            if not item.request.buckets:
                self.requests.pop(item.request.id, None)
        return chosen

    def _charge(self, item: QueuedText, sign: int) -> None:
        """Charges request and client for a text that leaves the queue (`sign` 1); refunds them if it goes back (-1)."""
        item.request.charged += sign * item.cost
        item.request.share.charged += sign * item.cost
        if sign > 0:
            item.request.waiting_tokens -= item.cost
            self.waiting -= 1
            self.padded_tokens -= item.bucket


def _sharing(first: QueuedPooling, ranked: list[QueuedPooling]) -> list[QueuedPooling]:
    """Returns those of the ranked requests that may share a batch with `first`, which comes first."""
    others = (one for one in ranked if one is not first and not one.isolated and one.per_token == first.per_token)
    return [first, *others]


def _usable(count: int) -> int:
    """Returns how many of `count` texts to compute at once: all if little padding makes them one of SIZES, or fewer."""
    return count if _rows(count) - count <= MAX_PADDING * _rows(count) else SIZES[bisect_right(SIZES, count) - 1]


def _rows(count: int) -> int:
    return SIZES[bisect_left(SIZES, count)]


def padded(items: list[QueuedText], pad_token: int, size: int = 0) -> Batch:
    """Makes a batch of the inputs, padded to one length and one of the allowed numbers of rows.

    Rows that fill the batch up repeat the first one, since a row without any token would give NaN.

    Args:
        items: The inputs; one with images is the only one.
        pad_token: The token that fills up shorter inputs.
        size: The least number of tokens in a row.
    """
    if items[0].images:
        ids = np.array([items[0].ids], np.int64)
        mask, per_token = np.ones_like(ids), items[0].request.per_token
        return Batch(ids, mask, np.zeros_like(ids), per_token, items[0].images, _pooled(items, mask))
    rows, size = _rows(len(items)), max(size, *(item.bucket for item in items))
    ids, mask, types = np.zeros((3, rows, size), np.int64)
    if pad_token:
        ids.fill(pad_token)
    for row in range(rows):
        item = items[row if row < len(items) else 0]
        length = len(item.ids)
        ids[row, :length] = item.ids
        mask[row, :length] = 1
        if item.types is not None:
            types[row, :length] = item.types
    return Batch(ids, mask, types, items[0].request.per_token, pooled=_pooled(items, mask))


def _pooled(items: list[QueuedText], mask: Array) -> Array | None:
    """Returns a copy of a batch's mask without the tokens that do not count in pooled vectors; None if all count."""
    if not any(item.request.unpooled for item in items):
        return None
    found: Array = mask.copy()
    for row, item in enumerate(items):
        found[row, : item.request.unpooled] = 0
    return found
