"""The engine task that computes vectors, scores and classes: it tokenizes requests and computes them in batches.

Each turn of the loop tokenizes up to TURN_CHARACTERS of the texts that have arrived, in one call of the tokenizer, and
waits for one batch. A request is checked as a whole before any of it is computed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice, zip_longest
from typing import Any

import numpy as np

from ....config import EngineConfig
from ....engine.protocol import Cancel, Decode, Decoded, Encode, Encoded, Record, Refused
from ....engine.task import Task, check_room
from ....errors import BadRequest, EngineFailure, RequestError, for_client
from ..feature import PADDED_TOKENS, TOKENS, PoolingOptions
from ..records import Pool, Pooled, PooledPart
from ..types import (
    CLASSIFY,
    MOST_NUMBERS,
    ONLY_PER_TOKEN,
    PER_TOKEN,
    SCORE,
    SPARSE,
    VECTORS,
    PoolingInfo,
    PoolingParams,
    TextWithImages,
)
from .inputs import Input, InputBuilder, check_ids, with_images
from .pooler import Array, Batch, Pooler
from .queue import QueuedPooling, QueuedText, TextQueue, padded

log = logging.getLogger(__name__)

TURN_CHARACTERS = 1 << 16
"""Characters to tokenize between two batches, about 15 ms."""
CALL_CHARACTERS = 16
"""The fixed cost of one text, in characters."""
MANY_TEXTS = 8
"""The number of waiting texts from which on computing several batches at once saves time."""
MAX_ENCODE_CHARACTERS = 4 << 20
"""The most characters of one Encode."""
LITTLE = np.dtype("<f4")
NOT_A_NUMBER = "The model computed a value that is not a number."


@dataclass(slots=True, eq=False)
class Arriving:
    """A request that is being tokenized."""

    command: Pool | Encode
    """The front end's command."""
    params: PoolingParams
    """How its inputs are encoded."""
    texts: list[str]
    """The texts to tokenize."""
    inputs: list[Input] = field(default_factory=list)
    """The inputs of a Pool command; empty for an Encode command."""
    encoded: list[list[int]] = field(default_factory=list)
    """The ids of the texts that have been tokenized so far, from the first one on."""
    cost: int = field(init=False)
    """The estimated cost of tokenizing the remaining texts, in characters."""

    def __post_init__(self) -> None:
        self.cost = _cost(self.texts)


def _cost(texts: list[str]) -> int:
    return sum(map(len, texts)) + CALL_CHARACTERS * len(texts)


def _first(texts: list[str], budget: int) -> list[str]:
    """Returns the first texts, as many as are needed for their cost to reach the budget, or all."""
    for count, text in enumerate(texts, 1):
        budget -= len(text) + CALL_CHARACTERS
        if budget <= 0:
            return texts[:count]
    return texts


def load(config: EngineConfig, _: Callable[[], None]) -> PoolingTask:
    """Loads the model that the options name, or the fake one, and returns its task. Raises StartError."""
    if config.without_model:
        from .fake_pooler import FakePooler

        pooler: Pooler = FakePooler(config)
    else:
        from .model import OpenVinoPooler

        pooler = OpenVinoPooler(config)
    return PoolingTask(pooler, config)


class PoolingTask(Task):
    """Computes the requests of one model. Commands are queued; `admit` tokenizes a bounded part of them a turn."""

    def __init__(self, pooler: Pooler, config: EngineConfig) -> None:
        super().__init__(pooler.info, pooler.vocabulary)
        self.pooler = pooler
        self.info = pooler.pooling
        self.max_queued = config.max_queued_requests
        self.options = config.of(PoolingOptions)
        self.max_queued_per_client = config.max_queued_requests_per_client
        self.queue = TextQueue(
            self.options.pooling_batch_tokens, priority_across_clients=config.priority_across_clients
        )
        self.inputs = InputBuilder(pooler)
        self._arriving: dict[int, Arriving] = {}
        self._admitted: dict[str, int] = {}  # the turn in which texts of each arriving client were tokenized last
        self._turns = 0
        self._open: dict[int, QueuedPooling] = {}  # tokenized requests that are not fully answered
        self._running: dict[Batch, list[QueuedText]] = {}
        self._steps = self._tokens = self._padded_tokens = self._recoveries = 0

    @property
    def idle(self) -> bool:
        return not (self._arriving or self._running or self.queue.requests)

    def stats(self) -> dict[str, Any]:
        arriving = sum(len(one.command.inputs) for one in self._arriving.values() if isinstance(one.command, Pool))
        return {
            "running": sum(map(len, self._running.values())),
            "queued": self.queue.waiting + arriving,
            "steps": self._steps,
            "recoveries": self._recoveries,
            "of_features": {TOKENS: self._tokens, PADDED_TOKENS: self._padded_tokens},
        }

    # --- commands

    def _handle(self, command: Record) -> None:
        match command:
            case Pool():
                self._arrive(command)
            case Encode():
                if sum(map(len, command.texts)) > MAX_ENCODE_CHARACTERS:
                    raise BadRequest(f"the texts to tokenize have more than {MAX_ENCODE_CHARACTERS} characters")
                self._check_room(command.client)
                self._arriving[command.id] = Arriving(command, PoolingParams(), command.texts)
            case Decode():
                check_ids(command.tokens, self.pooler.info.vocab_size, "tokens")
                text = self.pooler.detokenize(command.tokens, command.skip_special_tokens)
                self.out.append(Decoded(command.id, text))
            case Cancel():
                self._forget(command.id)

    def _arrive(self, command: Pool) -> None:
        """Queues a request for tokenizing after the checks that need no tokens. Raises RequestError."""
        self._check_room(command.client)
        params = PoolingParams(**command.params)
        inputs = with_images(command)
        texts = self.inputs.texts(inputs, command.queries, params)
        self._arriving[command.id] = Arriving(command, params, texts, inputs)

    def _check_room(self, client: str) -> None:
        """Raises TooManyRequests if as many requests wait as may wait, of all clients or of this one."""
        clients = [one.command.client for one in self._arriving.values()]
        clients += [one.client for one in self.queue.requests.values()]
        check_room(len(clients), self.max_queued, clients.count(client), self.max_queued_per_client)

    def _refuse(self, command: Record, error: Exception) -> None:
        super()._refuse(command, error)
        self._forget(getattr(command, "id", 0))

    def _forget(self, number: int) -> None:
        """Drops a request: its waiting texts are removed, and results being computed for it will be ignored."""
        self._arriving.pop(number, None)
        self._open.pop(number, None)
        self.queue.remove(number)

    # --- from texts to items

    def admit(self) -> None:
        """Tokenizes some of the texts that have arrived, in one call."""
        if not self._arriving:
            return
        self._turns += 1
        left, chosen, texts = TURN_CHARACTERS, [], []
        for one in self._in_turn():
            self._admitted[one.command.client] = self._turns
            part = one.texts[len(one.encoded) :]
            if one.cost > left:
                part = _first(part, left)
            cost = _cost(part)
            one.cost -= cost
            left -= cost
            chosen.append((one, len(part)))
            texts += part
            if left <= 0:
                break
        self._tokenize(chosen, texts)

    def _in_turn(self) -> list[Arriving]:
        """Returns the requests that have arrived: one of each client, then a second one of each, and so on.

        The client that has waited longest is first. A client's requests are ordered by priority, then short ones first.
        """
        if len(self._arriving) == 1:
            self._admitted.clear()
            return [*self._arriving.values()]
        of_clients: dict[str, list[Arriving]] = {}
        for one in sorted(self._arriving.values(), key=lambda one: (one.params.priority, one.cost)):
            of_clients.setdefault(one.command.client, []).append(one)
        self._admitted = {client: self._admitted.get(client, 0) for client in of_clients}
        clients = sorted(of_clients, key=self._admitted.__getitem__)
        turns = zip_longest(*(of_clients[client] for client in clients))
        return [one for turn in turns for one in turn if one is not None]

    def _tokenize(self, chosen: list[tuple[Arriving, int]], texts: list[str]) -> None:
        """Tokenizes the next texts of some requests, and queues the inputs of those that are complete.

        Args:
            chosen: The requests, each with the number of its texts.
            texts: The texts of all, in their order.
        """
        try:
            encoded = iter(self.pooler.tokenize(texts) if texts else [])
        except Exception as error:  # an error in one request must neither end the loop nor refuse another one
            if len(chosen) == 1:
                self._refuse(chosen[0][0].command, error)
                return
            for one, count in chosen:
                self._tokenize([(one, count)], one.texts[len(one.encoded) :][:count])
            return
        for one, count in chosen:
            one.encoded += islice(encoded, count)
            if len(one.encoded) == len(one.texts):
                del self._arriving[one.command.id]
                self._tokenized(one)

    def _tokenized(self, one: Arriving) -> None:
        try:
            if isinstance(one.command, Encode):
                before, after = self.pooler.template.single if one.command.add_special_tokens else ((), ())
                self.out.append(Encoded.of(one.command.id, [[*before, *ids, *after] for ids in one.encoded]))
            else:
                self._enqueue(one, one.command)
        except Exception as error:  # an error in one request must not end the loop
            self._refuse(one.command, error)

    def _enqueue(self, one: Arriving, command: Pool) -> None:
        """Puts the inputs of a tokenized request into the queue of texts. Raises RequestError."""
        built = self.inputs.build(one.inputs, command.queries, one.encoded, one.params)
        total = sum([len(ids) for ids, _ in built])
        if total > self.options.max_pooling_tokens:
            raise BadRequest(
                f"the inputs together have {total} tokens, more than this server's limit of "
                f"{self.options.max_pooling_tokens} (--max_pooling_tokens)"
            )
        by_token = self._gives_rows(one.params)
        numbers = (total if by_token else len(built)) * self.info.dimensions
        if numbers > MOST_NUMBERS and (by_token or self.info.kind == SPARSE):
            raise BadRequest(f"the results together have {numbers} numbers, more than the limit of {MOST_NUMBERS}")
        unpooled = self.inputs.unpooled(one.params)
        request = QueuedPooling(command.id, one.params, len(built), command.client, unpooled=unpooled)
        self._open[command.id] = request
        texts = [
            QueuedText(request, at, ids, types, given.images if isinstance(given, TextWithImages) else ())
            for at, ((ids, types), given) in enumerate(zip(built, one.inputs, strict=True))
        ]
        self.queue.add(request, texts)

    def _gives_rows(self, params: PoolingParams) -> bool:
        """Returns whether the result of an input has a row for each token."""
        return params.output == PER_TOKEN or self.info.kind in ONLY_PER_TOKEN

    # --- from items to results

    def step(self) -> None:
        """Starts as many batches as the model runs at once, and waits until one of them is computed."""
        if self.queue.waiting >= MANY_TEXTS:
            self.pooler.widen()
        while len(self._running) < self.pooler.slots and self.queue.requests:
            self._start()
        if not self._running:
            return
        batch, output = self.pooler.wait()
        items = self._running.pop(batch)
        if isinstance(output, RuntimeError):
            self._failed(items, output)
        else:
            self._scatter(items, output)

    def _start(self) -> None:
        alone = not self._running and self.queue.waiting == 1
        items = self.queue.next_batch(self._batch_tokens())
        size = self.pooler.padded_length(items[0].bucket) if alone and not items[0].images else 0
        batch = padded(items, self.pooler.info.pad_token_id, size)
        try:
            self.pooler.start(batch, alone)
        except Exception as error:  # an error of one batch, such as an image that does not fit, must not end the loop
            self._failed(items, error)
            return
        self._steps += 1
        self._padded_tokens += batch.ids.size
        self._running[batch] = items

    def _batch_tokens(self) -> int:
        """Returns the most padded tokens of the next batch. Batches that run at once share the texts equally."""
        if self.pooler.slots == 1:
            return self.options.pooling_batch_tokens
        free = self.pooler.slots - len(self._running)
        return min(self.options.pooling_batch_tokens // 2, -(-self.queue.padded_tokens // free))

    def _failed(self, items: list[QueuedText], error: Exception) -> None:
        """Handles a failed batch: its only request fails, or if it has several, each is computed again by itself."""
        self._recoveries += 1
        requests = {item.request for item in items}
        if len(requests) == 1:
            [request] = requests
            self._end(request, for_client(error, f"request {request.id}"))
            return
        for item in items:
            if item.request.id in self._open:
                item.request.isolated = True
                self.queue.restore(item)

    def _scatter(self, items: list[QueuedText], output: Array) -> None:
        places: dict[QueuedPooling, list[int]] = {}
        for row, item in enumerate(items):
            places.setdefault(item.request, []).append(row)
            self._tokens += len(item.ids)
        for request, rows in places.items():
            if request.id not in self._open:
                continue  # it was cancelled
            own = [items[row] for row in rows]
            if self._gives_rows(request.params):
                raw = np.concatenate([output[row, : len(items[row].ids)] for row in rows])
                counts = [len(item.ids) for item in own]
            else:
                # Without an index list if the batch belongs to this request alone, which is faster in numpy.
                raw = output[: len(rows)] if len(places) == 1 else output[rows]
                counts = [1] * len(rows)
            # The check is here because later results may look finite: the sigmoid of infinity is 1.
            if not np.isfinite(raw).all():
                log.error("request %d: the model computed a value that is not a number", request.id)
                self._end(request, EngineFailure(NOT_A_NUMBER))
                continue
            self._send(request, own, finished(raw, self.info, request.params), counts)

    def _send(self, request: QueuedPooling, items: list[QueuedText], values: Array, counts: list[int]) -> None:
        tokens = [len(item.ids) for item in items]
        data = values.astype(LITTLE, copy=False).tobytes()
        request.missing -= len(items)
        kind = PooledPart if request.missing else Pooled
        self.out.append(kind(request.id, [item.index for item in items], tokens, counts, int(values.shape[1]), data))
        if not request.missing:
            del self._open[request.id]

    def _end(self, request: QueuedPooling, error: RequestError) -> None:
        if request.id in self._open:
            self.out.append(Refused(request.id, error.to_wire()))
            self._forget(request.id)


# --- from the output of the network to what a client gets


def finished(rows: Array, info: PoolingInfo, params: PoolingParams) -> Array:
    """Turns rows of the network's output into results for the client: float32 [n, width]."""
    if info.kind in VECTORS:
        if params.dimensions is not None:
            rows = rows[:, : params.dimensions]
        normalizes = info.normalize if params.normalize is None else params.normalize
        return _normalized(rows) if normalizes else rows
    if info.kind == SCORE:
        return _scores(rows, info, params)
    if not params.activation or info.activation == "none":
        return rows
    return _sigmoid(rows) if info.kind == CLASSIFY and info.activation == "sigmoid" else _softmax(rows)


def _scores(rows: Array, info: PoolingInfo, params: PoolingParams) -> Array:
    """Returns one score per row, or its logit if no activation is wanted. Of two outputs, the second has the score."""
    if info.outputs > 1 and info.activation == "softmax" and params.activation:
        return _softmax(rows)[:, -1:]
    logits = rows[:, -1:]
    return logits if not params.activation or info.activation == "none" else _sigmoid(logits)


def _normalized(rows: Array) -> Array:
    with np.errstate(over="ignore"):
        lengths = np.sqrt(np.add.reduce(rows * rows, axis=1, keepdims=True))
    if not np.isfinite(lengths).all():  # squares overflow float32 at the square root of its range
        lengths = np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)
    return rows / np.maximum(lengths, 1e-12)


def _sigmoid(values: Array) -> Array:
    found: Array = 1 / (1 + np.exp(-np.clip(values, -80, 80)))
    return found


def _softmax(rows: Array) -> Array:
    powers = np.exp(rows - rows.max(axis=-1, keepdims=True))
    found: Array = powers / powers.sum(axis=-1, keepdims=True)
    return found
