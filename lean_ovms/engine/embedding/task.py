"""Vectors, scores and classes as a task of the worker: requests to batches, and one forward pass a step.

A turn tokenizes the texts that have arrived, TURN_CHARACTERS of them in one call of the tokenizer, and computes one
batch. A request is checked as a whole before any of it is computed. Knows no openvino: any pooler.Pooler will do.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

import numpy as np

from ...config import Config
from ...errors import BadRequest, EngineFailure, RequestError, TooManyRequests
from ...pooling_types import EMBED, ONLY_PER_TOKEN, PER_TOKEN, PoolingParams
from ..protocol import Cancel, Decode, Decoded, Encode, Encoded, Pool, Pooled, Ready, Record, Refused
from .inputs import InputBuilder, check_ids
from .pooler import Array, Pooler
from .queue import Item, Request, TextQueue, padded
from .results import finished

log = logging.getLogger(__name__)

TURN_CHARACTERS = 1 << 16
"""Characters to tokenize between two batches, about 15 ms."""
CALL_CHARACTERS = 16
"""The fixed cost of one text, in characters."""
MAX_ENCODE_CHARACTERS = 4 << 20
"""Of one Encode."""
NOT_A_NUMBER = "The model computed a value that is not a number."


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """queued: most waiting requests. tokens: most of one request. batch_tokens: of one batch, padding included."""

    queued: int
    tokens: int
    batch_tokens: int


@dataclass(slots=True, eq=False)
class Arriving:
    """A request that is being tokenized. texts: of it; encoded: the ids of the first ones. cost: of the rest, in
    characters."""

    command: Pool | Encode
    params: PoolingParams
    texts: list[str]
    encoded: list[Array] = field(default_factory=list)
    cost: int = field(init=False)

    def __post_init__(self) -> None:
        self.cost = sum(map(_cost, self.texts))


def _cost(text: str) -> int:
    return len(text) + CALL_CHARACTERS


def load(config: Config, wake: Callable[[], None]) -> PoolingTask:
    """The task on the model of the options. wake: not needed. Raises StartError."""
    if config.fake_engine:
        from .fake_pooler import FakePooler

        pooler: Pooler = FakePooler(config)
    else:
        from . import model

        pooler = model.load(config)
    limits = Limits(
        queued=config.max_queued_requests, tokens=config.max_pooling_tokens, batch_tokens=config.pooling_batch_tokens
    )
    return PoolingTask(pooler, limits)


class PoolingTask:
    """A worker.task.Task on one pooler."""

    accepts_commands = True
    """Commands are only noted down; `admit` does what is expensive, a bounded part of it."""

    def __init__(self, pooler: Pooler, limits: Limits) -> None:
        assert pooler.info.pooling is not None
        self.pooler = pooler
        self.info = pooler.info.pooling
        self.limits = limits
        self.out: list[Record] = []
        self.queue = TextQueue(limits.batch_tokens)
        self.inputs = InputBuilder(pooler)
        self._arriving: dict[int, Arriving] = {}
        self._open: dict[int, Request] = {}  # not answered in full, tokenized
        self._running: deque[list[Item]] = deque()
        self._steps = self._tokens = self._padded_tokens = self._recoveries = 0

    @property
    def idle(self) -> bool:
        return not (self._arriving or self._running or self.queue.requests)

    def ready(self) -> Ready:
        return Ready(asdict(self.pooler.info), **self.pooler.vocabulary.to_wire())

    def stats(self) -> dict[str, int]:
        arriving = sum(len(one.command.inputs) for one in self._arriving.values() if isinstance(one.command, Pool))
        return {
            "running": sum(map(len, self._running)),
            "queued": self.queue.waiting + arriving,
            "kv_blocks_used": 0,
            "kv_blocks_total": 0,
            "steps": self._steps,
            "preemptions": 0,
            "recoveries": self._recoveries,
            "tokens": self._tokens,
            "padded_tokens": self._padded_tokens,
        }

    # --- commands

    def handle(self, command: Record) -> bool:
        try:
            match command:
                case Pool():
                    self._arrive(command)
                case Encode():
                    if sum(map(len, command.texts)) > MAX_ENCODE_CHARACTERS:
                        raise BadRequest(f"more than {MAX_ENCODE_CHARACTERS} characters to tokenize")
                    self._arriving[command.id] = Arriving(command, PoolingParams(), command.texts)
                case Decode():
                    self.out.append(self._decode(command))
                case Cancel():
                    self._forget(command.id)
        except Exception as error:  # an error in one request must not end the loop
            self._refuse(command, error)
        return True

    def _arrive(self, command: Pool) -> None:
        """Check what can be checked before tokenizing. Raises RequestError."""
        if command.id in self._arriving or command.id in self._open:
            raise BadRequest(f"request {command.id} exists already")
        waiting = len(self._arriving) + len(self.queue.requests)
        if waiting >= self.limits.queued:
            text = f"{self.limits.queued} requests are waiting already; please try again later"
            raise TooManyRequests(text, retry_after_s=1)
        params = PoolingParams(**command.params)
        self._check(command, params)
        texts = self.inputs.texts(command.inputs, command.queries, params)
        self._arriving[command.id] = Arriving(command, params, texts)

    def _check(self, command: Pool, params: PoolingParams) -> None:
        info = self.info
        if not command.inputs or len(command.queries) not in (0, 1, len(command.inputs)):
            raise BadRequest("there must be inputs, and one query or as many as documents")
        if params.output == PER_TOKEN and info.kind not in (EMBED, *ONLY_PER_TOKEN):
            raise BadRequest(f"A model that does {info.kind} has no results per token")
        if params.dimensions is not None and not (info.kind == EMBED and 0 < params.dimensions <= info.dimensions):
            raise BadRequest(f"dimensions must be from 1 to {info.dimensions}", param="dimensions")

    def _decode(self, command: Decode) -> Record:
        check_ids(command.tokens, self.pooler.info.vocab_size, "tokens")
        return Decoded(command.id, self.pooler.detokenize(command.tokens, command.skip_special_tokens))

    def _refuse(self, command: Record, error: Exception) -> None:
        """The reply to a command that failed."""
        number: int = getattr(command, "id", 0)
        if not isinstance(error, RequestError):
            log.error("%s %d failed", command.kind, number, exc_info=error)
            error = EngineFailure("The engine could not process this request.")
        self.out.append(Refused(number, error.to_wire()))
        self._forget(number)

    def _forget(self, number: int) -> None:
        """Drop what waits of a request; what is being computed for it is thrown away."""
        self._arriving.pop(number, None)
        self._open.pop(number, None)
        self.queue.remove(number)

    # --- from texts to items

    def admit(self) -> None:
        """Tokenize some of the texts that have arrived, those of the shortest requests first, in one call."""
        left, chosen, texts = TURN_CHARACTERS, [], []
        for one in sorted(self._arriving.values(), key=lambda one: (one.params.priority, one.cost)):
            start = len(one.encoded)
            end = start
            while end < len(one.texts) and left > 0:
                left -= _cost(one.texts[end])
                one.cost -= _cost(one.texts[end])
                end += 1
            chosen.append((one, end - start))
            texts += one.texts[start:end]
            if left <= 0:
                break
        if not chosen:
            return
        try:
            encoded = iter(self.pooler.tokenize(texts) if texts else [])
        except Exception as error:  # an error in one request must not end the loop
            for one, _ in chosen:
                self._refuse(one.command, error)
            return
        for one, count in chosen:
            one.encoded += [next(encoded) for _ in range(count)]
            if len(one.encoded) == len(one.texts):
                del self._arriving[one.command.id]
                self._tokenized(one)

    def _tokenized(self, one: Arriving) -> None:
        try:
            if isinstance(one.command, Encode):
                self._answer_encode(one.command, one.encoded)
            else:
                self._enqueue(one, one.command)
        except Exception as error:  # an error in one request must not end the loop
            self._refuse(one.command, error)

    def _answer_encode(self, command: Encode, encoded: list[Array]) -> None:
        before, after = self.pooler.template.single if command.add_special_tokens else ((), ())
        self.out.append(Encoded.of(command.id, [[*before, *ids.tolist(), *after] for ids in encoded]))

    def _enqueue(self, one: Arriving, command: Pool) -> None:
        """Raises RequestError."""
        built = self.inputs.build(command.inputs, command.queries, one.encoded, one.params)
        total = sum(len(ids) for ids, _ in built)
        if total > self.limits.tokens:
            raise BadRequest(f"the inputs have {total} tokens in all, more than {self.limits.tokens}")
        request = Request(command.id, one.params, len(built))
        self._open[command.id] = request
        self.queue.add(request, [Item(request, at, ids, types) for at, (ids, types) in enumerate(built)])

    # --- from items to results

    def step(self) -> None:
        """Start as many batches as the pooler takes, and wait for the first."""
        while len(self._running) < self.pooler.slots and self.queue.requests:
            items = self.queue.next_batch()
            batch = padded(items, self.pooler.info.pad_token_id)
            try:
                self.pooler.start(batch)
            except RuntimeError as error:
                self._failed(items, error)
                continue
            self._steps += 1
            self._padded_tokens += batch.ids.size
            self._running.append(items)
        if not self._running:
            return
        items = self._running.popleft()
        try:
            output = self.pooler.wait()
        except RuntimeError as error:
            self._failed(items, error)
            return
        self._scatter(items, output)

    def _failed(self, items: list[Item], error: RuntimeError) -> None:
        """Compute a batch of several requests again, each request by itself; one that is alone has failed."""
        self._recoveries += 1
        requests = {item.request for item in items}
        if len(requests) == 1:
            [request] = requests
            log.error("request %d failed", request.id, exc_info=error)
            self._end(request, EngineFailure("The engine could not process this request."))
            return
        for item in items:
            if item.request.id in self._open:
                item.request.isolated = True
                self.queue.put(item)

    def _scatter(self, items: list[Item], output: Array) -> None:
        """Send every request its rows."""
        places: dict[Request, list[int]] = {}
        for row, item in enumerate(items):
            places.setdefault(item.request, []).append(row)
            self._tokens += len(item.ids)
        for request, rows in places.items():
            if request.id not in self._open:
                continue  # it was cancelled
            mine = [items[row] for row in rows]
            if request.per_token or self.info.kind in ONLY_PER_TOKEN:
                raw = np.concatenate([output[row, : len(items[row].ids)] for row in rows])
                counts = [len(item.ids) for item in mine]
            else:
                raw, counts = output[rows], [1] * len(rows)
            self._send(request, mine, finished(raw, self.info, request.params), counts)

    def _send(self, request: Request, items: list[Item], values: Array, counts: list[int]) -> None:
        if not np.isfinite(values).all():
            log.error("request %d: the model computed a value that is not a number", request.id)
            self._end(request, EngineFailure(NOT_A_NUMBER))
            return
        tokens = [len(item.ids) for item in items]
        data = values.astype("<f4", copy=False).tobytes()
        self.out.append(Pooled(request.id, [item.index for item in items], tokens, counts, int(values.shape[1]), data))
        request.missing -= len(items)
        if not request.missing:
            del self._open[request.id]

    def _end(self, request: Request, error: RequestError) -> None:
        if request.id in self._open:
            self.out.append(Refused(request.id, error.to_wire()))
            self._forget(request.id)
