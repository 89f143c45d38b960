"""Schedules steps: each computes one token of every decoding sequence, then prompts in chunks, up to a token limit.

FairQueue decides which waiting sequence starts next: fairly between clients, then by priority. Blocks are allocated as
sequences grow. If none is left, a sequence is preempted: its blocks are freed, it waits, and it is computed again later
from its tokens and the prefix cache. Only a sequence that runs alone and still does not fit is dropped.

The scheduler's parts are `BatchState` (the running sequences), `PrefixCache` (cached prefixes), `StateCheckpoints` (the
states of hybrid networks), `Speculation` (draft tokens), `ChunkSizes` (the size of a step's prompt chunks) and
`TimeShares` (the clients whose sequences a step leaves out).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...errors import EngineFailure, RequestError
from ..generation.fair_queue import ClientQueue, FairQueue, GenerationRequest, SequenceGroup
from .batch_state import BatchState, Speculation
from .model_inputs import Chunk
from .parts import EngineSizes
from .prefix_cache import PrefixCache
from .scheduling_rules import ChunkSizes, FaultIsolation, TimeShares, for_another, is_too_costly, over_budget
from .sequence import Matcher, Sequence, request_error

PREFILL_TOKENS = 32
"""The tokens of a step that are kept for prompts, which decoding sequences could otherwise block forever."""
IMAGE_PARTS = 4
"""With decoding sequences in the step, a prompt with an image gets at most 1 / IMAGE_PARTS of the step's tokens, since
images take longer to compute. Running answers pause less, while the first token of the prompt comes a few steps later.
"""
MAX_PASSES = 64
"""The most sequences of other clients that may start before one that lacks KV blocks."""
MAX_PASSED = 64
"""The most waiting sequences that are examined before a step and cannot start yet."""


class Step(NamedTuple):
    """The work of one step."""

    decoding: list[Sequence]
    """The plain sequences, of which the step computes one token each."""
    rows: NDArray[np.int64]
    """The block table rows of the plain sequences."""
    chunks: list[Chunk]
    """The chunks: draft tokens to be verified, and parts of prompts."""
    changed: bool
    """Whether the plain sequences, their blocks or their state slots differ from those of the last step."""


class Scheduler:
    """Decides which running and waiting sequences a step computes."""

    def __init__(
        self,
        batch: BatchState,
        prefixes: PrefixCache,
        speculation: Speculation,
        *,
        sizes: EngineSizes,
        chunk_sizes: ChunkSizes,
        time_shares: TimeShares,
        new_matcher: Callable[[Sequence], Matcher],
        report_failure: Callable[[GenerationRequest, RequestError], bool],
    ) -> None:
        """Creates a scheduler without sequences.

        Args:
            batch: The running sequences.
            prefixes: The cached prefixes.
            speculation: Chooses the draft tokens of sequences.
            sizes: The sizes of the engine.
            chunk_sizes: Chooses the number of tokens in a step, and of each prompt in it.
            time_shares: Divides the time of steps between clients.
            new_matcher: Creates the grammar matcher of a sequence. If it raises an exception, the request fails.
            report_failure: Reports to the front end that a request has failed; returns False if the request has ended
                already.
        """
        self.batch = batch
        self.prefixes = prefixes
        self.checkpoints = prefixes.checkpoints
        self.speculation = speculation
        self.blocks = batch.blocks
        self.tables = batch.tables
        reserved = min(PREFILL_TOKENS, chunk_sizes.least // 4)
        most = min(self.tables.total, max(1, chunk_sizes.least - reserved))
        self.waiting: FairQueue[Sequence] = FairQueue(
            min(sizes.max_running, most), priority_across_clients=sizes.priority_across_clients
        )
        """The queue of waiting sequences."""
        self.steps = self.preemptions = 0
        """The numbers of steps, counted by the engine, and of preempted sequences since the start."""
        self.suspects = FaultIsolation()
        """The sequences that may have caused a failed step."""
        self.chunk_sizes = chunk_sizes
        self.time_shares = time_shares
        self._decoding: dict[ClientQueue, float] = {}  # the work of the step's decoding sequences
        self._reserved = reserved
        self._max_rows = most
        self._split = sizes.split
        self._new_matcher = new_matcher
        self._report_failure = report_failure

    # --- one step

    def schedule(self) -> Step | None:
        """Returns the next step, with blocks allocated for all of it; None if nothing can be computed.

        Draft tokens that need no model are chosen first. A sequence with draft tokens is computed as a chunk; the other
        decoding sequences are plain, have one token in the step, and get a block for it if their last one is full. The
        remaining tokens of the step are used for draft tokens, then for parts of prompts. A sequence that needs a block
        may preempt others, which are left out of the step.
        """
        if len(self.waiting.clients) > 1 or self.time_shares.active:
            self._share_time()
        step = self._fill()
        if step is None and self.batch.left_out:  # the others lack blocks or states
            self.batch.leave_out(frozenset())
            step = self._fill()
        return step

    def _share_time(self) -> None:
        """Chooses the clients whose sequences the next step leaves out."""
        batch, work = self.batch, self.chunk_sizes.work
        self._decoding, prompts = dict[ClientQueue, float](), dict[ClientQueue, float]()
        computed, reach = self.tables.computed.tolist(), self.chunk_sizes.reach
        for sequence in batch.decoding:
            client = sequence.client
            self._decoding[client] = self._decoding.get(client, 0.0) + 1 + computed[sequence.row] / reach
        for sequence in batch.prefilling:
            client, start = sequence.client, computed[sequence.row]
            self._decoding.setdefault(client, 0.0)
            prompts[client] = prompts.get(client, 0.0) + work(start, len(sequence.ids) - start)
        left_out = self.time_shares.leave_out(self._decoding, prompts, max(0, self._budget()))
        exempt = self.suspects or self.waiting.priority_across_clients
        batch.leave_out(frozenset() if exempt else left_out)

    def _fill(self) -> Step | None:
        """Returns the next step for all clients but those that are left out; None if nothing can be computed."""
        batch, chunks = self.batch, list[Chunk]()
        self.speculation.choose()
        self._extend_plain()
        budget = self.chunk_sizes.step_tokens - len(batch.plain)
        if batch.regroup or len(batch.plain) < len(batch.active) or self.speculation.asks_network:
            budget -= self._add_drafts(chunks, budget)
        if batch.prefilling:
            self._add_prompts(chunks, budget)
        if batch.regroup:
            batch.group()
            chunks = [chunk for chunk in chunks if chunk.sequence.row >= 0]
        if not batch.plain and not chunks:
            return None
        changed, batch.changed = batch.changed, False
        return Step(batch.plain, batch.plain_rows, chunks, changed)

    def _extend_plain(self) -> None:
        """Allocates blocks and state slots for the next token of each plain sequence."""
        batch = self.batch
        if batch.regroup:
            batch.group()
        plain = batch.plain
        for place in self.tables.full(batch.plain_rows).tolist():
            sequence = plain[place]
            if sequence.row < 0:
                continue  # preempted for one before it
            computed = int(self.tables.computed[sequence.row])
            self.prefixes.register(sequence, computed)
            self.prefixes.checkpoint_completion(sequence)
            self._grow(sequence, computed + 1)
        if batch.changed:
            self.checkpoints.assign_state_slots(plain)

    def _add_drafts(self, chunks: list[Chunk], budget: int) -> int:
        """Adds chunks of draft tokens, leaving room for all sequences and prompts; returns their number of tokens."""
        drafting = [s for s in self.batch.active if s.drafting]
        left = budget - len(drafting) - (self._reserved if self.batch.prefilling else 0)
        self.speculation.propose(drafting, left, (budget - self._reserved) // 2)
        return sum(self._add_draft(sequence, chunks) for sequence in drafting if sequence.row >= 0)

    def _add_draft(self, sequence: Sequence, chunks: list[Chunk]) -> int:
        """Adds a chunk of a sequence's newest token, drafts and alternatives; returns its number of tokens."""
        start = int(self.tables.computed[sequence.row])
        count = self.speculation.fit(sequence)
        wanted = count + len(sequence.alternatives)
        length = len(sequence.ids) - start - 1 + wanted
        if not count or not self._grow(sequence, start + length):
            return 0
        chunks.append(Chunk(sequence, start, length, wanted, self.checkpoints.slots(sequence), 1, 1))
        return length

    def _add_prompts(self, chunks: list[Chunk], budget: int) -> None:
        """Adds chunks of prompts up to a budget of work, in the unit of ChunkSizes.

        A prompt waits if another one computes their common prefix in this step. With some hybrid networks the number of
        prompts in a step is limited.
        """
        prompts = self._ordered_prompts(budget)
        owners = self.prefixes.prefix_owners([sequence for sequence, _ in prompts])
        computing: set[Sequence] = set()
        for sequence, kept in prompts:
            if budget <= kept or len(computing) == self.checkpoints.most_prompts:
                break
            if sequence.row >= 0 and owners.get(sequence) not in computing:
                taken = self._add_prompt(sequence, budget - kept, chunks)
                if taken:
                    computing.add(sequence)
                budget -= taken

    def _ordered_prompts(self, budget: int) -> list[tuple[Sequence, int]]:
        """Returns prompts in the order of their computation, each with the work to reserve for those after it.

        The oldest prompt gets at least half of the step's budget of tokens; prompts that fit into the other half need
        not wait for all of it. Work is in units of the time of a token without context.
        """
        prompts = [s for s in self.batch.prefilling if s.client not in self.batch.left_out]
        if len(prompts) < 2 or not self._split:
            return [(sequence, 0) for sequence in prompts]
        left = {s: len(s.ids) - int(self.tables.computed[s.row]) for s in prompts[1:]}
        rest = sorted(left, key=lambda s: left[s] > budget // 2)
        work = self.chunk_sizes.work
        short = (work(int(self.tables.computed[s.row]), n) for s, n in left.items() if n <= budget // 2)
        kept = min(budget // 2, sum(short))
        return [(prompts[0], kept), *((sequence, 0) for sequence in rest)]

    def _add_prompt(self, sequence: Sequence, budget: int, chunks: list[Chunk]) -> int:
        """Adds a chunk of a sequence's prompt; returns the work that it takes from the budget.

        A prompt that runs alone gets whole steps. Otherwise its chunks shrink with its context, since the pauses of
        other sequences would grow with its length.
        """
        batch = self.batch
        start, known = int(self.tables.computed[sequence.row]), len(sequence.ids)
        count, images = known - start, sequence.images
        taken = count
        if self._split and not batch.decoding and len(batch.prefilling) == 1:
            count = taken = min(count, budget)
        elif self._split:
            if images is not None and batch.decoding and any(images.rows(start, min(count, budget))):
                budget = min(budget, max(1, self.chunk_sizes.step_tokens // IMAGE_PARTS))
            count, taken = self.chunk_sizes.part(start, count, budget)
        if images is not None:
            count = images.chunk(start, count)
        cached = self.prefixes.root(sequence) is not None
        ends = self.checkpoints.write_prompt_states(sequence, start, start + count, cached=cached)
        if not ends or not self._grow(sequence, ends[-1]):
            return 0
        count = ends[-1] - start
        wanted = count if sequence.needs_prompt_logprobs else int(ends[-1] == known)
        chunks.append(self.checkpoints.prompt_chunk(sequence, start, ends, wanted))
        return taken

    def _grow(self, sequence: Sequence, tokens: int) -> bool:
        """Allocates blocks for `tokens` tokens. Returns False if the sequence was preempted, or has failed."""
        need = self.blocks.blocks(tokens) - len(sequence.blocks)
        if need <= 0:
            return True
        if not self.make_room(sequence, need):
            return False
        self.batch.grow(sequence, need)
        self._charge(sequence)
        return True

    def charge_time(self, step: Step, seconds: float) -> None:
        """Charges the clients of a step for its time."""
        left_out = self.batch.left_out
        work = {client: done for client, done in self._decoding.items() if client not in left_out}
        for chunk in step.chunks:
            client, done = chunk.sequence.client, self.chunk_sizes.work(chunk.start, chunk.length)
            work[client] = work.get(client, 0.0) + done
        self.time_shares.charge(work, seconds, everyone=not left_out)

    def timed(self, step: Step, seconds: float) -> None:
        """Records the duration of a step with chunks."""
        tokens = len(step.decoding) + sum(chunk.length for chunk in step.chunks)
        attended = sum(chunk.length * chunk.start for chunk in step.chunks)
        self.chunk_sizes.learn(tokens, attended + int(self.tables.computed[step.rows].sum()), seconds)

    # --- sequences that come

    def add(self, request: GenerationRequest) -> None:
        """Queues the sequences of a request."""
        self.waiting.add(request)
        if self.checkpoints.enabled:
            for sequence in request.sequences:
                for other in self.batch.prefilling:
                    self.prefixes.shares_prefix(other, sequence)

    def admit(self) -> None:
        """Starts waiting sequences in the order of the queue, as far as slots, KV blocks and the next step allow.

        A sequence that waits for something else, such as grammar masks, may be overtaken. One that waits for blocks may
        not, or a long prompt would starve behind short ones; but up to MAX_PASSES sequences of other clients within
        their share may.
        """
        if not self.waiting:
            return
        queue, passed = self.waiting, list[Sequence]()
        lacking: ClientQueue | None = None  # its next sequence lacks blocks
        while (group := queue.next_group()) is not None:
            client, leaving = group.client, None
            if self.full and (leaving := self._leaving(group)) is None:
                break
            if len(passed) >= MAX_PASSED or self.prompts_full(client):
                queue.pause(client)
                continue
            sequence = queue.pop(group)
            if self.must_wait(sequence):
                passed.append(sequence)
                continue
            if not self._makes_room(sequence, lacking, leaving):
                lacking = lacking or client
                passed.append(sequence)
                queue.pause(client)
                continue
            if leaving is not None and self.full:
                self.preempt(leaving)
            self.start(sequence)
            if lacking is not None:
                lacking.passes += 1
        queue.resume()
        queue.restore([sequence for sequence in passed if sequence.state == "waiting"])

    def _leaving(self, group: SequenceGroup) -> Sequence | None:
        """Returns the sequence that should give its slot to a group's next one; None if none can at the moment."""
        giver = self.waiting.giver(group)
        if giver is None:
            return None
        least = group.priority if self.waiting.priority_across_clients else None
        return for_another(self.running, giver, least_priority=least)

    def _makes_room(self, sequence: Sequence, lacking: ClientQueue | None, leaving: Sequence | None) -> bool:
        """Returns whether a sequence may start now, after preempting others for it if necessary.

        Only for a client within its share of the blocks are others preempted, and only those of clients above theirs.

        Args:
            sequence: The sequence.
            lacking: A client earlier in the queue whose next sequence lacks blocks and would be overtaken; None if
                there is none.
            leaving: The running sequence whose slot this one takes; None if a slot is free.
        """
        queue = self.waiting
        if lacking is not None and (lacking.passes >= MAX_PASSES or not self._within_share(sequence)):
            return False
        if self.reserve(sequence, leaving):
            return True
        if len(queue.clients) == 1 or not self._within_share(sequence):
            return False
        share = queue.share(self.blocks.total)
        while True:
            most = max(queue.clients.values(), key=self.batch.blocks_of)
            if self.batch.blocks_of(most) <= share:
                return False
            victim = for_another(self.running, most)
            if victim is None:
                return False
            self.preempt(victim)
            if self.reserve(sequence, leaving if self.full else None):
                return True

    def _within_share(self, sequence: Sequence) -> bool:
        blocks = self.batch.blocks_of(sequence.client) + self.blocks.blocks(len(sequence.ids))
        return blocks <= self.waiting.share(self.blocks.total)

    @property
    def running(self) -> list[Sequence]:
        """The running sequences, oldest first."""
        return self.batch.running

    @property
    def full(self) -> bool:
        """Whether every slot is taken."""
        return self.batch.slots_used >= self.waiting.slots

    def prompts_full(self, client: ClientQueue) -> bool:
        """Returns whether a client's prompts in prefill are so many, or so long, that another would only wait."""
        if not any(s.client is client for s in self.batch.prefilling):
            return False
        left, half = self._prompts_left(), self._half()
        short = [tokens for tokens in left if tokens <= half]
        return sum(left) >= self._budget() and (not self._split or len(short) == len(left) or sum(short) >= half)

    def must_wait(self, sequence: Sequence) -> bool:
        """Returns whether a sequence cannot start now although others after it may.

        It may have to wait for a feature, for the masks or samplers of others, for its trial as a suspect of a failed
        step, or for its client's long prompt.
        """
        if self.prefixes.must_wait(sequence):
            return True
        if is_too_costly(sequence, self.running):
            return True
        if not self.suspects.may_start(sequence, self.running):
            return True
        mine = any(s.client is sequence.client for s in self.batch.prefilling)
        return mine and len(sequence.ids) > self._half() and sum(self._prompts_left()) >= self._budget()

    def reserve(self, sequence: Sequence, leaving: Sequence | None) -> bool:
        """Reserves blocks and a slot for a sequence that is about to start; returns whether there were enough.

        If so, the sequence holds its cached blocks and its adapter from now on. It takes the slot of `leaving`, or a
        free one.
        """
        running, used = self.running, self.batch.rows_used
        if running and used - (leaving is not None) + sequence.rows > self._max_rows:
            return False
        found = self.prefixes.match_prefix(sequence, 0)
        promised = sum(self.blocks.blocks(len(s.ids)) - len(s.blocks) for s in self.batch.prefilling)
        grown = used // 4  # a fourth can still grow by a block
        need = self.blocks.blocks(len(sequence.ids)) - len(found) + promised + grown
        if (running and need > self.blocks.available) or not self.batch.adapters.acquire(sequence.adapter):
            self.blocks.release([block for block, _ in found])
            return False
        sequence.blocks = [block for block, _ in found]
        sequence.chain = [serial for _, serial in found]
        return True

    def start(self, sequence: Sequence) -> None:
        """Starts a sequence with reserved blocks and slot; if its grammar cannot be matched, the request fails."""
        try:
            if sequence.constrained and sequence.matcher is None:
                sequence.matcher = self._new_matcher(sequence)
        except Exception as error:  # one request's fault must not end the loop
            self.blocks.release(sequence.blocks)
            self.batch.adapters.release(sequence.adapter)
            sequence.blocks, sequence.chain = [], []
            self.waiting.put_back(sequence, first=True)
            self.fail(sequence.request, request_error(error))
            return
        self.waiting.started(sequence)
        found = len(sequence.blocks) * self.blocks.block_size
        self.batch.start(sequence)
        if self.checkpoints.enabled:
            for other in self.waiting:
                self.prefixes.shares_prefix(sequence, other)
            self.checkpoints.begin(sequence)
        if not sequence.started:
            sequence.started, sequence.started_at = True, self.waiting.clock()
            sequence.cached, sequence.charged = found, len(sequence.ids)
            self.waiting.charge(sequence.client, len(sequence.ids) - found)

    def preempt(self, sequence: Sequence, *, first: bool = False) -> None:
        """Queues a running sequence, which leaves the batch, again; if `first`, before others of its client."""
        self.prefixes.checkpoint_preempted(sequence)
        self._requeue(sequence, first=first)
        self.preemptions += 1

    def _prompts_left(self) -> list[int]:
        return [len(s.ids) - int(self.tables.computed[s.row]) for s in self.batch.prefilling]

    def _budget(self) -> int:
        return self.chunk_sizes.step_tokens - len(self.batch.decoding)

    def _half(self) -> int:
        return max(1, self._budget() // 2)

    # --- sequences that go on, or leave

    def decode(self, sequence: Sequence) -> None:
        """Moves a sequence whose prompt is computed from prefill to the decoding sequences."""
        self.batch.decode(sequence)
        sequence.has_output, sequence.output_since = True, len(sequence.ids)
        self.suspects.discard(sequence)

    def finish(self, sequence: Sequence) -> None:
        """Ends a sequence that is complete; called between two steps."""
        self.prefixes.checkpoint_completion(sequence)
        self.end(sequence)

    def end(self, sequence: Sequence) -> None:
        """Ends a sequence, together with its beam search, whatever its state."""
        self.suspects.discard(sequence)
        if sequence.state == "waiting":
            self.waiting.remove(sequence.request, sequence.index)
            sequence.state = "over"
        elif sequence.row >= 0 or sequence in self.batch.searching:
            self._stop(sequence)

    def discard(self, sequences: list[Sequence]) -> None:
        """Ends sequences that were cancelled."""
        for sequence in sequences:
            self.end(sequence)
            sequence.new_ids, sequence.new_details = [], []

    def fail(self, request: GenerationRequest, error: RequestError) -> None:
        """Ends all sequences of a request with an error, unless it has ended already."""
        if self._report_failure(request, error):
            request.unfinished.clear()
            self.waiting.dequeued(request)
            self.discard(request.sequences)

    def leave(self, sequence: Sequence) -> None:
        """Removes one running sequence, without the other beams of its search."""
        if sequence.row >= 0:
            self._charge(sequence)
            self.prefixes.register(sequence, int(self.tables.computed[sequence.row]))
            self.batch.remove(sequence)
        sequence.state = "over"
        self.speculation.leave(sequence)

    def make_room(self, sequence: Sequence, blocks: int) -> bool:
        """Preempts sequences until so many blocks are free. Returns False if `sequence` was preempted, or failed."""
        while self.prefixes.lacks(blocks):
            running = sorted(self.running, key=lambda s: s.arrival)
            clients = () if self.waiting.priority_across_clients else self.waiting.clients.values()
            victim = over_budget(running, clients, self.batch.blocks_of)
            mine = set(victim.members)
            if mine.issuperset(running):
                self.fail(sequence.request, EngineFailure("The engine ran out of KV cache for this request."))
                return False
            self.preempt(victim, first=True)
            if sequence in mine:
                return False
        return True

    def recover(self) -> Sequence | None:
        """Queues all running sequences of a failed step again, before all others; returns the one at fault, or None.

        The sequence at fault is queued as well, and the caller must end its request.
        """
        running = {s.arrival: s for s in [*self.running, *self.batch.searching]}
        interrupted = sorted(running.values(), key=lambda s: s.arrival)
        at_fault = self.suspects.pick(interrupted)
        for sequence in reversed(self.suspects.order(interrupted)):
            self._requeue(sequence, first=True)
        return at_fault

    def _requeue(self, victim: Sequence, *, first: bool) -> None:
        victim = self._stop(victim)
        victim.state = "waiting"
        self.waiting.put_back(victim, first=first)

    def _stop(self, sequence: Sequence) -> Sequence:
        """Stops a running sequence; returns the one to queue for resuming, of a beam search that of its prompt."""
        for member in sequence.members:
            self.leave(member)
        self.waiting.stopped(sequence)
        if sequence.search is not None:
            sequence = sequence.search.begin_again()
            self.batch.searching.remove(sequence)
        if sequence.needs_prompt_logprobs:
            sequence.prompt_details = []
        sequence.preempted, sequence.has_output = True, False
        return sequence

    def _charge(self, sequence: Sequence) -> None:
        """Charges a sequence's client for the tokens generated since the last charge."""
        if len(sequence.ids) > sequence.charged:
            self.waiting.charge(sequence.client, len(sequence.ids) - sequence.charged)
            sequence.charged = len(sequence.ids)
