"""Combines several engines of one model into one, and chooses the one that computes a request.

Each is an EngineClient, which restarts its process by itself. Meanwhile the others serve, and the model counts as ready
as long as one of them is.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from itertools import zip_longest
from typing import Any, TypeVar

import orjson

from ...config import Config
from ...config.options import read_object
from ...engine import protocol
from ...engine.client import prestart
from ...engine.client.engine import EngineClient
from ...engine.client.interface import ModelEngine
from ...engine.client.prestart import COMMAND
from ...engine.client.replies import Close, L, OnPartial, ReplyStream, Send
from ...errors import TooManyRequests, Unavailable
from ...manifest import named
from ...types.engine import EngineRequest, EngineStats, ModelInfo, Vocabulary
from ...util.resources import cores
from .feature import ReplicaOptions
from .prefix_router import MOST_AHEAD, PrefixRouter, prefixes
from .processors import shares

log = logging.getLogger("lean_ovms.engine")

T = TypeVar("T")
_only: ContextVar[int | None] = ContextVar("replica", default=None)
"""The number of the replica that receives the current task's requests; None for any."""
STATES = ("ready", "restarting", "loading", "failed", "stopped")
"""The states of engines. The state of several engines is the first of these that any of them has."""
PINNED = (sys.executable, "-m", f"{__package__}.child.pinned")
"""The command that runs a module on some processors; the processors and the module are appended."""
THREADS = "INFERENCE_NUM_THREADS"
"""The name of OpenVINO's property for the number of threads."""

SUMMED = (
    *("running", "queued", "steps", "kv_blocks_used", "kv_blocks_total", "preemptions", "recoveries", "state_bytes"),
    *("drafts", "accepted"),
)
"""The statistics that are summed over the engines."""


def make(config: Config) -> ModelEngine:
    """Returns the engine of a model, with the number of replicas in the options. Raises StartError for too many."""
    count = config.of(ReplicaOptions).engine_replicas
    if count == 1:
        return EngineClient(config)
    parts, own, properties = shares(count), _of_one(config, count), read_object("plugin_config", config.plugin_config)
    if not parts:
        properties.setdefault(THREADS, max(1, cores() // count))
        own = own.replace(plugin_config=orjson.dumps(properties).decode())
    commands = [[*PINNED, ",".join(map(str, part)), COMMAND[-1]] for part in parts] or [list(COMMAND)] * count
    gauges = {row.name for row in config.composition.metrics if row.kind == "gauge"}
    writes = bool(config.cache_dir or properties.get("CACHE_DIR"))
    replicas = [EngineClient(_numbered(own, number), command) for number, command in enumerate(commands)]
    return EnginePool(replicas, gauges, first_alone=writes)


def _numbered(config: Config, number: int) -> Config:
    """Returns the options of one replica, with the changes that features make for its number. Raises StartError."""
    changes: dict[str, Any] = {}
    for row in config.engine_rows:
        if row.of_process:
            changes |= named(row.package, row.of_process)(config, number)
    return config.replace(**changes) if changes else config


def _of_one(config: Config, count: int) -> Config:
    """Returns the options of each of `count` replicas. The limits of the model are divided among them."""
    return config.replace(
        max_num_seqs=-(-config.max_num_seqs // count),
        cache_memory_percent=max(1, config.cache_memory_percent // count),
        max_queued_requests=-(-config.max_queued_requests // count),
        max_queued_requests_per_client=-(-config.max_queued_requests_per_client // count),
        max_queued_tokens_per_client=-(-config.max_queued_tokens_per_client // count),
    )


def _idlest(loads: Mapping[int, float]) -> int:
    return min(loads, key=loads.__getitem__)


class EnginePool:
    """A ModelEngine that consists of several processes."""

    def __init__(self, replicas: Sequence[EngineClient], gauges: set[str], *, first_alone: bool = False) -> None:
        """Prepares a pool; `start` starts the processes.

        Args:
            replicas: The engines, which differ only in the processors on which they run.
            gauges: The names of features' metrics that are gauges.
            first_alone: Whether the first one is loaded before the others, because it writes files that these read.
        """
        self.replicas = replicas
        """The engines, in the order of their numbers."""
        self.latest: list[EngineStats | None] = [None] * len(replicas)
        """The statistics that each engine reported last; None while it does not serve."""
        self._gauges = gauges
        self._first_alone = first_alone
        # The last statistics of processes that have ended.
        self._before: list[EngineStats | None] = [None] * len(replicas)
        self._lives = [0] * len(replicas)  # the number of restarts when `latest` was updated
        self._known_lives = [0] * len(replicas)  # the number of restarts that the router knows of
        self._router: PrefixRouter[int] = PrefixRouter(MOST_AHEAD)
        self._started = False

    @property
    def state(self) -> str:
        """The best state of any engine; "loading" until all have been loaded."""
        states = {one.state for one in self.replicas}
        if not self._started and "ready" in states:
            return "loading"
        return next(state for state in STATES if state in states)

    @property
    def restarts(self) -> int:
        """The number of restarts of all engines."""
        return sum(one.restarts for one in self.replicas)

    @property
    def on_restart(self) -> Callable[[], Awaitable[None]]:
        """The function that is awaited before the replacement of a process that died gets requests."""
        return self.replicas[0].on_restart

    @on_restart.setter
    def on_restart(self, call: Callable[[], Awaitable[None]]) -> None:
        for one in self.replicas:
            one.on_restart = call

    @property
    def processes(self) -> int:
        """The number of replicas."""
        return len(self.replicas)

    @property
    def pids(self) -> list[int]:
        """The ids of the living processes."""
        return [pid for one in self.replicas for pid in one.pids]

    @property
    def info(self) -> ModelInfo:
        """The properties of the model in the replica with the smallest KV cache, whose limits hold for all replicas."""
        return min((one.info for one in self.replicas), key=lambda info: info.kv_blocks * info.block_size)

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary of the model."""
        return self.replicas[0].vocabulary

    async def start(self) -> ModelInfo:
        """Starts all engines. Raises StartError if one cannot be loaded, while others may still be loading."""
        prestart.discard()  # the process that was started ahead uses all processors
        if self._first_alone:
            await self.replicas[0].start()
        others = self.replicas[1:] if self._first_alone else self.replicas
        await asyncio.gather(*(one.start() for one in others))
        self._started = True
        return self.info

    async def stop(self) -> None:
        """Stops all engines."""
        await asyncio.gather(*(one.stop() for one in self.replicas))

    # --- requests

    async def submit(self, request: EngineRequest) -> ReplyStream:
        """Starts a generation in the replica that the router chooses. If its queue is full, the others are tried.

        Raises RequestError.
        """
        digest = request.images[0].digest if request.images else ""
        seen = prefixes((request.adapter, request.sampling.cache_salt, digest), request.prompt)

        def choose(loads: Mapping[int, float]) -> int:
            chosen = self._router.choose(seen, loads)
            # Recorded at once, because requests with the same prefix may come before this one is accepted.
            self._router.record(seen, chosen)
            return chosen

        return await self._passed_on(choose, lambda one: one.submit(request))

    def open_lasting(self, make: Callable[[int, Send, Close], L]) -> L:
        """Sends a request to the least busy replica. Returns its reply, which survives restarts. Raises Unavailable."""
        return self._idlest().open_lasting(make)

    async def encode(self, texts: list[str], add_special_tokens: bool, client: str = "") -> list[list[int]]:
        """Returns the token ids of each text from the replica with the fewest requests. Raises RequestError.

        Args:
            texts: The texts.
            add_special_tokens: Whether the tokenizer adds special tokens to each of them.
            client: The name of the client that sends them.
        """
        return await self._idlest().encode(texts, add_special_tokens, client)

    async def decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
        """Returns the text of token ids from the replica with the fewest requests. Raises RequestError."""
        return await self._idlest().decode(tokens, skip_special_tokens)

    async def call(self, make: Callable[[int], protocol.Record], on_partial: OnPartial = None) -> Any:
        """Sends a record to the least busy replica whose queue has room. Returns the reply. Raises RequestError."""
        return await self._passed_on(_idlest, lambda one: one.call(make, on_partial))

    async def call_each(self, make: Callable[[int], protocol.Record]) -> list[Any]:
        """Sends a record to each replica that is ready, and returns the replies. Raises RequestError.

        A replica that is restarting need not be asked, since it begins with an empty state.
        """
        return [await self.replicas[number].call(make) for number in self._loads()]

    @contextmanager
    def only(self, process: int) -> Iterator[None]:
        """Directs the current task's requests to one replica, given by its number, inside the `with` block."""
        token = _only.set(process)
        try:
            yield
        finally:
            _only.reset(token)

    def unavailable(self) -> Unavailable:
        """Returns the error of the replica that is expected to be ready first."""
        waiting = [one.unavailable() for one in self.replicas if one.state == self.state]
        waiting = waiting or [one.unavailable() for one in self.replicas]
        return min(waiting, key=lambda error: error.retry_after_s or 0)

    def _loads(self) -> dict[int, float]:
        """Returns the number of requests of each replica that is ready. Raises Unavailable if none is."""
        only = _only.get()
        if only is not None and self.replicas[only].state != "ready":
            raise self.replicas[only].unavailable()
        loads: dict[int, float] = {}
        for number, one in enumerate(self.replicas):
            if one.restarts != self._known_lives[number]:
                self._known_lives[number] = one.restarts
                self._router.remove(number)
            if one.state == "ready" and only in (None, number):
                loads[number] = one.in_flight
        if not loads:
            raise self.unavailable()
        return loads

    def _idlest(self) -> EngineClient:
        return self.replicas[_idlest(self._loads())]

    async def _passed_on(
        self, choose: Callable[[Mapping[int, float]], int], ask: Callable[[EngineClient], Awaitable[T]]
    ) -> T:
        """Asks replicas one after the other until one does not refuse because of its limits. Returns its result.

        `choose` returns the number of the next replica, given the loads of those that have not refused; `ask` sends the
        request to it. Raises TooManyRequests, the error of the last one, if all have refused, and RequestError for
        other reasons.
        """
        refused: dict[int, TooManyRequests] = {}
        while True:
            loads = {number: load for number, load in self._loads().items() if number not in refused}
            if not loads:
                raise next(reversed(refused.values()))
            chosen = choose(loads)
            try:
                return await ask(self.replicas[chosen])
            except TooManyRequests as error:
                refused[chosen] = error

    # --- counts

    async def stats(self) -> EngineStats:
        """Returns the statistics of all replicas, those of ended ones too. Raises Unavailable if none serves."""
        self._loads()
        await asyncio.gather(*map(self._update, range(len(self.replicas))))
        known = [one for one in (*self._before, *self.latest) if one is not None]
        return total(known, self._gauges)

    async def _update(self, number: int) -> None:
        one, found = self.replicas[number], None
        with suppress(Unavailable):
            found = await one.stats()
        last = self.latest[number]
        if last is not None and (found is None or one.restarts != self._lives[number]):
            before = [remains for remains in (self._before[number], ended(last, self._gauges)) if remains is not None]
            self._before[number] = total(before, self._gauges)
        self.latest[number], self._lives[number] = found, one.restarts


def total(found: Sequence[EngineStats], gauges: Collection[str]) -> EngineStats:
    """Combines the statistics of several engines.

    Args:
        found: The statistics.
        gauges: The metrics of things that the engines share, such as files. Of these the greatest value counts; the
            values of other metrics are added.
    """
    drafted = [one.drafted for one in found if one.drafted is not None]
    by_position = zip_longest(*(one.accepted_by_position for one in found), fillvalue=0)
    of_features: dict[str, float] = {}
    for one in found:
        for name, value in one.of_features.items():
            before = of_features.get(name, 0)
            of_features[name] = max(before, value) if name in gauges else before + value
    return EngineStats(
        **{name: sum(getattr(one, name) for one in found) for name in SUMMED},
        speculative=any(one.speculative for one in found),
        drafted=sum(drafted) if drafted else None,
        accepted_by_position=list(map(sum, by_position)),
        of_features=of_features,
    )


def ended(last: EngineStats, gauges: Collection[str]) -> EngineStats:
    """Returns the part of an ended engine's statistics that remains: the counters."""
    return replace(
        last,
        running=0,
        queued=0,
        kv_blocks_used=0,
        kv_blocks_total=0,
        state_bytes=0,
        of_features={name: value for name, value in last.of_features.items() if name not in gauges},
    )
