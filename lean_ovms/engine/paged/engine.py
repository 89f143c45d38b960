"""The paged engine: requests in, records out. A request that fails does not affect others.

Not thread-safe. It is the part of a generation.backend.Backend that needs no model: `pipeline` adds that.
"""

from __future__ import annotations

import logging
import time
from array import array
from collections.abc import Callable, Iterable

from ...config.engine import PREFIX_CACHE_CLOSE_S
from ...engine_types import EngineStats
from ...errors import BadRequest, EngineFailure, NotSupported
from ..errors import last_line
from ..generation.backend import NO_DISK_TIER, NO_SLOTS
from ..generation.fair_queue import FairQueue
from ..generation.sequence import GenerationRequest
from ..protocol import BlocksOnDisk, PrefixCacheAction
from .block_manager import BlockManager
from .block_tables import BlockTables
from .capacity import rows_of, slots_for
from .disk_cache.slots import SlotFiles
from .disk_cache.tier import DiskTier
from .drafting.head import Head
from .drafting.proposer import Proposer
from .grammar.matcher import Matcher, Prepare, one_by_one
from .kv_events import KvEvents
from .lora.adapters import AdapterTable
from .model_inputs import ModelInputs
from .network import Network
from .params import Params
from .sampling.beam_search import BeamSearch
from .scheduler import Scheduler
from .sequence import Sequence
from .state_cache import StateCache
from .step_runner import StepRunner

log = logging.getLogger(__name__)

MAX_ROWS = 1024
"""Sequences at once, however many tokens a step may have (as many as the context, when prompts are not split)."""
READ_WAIT_S = 0.005
"""Between two looks for new requests while nothing can be computed before blocks are read from disk."""


def _no_grammar(sequence: Sequence) -> Matcher:
    raise BadRequest("structured output is not possible with this model")


class Engine(StepRunner):
    """Serves the requests of one model by continuous batching."""

    calm = True
    """Compiling a grammar touches nothing that a step uses."""

    def __init__(
        self,
        network: Network,
        *,
        blocks: int,
        block_size: int,
        context: int,
        step_tokens: int,
        max_sequences: int,
        max_running: int = MAX_ROWS,
        states: int = 0,
        interval: int = 2048,
        split: bool = True,
        caching: bool = True,
        across: bool = False,
        overlapping: bool = False,
        matcher: Callable[[Sequence], Matcher] = _no_grammar,
        prepare: Prepare = one_by_one,
        tile: int = 1,
        proposer: Proposer | None = None,
        adapters: AdapterTable | None = None,
        clock: Callable[[], float] = time.process_time,
    ) -> None:
        """max_sequences: of one request (beams). max_running: at once. split, caching, across, matcher: of Scheduler.
        prepare: a step's masks. states: of a hybrid network for which there is memory; 0: no limit. interval: tokens of
        a prompt between two of them that are kept for the prefix cache.

        overlapping: results of a step are told while the next one is computed.
        tile: as in ModelInputs; at most block_size, and 1 for a hybrid network, which has no row for padding.
        proposer: of draft tokens for requests with `lookahead`; None: the network's head, or n-grams. adapters: that
        requests may name.
        clock: of what steps cost; CPU time, because other processes make a step longer without more work in it.
        """
        most = max(min(step_tokens, MAX_ROWS), max_sequences)
        slots = (states or slots_for(most, caching)) if network.hybrid else 0
        tables = BlockTables(min(most, rows_of(slots)) if slots else most, context, block_size)
        network.allocate(blocks + (tile > 1), slots)
        self.states = StateCache(slots)
        adapters = adapters or AdapterTable(network, (), 0)
        inputs = ModelInputs(network, tables, tile=tile, spare=blocks, adapters=adapters)
        super().__init__(network, tables, inputs, prepare, clock)
        self.out = self._outputs.out
        self.blocks = BlockManager(blocks, block_size, self.states.remove)
        if network.head is not None:
            proposer = Head(network.head, network, self.blocks, tables, context=context, prepare=prepare)
        self.scheduler = Scheduler(
            network,
            self.blocks,
            tables,
            step_tokens,
            proposer,
            adapters,
            self.states,
            slots=max_running,
            split=split,
            caching=caching,
            interval=interval,
            across=across,
            matcher=matcher,
            fail=self._fail,
        )
        self.max_sequences = tables.total
        self.recoveries = 0
        self._speculative = False
        self._state_bytes = 0
        self._overlapping = overlapping
        self._arrived = 0
        self.slots: SlotFiles | None = None
        self._kv_events: KvEvents | None = None

    # --- generation.backend.Backend

    @property
    def waiting(self) -> FairQueue[Sequence]:
        return self.scheduler.waiting

    @property
    def idle(self) -> bool:
        return not (self._working or self._outputs.news)

    @property
    def _working(self) -> bool:
        """Whether there is something to compute, or a step whose results are not processed."""
        scheduler, disk = self.scheduler, self.scheduler.disk
        disk_works = disk is not None and disk.working
        computing = scheduler.decoding or scheduler.prefilling or scheduler.waiting or self._running is not None
        return bool(computing or disk_works)

    def add(self, request: GenerationRequest) -> None:
        """Queues a request that was checked; its `native` is Params. Everything must be in range."""
        params: Params = request.native
        sampling, ids = request.sampling, array("q", request.prompt)
        self.requests[request.id] = request
        for index in [0] if params.beams > 1 else sorted(request.unfinished):
            self._arrived += 1
            sequence = Sequence(
                request=request,
                index=index,
                params=params,
                ids=ids[:],
                prompt=len(ids),
                limit=len(ids) + request.max_tokens,
                seed=request.seed(index),
                stops=request.stops,
                arrival=self._arrived,
                echo=sampling.prompt_logprobs and index == 0,
                repetition=sampling.repetition if params.beams == 1 else None,
            )
            if params.beams > 1:
                sequence.search = BeamSearch(sequence)
            request.sequences.append(sequence)
        if self.slots is not None and params.adapter is None:
            self.slots.use(sampling.id_slot, params.salt, request.sequences[0].ids)
        self.scheduler.add(request)

    def cancel(self, request_id: int, index: int | None) -> None:
        request = self.requests.get(request_id)
        if request is None:
            return
        cancelled = set(request.unfinished) if index is None else request.unfinished & {index}
        request.unfinished -= cancelled
        if not request.unfinished:
            del self.requests[request_id]
            self.waiting.dequeued(request)
        gone = [s for s in request.sequences if not request.unfinished or (s.index in cancelled and not s.beams)]
        if self._running is not None:
            self._cancelled += gone  # the network computes for them
        else:
            self._remove(gone)

    def admit(self, *, compiling: bool = False) -> None:
        """Implements Backend.admit. No sequence starts while a step runs, whose rows and blocks are in use."""
        if (disk := self.scheduler.disk) is not None and disk.working:
            disk.poll()
            while disk.writer.answers:
                self.out.append(disk.writer.answers.popleft())
        if self._running is None:
            self.scheduler.admit()

    def step(self) -> Iterable[str]:
        """Implements Backend.step. Where steps overlap, each call does half of one, in turns.

        The first call starts a step and makes the records of the step before; the second waits for it. Between the two,
        the caller sends these records and tokenizes new requests.
        """
        starting = self._overlapping and self._running is None
        try:
            if starting:
                self.start()
            else:
                self.compute()
        except Exception as error:  # of openvino, whatever it raises: the other requests go on
            self._recover(error)
        if starting or not self._overlapping or not self._working:
            self._outputs.tell()
        self._publish_kv_events()
        if (disk := self.scheduler.disk) is not None and not self.scheduler.running and self._running is None:
            disk.writer.rest()
            if disk.working:
                disk.reader.wait(READ_WAIT_S)
        return ()

    def keep_on_disk(self, disk: DiskTier) -> None:
        """Gives the prefix cache a tier on disk."""
        self.scheduler.disk = disk
        self.blocks.watchers.append(disk)
        self.states.replaced = disk.state_evicted

    def publish(self, events: KvEvents) -> None:
        """Has what enters and leaves the prefix cache published from now on."""
        self._kv_events = events
        self.blocks.watchers.append(events)

    def _publish_kv_events(self) -> None:
        if self._kv_events is not None:
            self._kv_events.flush()

    def prefix_cache_action(self, command: PrefixCacheAction) -> None:
        tier = self.scheduler.disk
        if command.action == "reset":
            self.blocks.clear_cache()
            if tier is not None and command.disk:
                tier.writer.clear()
            self._publish_kv_events()
            self.out.append(BlocksOnDisk(command.id))
        elif tier is not None:
            tier.writer.call(command)
        else:
            raise NotSupported(NO_DISK_TIER)

    def slot_action(self, action: str, slot: int, file: str) -> tuple[int, int]:
        if self.slots is None:
            raise NotSupported(NO_SLOTS)
        try:
            match action:
                case "save":
                    return self.slots.save(slot, file)
                case "restore":
                    return self.slots.restore(slot, file)
                case _:
                    return self.slots.erase(slot), 0
        finally:
            self._publish_kv_events()

    def close(self) -> None:
        if (disk := self.scheduler.disk) is not None:
            disk.close(PREFIX_CACHE_CLOSE_S)
        if self._kv_events is not None:
            self._kv_events.close()

    def stats(self) -> EngineStats:
        scheduler = self.scheduler
        return EngineStats(
            running=scheduler.in_use,
            queued=len(scheduler.waiting),
            kv_blocks_used=self.blocks.total - self.blocks.available,
            kv_blocks_total=self.blocks.total,
            state_bytes=self._state_bytes * len(scheduler.running),
            steps=scheduler.steps,
            preemptions=scheduler.preemptions,
            recoveries=self.recoveries,
            speculative=self._speculative,
            **self.drafts.stats(),
            **(scheduler.disk.stats() if scheduler.disk is not None else {}),
        )

    def _recover(self, error: Exception) -> None:
        """Queues the sequences of a failed step again, and fails the request that is probably at fault.

        Keys and values are written again to the same places.
        """
        self.recoveries += 1
        log.error("a step failed: %s", last_line(error))
        self._remove_cancelled()
        at_fault = self.scheduler.recover()
        if at_fault is not None:
            self._fail(at_fault.request, EngineFailure("The engine failed while it computed this request."))
