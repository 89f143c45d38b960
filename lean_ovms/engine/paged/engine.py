"""The paged engine takes requests, and returns records. A request that fails does not affect others.

It is not thread-safe. Engine is the part of a generation.backend.Backend that needs no tokenizer, and PagedPipeline is
a whole one, with the model's tokenizer and the images of its prompts.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from ...errors import BadRequest, EngineFailure, NotSupported, last_line
from ...types import SamplingParams
from ...types.engine import EngineStats, ModelInfo, Vocabulary
from ..generation.backend import (
    ASSISTANT_TOKENS,
    Grammars,
    ImagePlaceholders,
    LongTextEncoder,
    SpecDecodeStats,
    WaitingRequests,
)
from ..generation.fair_queue import FairQueue, GenerationRequest
from ..protocol import PrefixCacheReset, Record, ResetPrefixCache
from .batch_state import BatchState, Speculation
from .block_manager import BlockManager, BlockTables
from .model_inputs import ModelInputs
from .network import Network
from .parts import MAX_ROWS, EngineParts, EngineSizes, InputEmbeddings, StepHook
from .prefix_cache import PrefixCache
from .scheduler import Scheduler
from .scheduling_rules import STEP_S, ChunkSizes, TimeShares
from .sequence import Prepared, Sequence, engine_params, request_error
from .state_checkpoints import StateCache, StateCheckpoints
from .step_runner import Outputs, StepRunner

if TYPE_CHECKING:
    from ..loading.text_encoder import TextEncoder
    from .model import PagedModel

log = logging.getLogger(__name__)


class Engine:
    """Serves the requests of one model by continuous batching."""

    may_compile = True
    """A grammar may be compiled at any time, since compiling shares nothing with a step."""

    def __init__(self, network: Network, sizes: EngineSizes, parts: EngineParts) -> None:
        """Allocates the caches of a network, and creates a scheduler.

        Args:
            network: The network, whose caches are not allocated yet.
            sizes: The sizes of the caches and of the steps.
            parts: The parts that depend on the model's kind and on the options.
        """
        self._sizes = sizes
        self._new_search, self._new_sampler_chain = parts.new_search, parts.new_sampler_chain
        most = max(min(sizes.step_tokens, MAX_ROWS), sizes.max_sequences)
        slots = (sizes.states or slots_for(most, sizes.caching)) if network.hybrid else 0
        tables = BlockTables(min(most, rows_of(slots)) if slots else most, sizes.context, sizes.block_size)
        network.allocate(sizes.blocks + (sizes.pad_to > 1), slots)
        self.states = StateCache(slots)
        self.blocks = BlockManager(sizes.blocks, sizes.block_size, self.states.remove)
        self.requests: dict[int, GenerationRequest] = {}
        self.grammars: Grammars = parts.grammars
        self.hooks: list[StepHook] = []
        """The features' hooks, called around the steps."""
        self.outputs = Outputs(self.requests)
        self.out = self.outputs.out
        checkpoints = StateCheckpoints(self.states, network, self.blocks, tables, sizes.interval)
        batch = BatchState(network, self.blocks, tables, checkpoints, parts.adapters)
        step_s = STEP_S * sizes.threads  # the clock counts the time of all threads
        source = parts.new_draft_source(self.blocks, tables) if parts.new_draft_source is not None else None
        self.scheduler = Scheduler(
            batch,
            PrefixCache(self.blocks, tables, checkpoints, caching=sizes.caching, hooks=self.hooks),
            Speculation(batch, source),
            sizes=sizes,
            chunk_sizes=ChunkSizes(sizes.step_tokens, sizes.block_size, sizes.most_step_tokens, step_s=step_s),
            time_shares=TimeShares(step_s, parts.clock),
            new_matcher=parts.grammars.matcher,
            report_failure=self.outputs.fail,
        )
        self.runner = StepRunner(
            self.scheduler,
            network,
            ModelInputs(network, tables, pad_to=sizes.pad_to, padding_block=sizes.blocks, adapters=parts.adapters),
            self.outputs,
            self.hooks,
            prepare=parts.grammars.prepare,
            clock=parts.clock,
        )
        self.max_sequences = tables.total
        self.recoveries = 0
        self._speculative = False
        self._state_bytes = 0
        self._overlapping = sizes.overlapping
        self.wake: Callable[[], None] | None = None
        self._arrived = 0

    # --- generation.backend.Backend

    @property
    def waiting(self) -> FairQueue[Sequence]:
        return self.scheduler.waiting

    @property
    def idle(self) -> bool:
        return not (self._working or self.outputs.changed)

    @property
    def started(self) -> bool:
        return self.runner.running is not None

    @property
    def computing(self) -> bool:
        return self.runner.computing

    @property
    def _working(self) -> bool:
        """Whether there is something to compute, or a step whose results have not been processed."""
        scheduler, batch = self.scheduler, self.scheduler.batch
        computing = batch.decoding or batch.prefilling or scheduler.waiting or self.started
        return bool(computing) or any(hook.working for hook in self.hooks)

    def check(self, request: GenerationRequest) -> None:
        """Raises BadRequest for a beam search with more beams than can run at once."""
        if request.sampling.beams > self.max_sequences:
            raise BadRequest(
                f"the request needs more than {self.max_sequences} beams, this server's limit (--max_num_seqs)"
            )

    def add(self, request: GenerationRequest) -> None:
        """Queues a request that `check` has accepted, whose `native` is a Prepared object."""
        prepared: Prepared = request.native
        sampling, ids = request.sampling, array("q", request.prompt)
        for index in [0] if sampling.beams > 1 else sorted(request.unfinished):
            self._arrived += 1
            sequence = Sequence(
                request=request,
                index=index,
                params=prepared.params,
                adapter=prepared.adapter,
                images=prepared.images,
                ids=ids[:],
                prompt=len(ids),
                limit=len(ids) + request.max_tokens,
                seed=request.seed(index),
                stops=request.stops,
                arrival=self._arrived,
                echo=sampling.prompt_logprobs and index == 0,
                repetition=sampling.repetition if sampling.beams == 1 else None,
            )
            if sampling.beams > 1:
                assert self._new_search is not None  # otherwise no field could have requested a search
                sequence.search = self._new_search(sequence)
            if sampling.sampler_chain is not None and self._new_sampler_chain is not None:
                sequence.sampler_chain = self._new_sampler_chain(sequence)
            request.sequences.append(sequence)
        self.requests[request.id] = request
        for hook in self.hooks:
            hook.added(request.sequences[0])
        self.scheduler.add(request)

    def cancel(self, request_id: int, index: int | None) -> None:
        request = self.requests.get(request_id)
        if request is None:
            return
        cancelled = request.cancel(index)
        if not request.unfinished:
            del self.requests[request_id]
            self.waiting.dequeued(request)
        gone = [s for s in request.sequences if not request.unfinished or (s.index in cancelled and not s.beams)]
        self.runner.cancel(gone)

    def admit(self, *, compiling: bool = False) -> None:
        """Starts waiting sequences, unless a step is running, whose rows and blocks are in use."""
        for hook in self.hooks:
            self.out += hook.poll()
        if not self.started:
            self.scheduler.admit()

    def step(self) -> None:
        """Computes one step. If it is long, or steps overlap, one call starts it, and the next one waits for it.

        If steps overlap, the call that starts a step also makes the records of the step before. Before the next call,
        the caller sends these records and tokenizes new requests; of a long step it awaits the end, too.
        """
        wake = self.wake if self.runner.takes_long else None
        starting = not self.started and (self._overlapping or wake is not None)
        try:
            if starting:
                self.runner.start(wake)
            else:
                self.runner.compute()
        except Exception as error:  # of openvino, whatever it raises: the other requests go on
            self._recover(error)
        if starting or not self._overlapping or not self._working:
            self.outputs.emit()
        if self.hooks:
            self._tell_hooks()

    def _tell_hooks(self) -> None:
        resting = not (self.scheduler.running or self.started)
        for hook in self.hooks:
            hook.changed()
            if resting:
                hook.rest()

    def handle(self, command: Record) -> None:
        """Clears the prefix cache, or handles a feature's command. Raises RequestError, or NotSupported."""
        try:
            if isinstance(command, ResetPrefixCache):
                self.blocks.clear_cache()
            handled = [hook.handle(command) for hook in self.hooks]
            if isinstance(command, ResetPrefixCache):
                self.out.append(PrefixCacheReset(command.id))
            elif not any(handled):
                raise NotSupported(command.unhandled)
        finally:
            for hook in self.hooks:
                hook.changed()

    def close(self) -> None:
        """Has the hooks of features save their data and end their threads."""
        for hook in self.hooks:
            hook.close()

    def stats(self) -> EngineStats:
        scheduler = self.scheduler
        return EngineStats(
            running=scheduler.batch.slots_used,
            queued=len(scheduler.waiting),
            kv_blocks_used=self.blocks.total - self.blocks.available,
            kv_blocks_total=self.blocks.total,
            state_bytes=self._state_bytes * len(scheduler.running),
            steps=scheduler.steps,
            preemptions=scheduler.preemptions,
            recoveries=self.recoveries,
            speculative=self._speculative,
            **self.runner.drafts.stats(),
            of_features={name: value for hook in self.hooks for name, value in hook.stats().items()},
        )

    def _recover(self, error: Exception) -> None:
        """Queues the sequences of a failed step again, and fails the request that is probably at fault."""
        self.recoveries += 1
        log.error("a step failed: %s", last_line(error))
        self.runner.remove_cancelled()
        at_fault = self.scheduler.recover()
        if at_fault is not None:
            self.scheduler.fail(at_fault.request, EngineFailure("The engine failed while it computed this request."))


CHECKPOINTS = 4
"""The number of checkpoints of cached prefixes per running sequence, if there is memory for them."""


class Capacity(NamedTuple):
    """The number of KV blocks and states for which a cache has memory."""

    blocks: int
    """The blocks of the KV cache."""
    states: int
    """The number of slots in the state cache; 0 if the model has no states."""


def slots_for(sequences: int, caching: bool) -> int:
    """Returns the desired number of state slots for sequences that run at once, and for the ends of cached prefixes."""
    return sequences * 3 // 2 + 1 + caching * CHECKPOINTS * sequences


def rows_of(slots: int) -> int:
    """Returns how many sequences may run at once with this number of state slots.

    The other slots are for cached prefixes, for draft tokens, and for beams that continue from the same state, since
    each writes its own.
    """
    return max(1, slots * 2 // 3)


def divide(cache_bytes: int, *, blocks: int, block_bytes: int, state_bytes: int, states: int) -> Capacity:
    """Divides the memory of a cache between KV blocks and states.

    States get at most half of the memory, but at least enough for one; blocks get the rest.

    Args:
        cache_bytes: The size of the memory in bytes.
        blocks: The most blocks that are needed; 0 for as many as fit.
        block_bytes: The size of a block in bytes.
        state_bytes: The size of one sequence's states in bytes; 0 if the model has none.
        states: The most states that are needed.
    """
    slots = 0
    if state_bytes:
        slots = max(1, min(states, cache_bytes // 2 // state_bytes))
        cache_bytes -= slots * state_bytes
    fitting = max(1, cache_bytes // block_bytes)
    return Capacity(min(blocks or fitting, fitting), slots)


WARM_UP = range(1, 9)
"""The ids of the prompt that is computed while loading; every vocabulary has them."""


@dataclass(frozen=True, slots=True, eq=False)
class ModelTokenizer:
    """A loaded tokenizer, and what was derived from it."""

    native: Any
    """The tokenizer of openvino_genai, or an object with its methods."""
    vocabulary: Vocabulary
    """The texts of all tokens."""
    encode: TextEncoder
    """Encodes texts."""
    ends: frozenset[int]
    """The stop tokens named in the tokenizer's file."""

    def decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
        """Returns the text of token ids."""
        return str(self.native.decode(tokens, skip_special_tokens=skip_special_tokens))


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineParts(EngineParts):
    """The parts of a pipeline: those of its engine, and those that prepare requests for it."""

    tokenizer: ModelTokenizer
    """The model's tokenizer."""
    images: InputEmbeddings | None
    """Creates embeddings of images; None for a text model."""
    drafting: str
    """The kind of drafting: draft, eagle3, mtp or prompt_lookup; "" for none."""
    ngrams: bool
    """Whether requests get draft tokens by prompt lookup without asking for it."""


class PagedPipeline(Engine):
    """A generation.backend.Backend for one model, created by `assemble.load`."""

    info: ModelInfo

    def __init__(self, network: PagedModel, sizes: EngineSizes, parts: PipelineParts) -> None:
        """Creates the pipeline and its caches. The caller must set `info`."""
        super().__init__(network, sizes, parts)
        self._model = network
        self._state_bytes = network.state_bytes
        self._drafting = parts.drafting
        self._ngrams = parts.ngrams
        self._speculative = bool(parts.drafting) or parts.ngrams
        self._tokenizer = parts.tokenizer
        self._adapters = parts.adapters
        self._images = parts.images
        self.vocabulary = parts.tokenizer.vocabulary
        self.long_text_encoder: LongTextEncoder | None = parts.tokenizer.encode
        self.scheduler.checkpoints.message_starts = parts.tokenizer.encode.dividers
        self.image_placeholders: ImagePlaceholders | None = self._images
        self.image_queue: WaitingRequests | None = self._images.queue if self._images is not None else None

    # --- generation.backend.Backend

    def check(self, request: GenerationRequest) -> None:
        super().check(request)
        adapter, images, prompt = self._adapters.get(request.adapter), None, request.image_prompt
        if self._images is not None and prompt is not None:
            images = self._images.of_prompt(request.prompt)
            if request.sampling.prompt_logprobs:
                raise BadRequest("prompt_logprobs is not supported for prompts with images", param="prompt_logprobs")
        speculative = self._speculative and not (images is not None and self._drafting == "draft")
        params = engine_params(request, speculative=speculative, ngrams=self._ngrams)
        request.native = Prepared(params, adapter, images)

    def add(self, request: GenerationRequest) -> None:
        """Queues a request that `check` has accepted. If it has images, they are encoded first."""
        images = request.native.images
        if self._images is None or images is None or not images.missing():
            request.image_prompt = None
            super().add(request)
            return
        self.requests[request.id] = request
        self._images.encode(request)
        request.image_prompt = None  # its pixels are freed when they are encoded

    def cancel(self, request_id: int, index: int | None) -> None:
        if self._images is not None and self._images.queue.cancel(request_id):
            del self.requests[request_id]
        else:
            super().cancel(request_id, index)

    def admit(self, *, compiling: bool = False) -> None:
        for encoded in self._images.queue.poll() if self._images is not None else ():
            request = encoded.request
            try:
                if encoded.error is not None:
                    raise encoded.error
                super().add(request)
            except Exception as error:  # an error in one request must not end the loop
                self.scheduler.fail(request, request_error(error))
                continue
            assert request.group is not None
            self.waiting.charge(request.group.client, encoded.tokens)
        super().admit(compiling=compiling)

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens)

    def decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
        return self._tokenizer.decode(tokens, skip_special_tokens)

    # --- loading

    def warm_up(self) -> None:
        """Computes a short prompt, by which OpenVINO packs the weights, and removes it from the prefix cache.

        Prompts of other lengths and several at once, computed here too, took 0.4 s of CPU time of SmolLM2-135M and 1.2
        of Qwen2.5-Coder 1.5B, and saved a first request at most 5 % of its prompt's time.
        """
        drafted = ASSISTANT_TOKENS if self._drafting not in ("", "prompt_lookup") else 0
        # A step behind a prompt, and one like all others; 5 more took 0.2 s of CPU time and made no request faster.
        answer = 8 if drafted else 3
        sampling = SamplingParams(temperature=0.0, num_assistant_tokens=drafted, cache_salt="warm-up")
        request = GenerationRequest(1, sampling, {0}, prompt=[*WARM_UP], max_tokens=answer)
        request.native = Prepared(sampling)
        self.add(request)
        while self._working:
            self.admit()
            self.runner.compute()
        self.outputs.emit()
        self.out.clear()
        self.blocks.clear_cache()
        self.scheduler.chunk_sizes.forget()
        if self.scheduler.speculation.source is not None:
            self.scheduler.speculation.source.forget()
        self.scheduler.steps = 0
        self.runner.drafts = SpecDecodeStats(drafted=0 if self._speculative else None)
