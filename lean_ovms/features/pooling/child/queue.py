"""Texts that wait for a forward pass, and which of them make the next batch. Knows no model and no records.

A batch holds texts of about one length, of any number of requests. Measured 2026-11 on MiniLM: sorted by length and up
to 1,024 padded tokens, 120 short and 8 long texts cost a ninth of what they cost in one batch; larger batches are no
faster per token.

Urgency is fair by tokens: each request is charged what was computed for it, so one short text passes the 2,000
documents of another request. Lower priorities go first, but every AGING-th batch serves the oldest request.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field

import numpy as np

from ....types import Image
from ..types import PER_TOKEN, PoolingParams
from .pooler import Batch

BUCKET = 16
"""Lengths are rounded up to a multiple of it: each new shape costs 15 to 46 ms of code generation."""
SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Numbers of texts in a batch, for the same reason."""
MAX_PADDING = 0.25
"""Part of a row, or of the rows of a batch, that may be padding."""
SMALL_TOKENS = 256
"""A batch of fewer tokens takes nearly as long as one of this size, so any shorter texts may fill it."""
FIXED_TOKENS = 80
"""A batch takes the time of so many tokens, whatever it holds: weights are read, and a new shape is prepared."""
AGING = 4
IMAGE_TOKENS = 256
"""What an image is charged as: the patches of a usual vision tower."""
ALONE = 1 << 30
"""A padded length beyond any batch's."""


@dataclass(slots=True, eq=False)
class QueuedPooling:
    """A request whose inputs are tokenized."""

    id: int
    """The number of the request; a later one has a greater one."""
    params: PoolingParams
    """How its inputs are encoded."""
    missing: int
    """The number of inputs without a result."""
    charged: float = 0.0
    """The virtual time in tokens: what was computed for it, counted from the least time of the others when it came."""
    waiting_tokens: int = 0
    """The tokens of its inputs that wait."""
    isolated: bool = False
    """True: it shares no batch, since a batch with it failed."""
    buckets: dict[int, list[QueuedText]] = field(default_factory=dict)
    """The inputs that wait, by their padded lengths."""

    @property
    def per_token(self) -> bool:
        """Whether the request's results have a row for each token."""
        return self.params.output == PER_TOKEN


@dataclass(slots=True, eq=False)
class QueuedText:
    """One input of a request.

    Ids and types are lists: for the few tokens of most texts a call of numpy takes longer than all of them, most of all
    where the processor's caches hold the network's weights.
    """

    request: QueuedPooling
    """The request."""
    index: int
    """The number of the input in the request."""
    ids: list[int]
    """The token ids, special ones included."""
    types: list[int] | None = None
    """The type of each token; None: all types are 0."""
    images: tuple[Image, ...] = ()
    """The images of the input, which is then computed alone."""

    @property
    def bucket(self) -> int:
        """The text's padded length."""
        return ALONE if self.images else -(-len(self.ids) // BUCKET) * BUCKET

    @property
    def cost(self) -> int:
        """What its request is charged, in tokens."""
        return len(self.ids) + IMAGE_TOKENS * len(self.images)


class TextQueue:
    """All texts that wait."""

    def __init__(self, batch_tokens: int) -> None:
        self.requests: dict[int, QueuedPooling] = {}
        self.waiting = self.padded_tokens = 0
        """How many texts wait, and the sum of their padded lengths."""
        self._batch_tokens = self._room_tokens = batch_tokens
        self._batches = 0

    def add(self, request: QueuedPooling, items: list[QueuedText]) -> None:
        request.charged = min((other.charged for other in self.requests.values()), default=0.0)
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

    def remove(self, number: int) -> None:
        """Drops what waits of a request."""
        if request := self.requests.pop(number, None):
            self.waiting -= sum(map(len, request.buckets.values()))
            self.padded_tokens -= sum(size * len(items) for size, items in request.buckets.items())
            request.buckets.clear()

    def next_batch(self, tokens: int = 0) -> list[QueuedText]:
        """Returns the items of the next batch, at least one; the queue must not be empty.

        Args:
            tokens: The most tokens of the batch, padding included, which a single text may exceed; 0: those of any
                batch.
        """
        self._batches += 1
        self._room_tokens = tokens or self._batch_tokens
        first = self._most_urgent()
        sharing = [first] if first.isolated else self._sharing(first)
        own = max(first.buckets)
        size = self._best_size(own, sharing) if self._is_small(first) else own
        room = self._room(size)
        chosen = self._pop([first], 1, own, own) if size > own else []
        chosen += self._pop(sharing, room - len(chosen), size, size * (1 - MAX_PADDING))
        small = min(room, SMALL_TOKENS // size)  # by the padded length: these are short texts
        if len(chosen) < small:
            chosen += self._pop(sharing, small - len(chosen), size, 0)
        for item in chosen[_usable(len(chosen)) :]:
            self._charge(item, -1)
            self.put(item)
        return chosen[: _usable(len(chosen))]

    def _room(self, size: int) -> int:
        """Returns the most texts of this padded length in a batch."""
        return max(count for count in SIZES if count == 1 or count * size <= self._room_tokens)

    def _is_small(self, request: QueuedPooling) -> bool:
        return request.waiting_tokens <= self._batch_tokens

    def _best_size(self, own: int, sharing: list[QueuedPooling]) -> int:
        """Returns the padded length that computes the most tokens for its time, where `own` is that of the urgent text.

        Only texts of small requests make a batch longer: a short text does not wait for the documents of a long list.
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
        """Returns the tokens that a batch of this padded length computes, for each that it takes the time of."""
        room = self._room(size)
        rows, useful = (1, own) if size > own else (0, 0)
        for length in sorted((one for one in waiting if size * (1 - MAX_PADDING) <= one <= size), reverse=True):
            count = min(waiting[length], room - rows)
            rows, useful = rows + count, useful + count * length
        return useful / (FIXED_TOKENS + _rows(_usable(rows)) * size) if rows else 0.0

    def _most_urgent(self) -> QueuedPooling:
        if self._batches % AGING == 0:
            return min(self.requests.values(), key=lambda one: one.id)
        return min(self.requests.values(), key=self._urgency)

    def _urgency(self, one: QueuedPooling) -> tuple[int, float, int]:
        return one.params.priority, one.charged + min(one.waiting_tokens, self._batch_tokens), one.id

    def _sharing(self, first: QueuedPooling) -> list[QueuedPooling]:
        """Returns the requests that may be in one batch with this one, most urgent first."""
        others = [
            one
            for one in self.requests.values()
            if one is not first and not one.isolated and one.per_token == first.per_token
        ]
        return [first, *sorted(others, key=self._urgency)]

    def _pop(self, requests: list[QueuedPooling], count: int, longest: int, shortest: float) -> list[QueuedText]:
        """Removes and returns at most `count` items of padded lengths up to `longest`, and of at least `shortest`."""
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
        """Charges for a text that leaves the queue (1), or goes back (-1), after which it is put."""
        item.request.charged += sign * item.cost
        if sign > 0:
            item.request.waiting_tokens -= item.cost
            self.waiting -= 1
            self.padded_tokens -= item.bucket


def _usable(count: int) -> int:
    """Returns how many of `count` items to compute at once: all, if few rows of padding make it one of SIZES."""
    return count if _rows(count) - count <= MAX_PADDING * _rows(count) else SIZES[bisect_right(SIZES, count) - 1]


def _rows(count: int) -> int:
    return SIZES[bisect_left(SIZES, count)]


def padded(items: list[QueuedText], pad_token: int, size: int = 0) -> Batch:
    """Returns the batch of these inputs. Rows that fill it up repeat the first one: a row without any token would be
    NaN.

    Args:
        items: The inputs; one with images is the only one.
        pad_token: The token that fills up shorter inputs.
        size: The least number of tokens in a row.
    """
    if items[0].images:
        ids = np.array([items[0].ids], np.int64)
        return Batch(ids, np.ones_like(ids), np.zeros_like(ids), items[0].request.per_token, items[0].images)
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
    return Batch(ids, mask, types, items[0].request.per_token)
