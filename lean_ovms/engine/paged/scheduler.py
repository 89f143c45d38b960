"""The scheduler: a step computes one token of every decoding sequence, then prompts in chunks, up to its token limit.

Which waiting sequence starts next is AdmissionPolicy's: fair between clients, by priority. Blocks are allocated as
sequences grow. When none is left, a sequence is preempted: its blocks are freed, it waits, and it is computed again
later from its tokens and the prefix cache. Only a sequence that runs alone and still does not fit is dropped.

A scheduler has its parts: `BatchState` (what runs), `PrefixCache` (what prompts can begin with), `StateCheckpoints`
(the states of hybrid networks), `Speculation` (draft tokens) and `ChunkSizes` (how much of a prompt a step computes).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...errors import BadRequest, EngineFailure, RequestError
from ..generation.admission_policy import AdmissionPolicy, FaultIsolation, must_wait_for_masks, over_budget
from ..generation.fair_queue import FairQueue
from ..generation.sequence import ClientQueue, GenerationRequest
from .batch_state import BatchState
from .model_inputs import Chunk
from .prefix_cache import PrefixCache
from .sequence import Matcher, Sequence
from .speculation import Speculation

PREFILL_TOKENS = 32
"""Tokens of a step reserved for prompts, which decoding sequences could otherwise keep out for ever."""
IMAGE_PARTS = 4
"""A step with decoding sequences computes at most this part of its tokens of a prompt where that has an image: the
network takes longer for these. So running answers pause less, and the first token of the prompt waits a few steps
more."""


class Step(NamedTuple):
    """The work of one step."""

    decoding: list[Sequence]
    """The plain sequences, of which it computes one token each."""
    rows: NDArray[np.int64]
    """Their rows in the block tables."""
    chunks: list[Chunk]
    """Draft tokens to be verified, and parts of prompts."""
    changed: bool
    """Whether the plain sequences, their blocks or the slots of their states are others than in the last step."""


class Scheduler:
    """Decides what each step computes, of the running sequences and those that wait."""

    def __init__(
        self,
        batch: BatchState,
        prefixes: PrefixCache,
        speculation: Speculation,
        *,
        chunk_sizes: ChunkSizes,
        slots: int,
        split: bool,
        priority_across_clients: bool,
        new_matcher: Callable[[Sequence], Matcher],
        report_failure: Callable[[GenerationRequest, RequestError], bool],
    ) -> None:
        """Begins without any sequence.

        Args:
            batch: The running sequences.
            prefixes: What prompts can begin with.
            speculation: What gives sequences draft tokens.
            chunk_sizes: How many tokens a step computes, and how many of each prompt.
            slots: The most sequences that run at once, a beam search counted as one.
            split: Whether a prompt may be computed over several steps.
            priority_across_clients: Whether the priority of a request counts against requests of other clients.
            new_matcher: Makes what matches the grammar of a sequence; it may raise BadRequest.
            report_failure: Tells the front end that a request has failed; False if the request has ended already.
        """
        self.batch = batch
        self.prefixes = prefixes
        self.checkpoints = prefixes.checkpoints
        self.speculation = speculation
        self.blocks = batch.blocks
        self.tables = batch.tables
        reserved = min(PREFILL_TOKENS, chunk_sizes.least // 4)
        most = min(self.tables.total, max(1, chunk_sizes.least - reserved))
        self.waiting: FairQueue[Sequence] = FairQueue(min(slots, most), priority_across_clients=priority_across_clients)
        """The sequences that wait, by client."""
        self.steps = self.preemptions = 0
        """Steps, counted by the engine, and preempted sequences, since the start."""
        self.suspects: FaultIsolation[Sequence] = FaultIsolation()
        """The sequences that may have made a step fail."""
        self.chunk_sizes = chunk_sizes
        self._reserved = reserved
        self._max_rows = most
        self._split = split
        self._new_matcher = new_matcher
        self._report_failure = report_failure
        self._policy = AdmissionPolicy(self.waiting, self)

    # --- one step

    def schedule(self) -> Step | None:
        """Returns the next step, with blocks for all of it; None when nothing can be computed.

        First come draft tokens that need no model: with them a sequence is computed as a chunk, all others are plain.
        Each plain sequence has one token in the step, and gets a block for it where its last one is full. What is left
        of the step's tokens is for draft tokens, then for parts of prompts. A sequence that needs a block may preempt
        others, which are then no part of the step.
        """
        batch, chunks = self.batch, list[Chunk]()
        self.speculation.choose()
        self._extend_plain()
        budget = self.chunk_sizes.step_tokens - len(batch.plain)
        if batch.regroup or len(batch.plain) < len(batch.decoding) or self.speculation.proposer is not None:
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
        """Allocates blocks for the next token of plain sequences, and slots for their states."""
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
        else:
            self.checkpoints.keep_state_slots()

    def _add_drafts(self, chunks: list[Chunk], budget: int) -> int:
        """Adds a chunk for each sequence with draft tokens; returns how many tokens all of them have.

        Draft tokens leave room in the step for all sequences, and for prompts.
        """
        drafting = [s for s in self.batch.decoding if s.drafting]
        left = budget - len(drafting) - (self._reserved if self.batch.prefilling else 0)
        self.speculation.propose(drafting, left, (budget - self._reserved) // 2)
        return sum(self._add_draft(sequence, chunks) for sequence in drafting if sequence.row >= 0)

    def _add_draft(self, sequence: Sequence, chunks: list[Chunk]) -> int:
        """Adds a chunk for a sequence's newest token, its draft tokens and alternatives; returns how many tokens."""
        start = int(self.tables.computed[sequence.row])
        count = self.speculation.fit(sequence)
        wanted = count + len(sequence.alternatives)
        length = len(sequence.ids) - start - 1 + wanted
        if not count or not self._grow(sequence, start + length):
            return 0
        chunks.append(Chunk(sequence, start, length, wanted, self.checkpoints.slots(sequence), 1, 1))
        return length

    def _add_prompts(self, chunks: list[Chunk], budget: int) -> None:
        """Adds chunks of prompts, which are so much work at most (ChunkSizes).

        A prompt waits for another one that computes in this step what both begin with, and those of some hybrids for
        the next step, if this one has as many as it may have.
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
        """Returns prompts in the order in which they are computed, each with the work to keep for those behind.

        The oldest has at least half of a step; those that fit into the other half need not wait for all of it. Work is
        time, in units of the time that a token takes without context.

        Args:
            budget: The tokens that the step has for prompts.
        """
        prompts = list(self.batch.prefilling)
        if len(prompts) < 2 or not self._split:
            return [(sequence, 0) for sequence in prompts]
        left = {s: len(s.ids) - int(self.tables.computed[s.row]) for s in prompts[1:]}
        rest = sorted(left, key=lambda s: left[s] > budget // 2)
        work = self.chunk_sizes.work
        short = (work(int(self.tables.computed[s.row]), n) for s, n in left.items() if n <= budget // 2)
        kept = min(budget // 2, sum(short))
        return [(prompts[0], kept), *((sequence, 0) for sequence in rest)]

    def _add_prompt(self, sequence: Sequence, budget: int, chunks: list[Chunk]) -> int:
        """Adds a chunk of a sequence's prompt; returns how much of the budget it takes, as work (ChunkSizes).

        A prompt alone has whole steps. Beside others its parts shrink, or their pauses would grow with its length.
        """
        batch = self.batch
        start, known = int(self.tables.computed[sequence.row]), len(sequence.ids)
        count, images = known - start, sequence.params.images
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
        """Allocates blocks for so many tokens. False: the sequence was preempted itself, or has failed."""
        need = self.blocks.blocks(tokens) - len(sequence.blocks)
        if need <= 0:
            return True
        if not self.make_room(sequence, need):
            return False
        self.batch.grow(sequence, need)
        self._charge(sequence)
        return True

    def timed(self, step: Step, seconds: float) -> None:
        """Records how long a step with chunks took."""
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
        """Starts waiting sequences as far as slots, rows, blocks and the next step allow."""
        if self.waiting:
            self._policy.admit()

    # --- admission_policy.Runner

    @property
    def running(self) -> list[Sequence]:
        """Implements Runner.running."""
        return self.batch.running

    @property
    def full(self) -> bool:
        """Implements Runner.full."""
        return self.batch.slots_used >= self.waiting.slots

    @property
    def total_blocks(self) -> int:
        """Implements Runner.total_blocks."""
        return self.blocks.total

    def blocks_of(self, client: ClientQueue) -> int:
        """Implements Runner.blocks_of."""
        return self.batch.blocks_of(client)

    def blocks_needed(self, sequence: Sequence) -> int:
        """Implements Runner.blocks_needed."""
        return self.blocks.blocks(len(sequence.ids))

    def prompts_full(self, client: ClientQueue) -> bool:
        """Implements Runner.prompts_full. A long prompt leaves half of each step to short ones, which fit into it.

        So short prompts wait for one another alone.
        """
        if not any(s.client is client for s in self.batch.prefilling):
            return False
        left, half = self._prompts_left(), self._half()
        short = [tokens for tokens in left if tokens <= half]
        return sum(left) >= self._budget() and (not self._split or len(short) == len(left) or sum(short) >= half)

    def must_wait(self, sequence: Sequence) -> bool:
        """Returns whether a sequence has to wait: for a feature, for the masks of other grammars, for its trial as a
        suspect, or for the long prompt of its client.
        """
        if self.prefixes.must_wait(sequence):
            return True
        if sequence.constrained and must_wait_for_masks(sequence, self.running):
            return True
        if not self.suspects.may_start(sequence, self.running):
            return True
        mine = any(s.client is sequence.client for s in self.batch.prefilling)
        return mine and len(sequence.ids) > self._half() and sum(self._prompts_left()) >= self._budget()

    def reserve(self, sequence: Sequence, leaving: Sequence | None) -> bool:
        """Implements Runner.reserve: the sequence holds its cached blocks and its adapter then."""
        running, used = self.running, self.batch.rows_used
        if running and used - (leaving is not None) + sequence.rows > self._max_rows:
            return False
        found = self.prefixes.match_prefix(sequence, 0)
        promised = sum(self.blocks.blocks(len(s.ids)) - len(s.blocks) for s in self.batch.prefilling)
        need = self.blocks_needed(sequence) - len(found) + promised + used // 4  # a fourth can still grow by a block
        if (running and need > self.blocks.available) or not self.batch.adapters.acquire(sequence.params.adapter):
            self.blocks.release([block for block, _ in found])
            return False
        sequence.blocks = [block for block, _ in found]
        sequence.chain = [serial for _, serial in found]
        return True

    def start(self, sequence: Sequence) -> None:
        """Implements Runner.start; a sequence whose grammar cannot be matched fails."""
        try:
            if sequence.constrained and sequence.matcher is None:
                sequence.matcher = self._new_matcher(sequence)
        except BadRequest as error:
            self.blocks.release(sequence.blocks)
            self.batch.adapters.release(sequence.params.adapter)
            sequence.blocks, sequence.chain, sequence.state = [], [], "over"
            self.fail(sequence.request, error)
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
        """Takes a running sequence out of the batch and queues it again, as Runner.preempt says.

        Args:
            sequence: The sequence.
            first: Whether it is queued before all others of its client.
        """
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
        """Moves a sequence whose prompt is computed to the decoding ones."""
        self.batch.decode(sequence)
        sequence.has_output, sequence.output_since = True, self.steps
        self.suspects.discard(sequence)

    def finish(self, sequence: Sequence) -> None:
        """Ends a sequence that has all its tokens, between two steps."""
        self.prefixes.checkpoint_completion(sequence)
        self.end(sequence)

    def end(self, sequence: Sequence) -> None:
        """Ends a sequence, or its beam search, that is over or not wanted any more, whatever its state."""
        self.suspects.discard(sequence)
        if sequence.state == "waiting":
            self.waiting.remove(sequence.request, sequence.index)
            sequence.state = "over"
        elif sequence.row >= 0 or sequence in self.batch.searching:
            self._stop(sequence)

    def discard(self, sequences: list[Sequence]) -> None:
        """Ends sequences whose results are not wanted any more."""
        for sequence in sequences:
            self.end(sequence)
            sequence.new_ids, sequence.new_details = [], []

    def fail(self, request: GenerationRequest, error: RequestError) -> None:
        """Ends a request with all its sequences, with an error, unless it has ended already."""
        if self._report_failure(request, error):
            request.unfinished.clear()
            self.waiting.dequeued(request)
            self.discard(request.sequences)

    def leave(self, sequence: Sequence) -> None:
        """Removes a running sequence, alone of its beam search."""
        if sequence.row >= 0:
            self._charge(sequence)
            self.prefixes.register(sequence, int(self.tables.computed[sequence.row]))
            self.batch.remove(sequence)
        sequence.state = "over"
        self.speculation.leave(sequence)

    def make_room(self, sequence: Sequence, blocks: int) -> bool:
        """Preempts sequences until so many blocks are free. False: this one was preempted itself, or has failed.

        The oldest of the least urgent stays longest.
        """
        while self.prefixes.lacks(blocks):
            running = sorted(self.running, key=lambda s: s.arrival)
            victim = over_budget(running, self.waiting.clients.values(), self.blocks_of)
            mine = set(victim.members)
            if mine.issuperset(running):
                self.fail(sequence.request, EngineFailure("The engine ran out of KV cache for this request."))
                return False
            self.preempt(victim, first=True)
            if sequence in mine:
                return False
        return True

    def recover(self) -> Sequence | None:
        """Queues all running sequences of a failed step again, before all others; returns the one at fault, if known.

        It is queued as well: the caller ends its request.
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
        """Stops a running sequence; returns what would be queued to resume: a beam search begins again."""
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
        """Charges a sequence's client for the tokens generated since the last time."""
        if len(sequence.ids) > sequence.charged:
            self.waiting.charge(sequence.client, len(sequence.ids) - sequence.charged)
            sequence.charged = len(sequence.ids)


FIRST_REACH = 1024
"""The b / d, in tokens, that is assumed before anything is measured."""
NEAR = 512
"""A step whose tokens have a mean context below this many tokens updates b; any other step updates d."""
RATE = 0.1
"""How much of the difference between a measured b or d and the known one the known one changes by."""
STEP_S = 0.25
"""Seconds that a step with more than the least tokens may take: so long may running answers pause."""
MOST = 2
"""A measured b or d counts as at most MOST times the known one, and at least 1 / MOST of it: some steps take longer
because other work has the CPU."""


class ChunkSizes:
    """Chooses how many tokens of a prompt a step computes, by the context that they attend to.

    Each token of a chunk attends to all tokens before it: 256 tokens of the demo model take 11 ms at the beginning of a
    prompt and 500 ms behind 31,000 others. So the time of a step is about b * tokens + d * attended, where attended is
    the sum of the contexts of its tokens. b / d, the context at which attention takes as long as everything else, is
    600 tokens for the demo model and 1,000 for one of 195M parameters; it depends on the network, its attention windows
    and the machine, so it is learned from steps. Work is time in units of b, the time of a token without context.

    The more tokens a step has, the less each takes, and the sooner the prompts of many clients are computed; but
    running answers pause for the whole step. So a step has as many tokens as take `step_s` without context, within
    limits.
    """

    def __init__(self, least: int, block_size: int, most: int = 0, *, step_s: float = STEP_S) -> None:
        """Assumes that b / d is FIRST_REACH tokens.

        Args:
            least: The tokens that any step may compute, however long it takes.
            block_size: The tokens of a KV block.
            most: The tokens that a quick step may compute; 0: no more than `least`.
            step_s: What a step with more than the least tokens may take, in the seconds that it learns from.
        """
        self.least = least
        self._most = max(least, most)
        self._block_size = block_size
        self._step_s = step_s
        self.forget()

    def forget(self) -> None:
        """Forgets what was measured, for example the first steps with a network, which take longer than all others."""
        self.reach = float(FIRST_REACH)
        self._linear = self._attention = 0.0  # b, d; 0: not known
        self.step_tokens = self.least
        """The most tokens of the next step."""

    def work(self, start: int, tokens: int) -> int:
        """Returns the work of so many tokens that have `start` tokens before them."""
        return int(tokens * (1 + start / self.reach))

    def part(self, start: int, left: int, budget: int) -> tuple[int, int]:
        """Returns how many of a prompt's `left` tokens a step with this budget computes, and their work."""
        work = self.work(start, left)
        if work <= budget:
            return left, work
        return min(left, budget, self.tokens(start, budget)), budget  # a block may take more than all of it

    def tokens(self, start: int, work: int) -> int:
        """Returns the most tokens behind `start` others that take about so much work, at least to the end of a block.

        Chunks end where blocks do, so that prompts with a common prefix can share them; but the first fills its step.
        """
        most = max(self._block_size, int(work / (1 + start / self.reach)))
        return most - (start + most) % self._block_size if start else most

    def learn(self, tokens: int, attended: int, seconds: float) -> None:
        """Updates b or d from the time of a step with prompts.

        Small steps are ignored: a part of the time is the same for any size. b and d are updated by different steps,
        each with the known value of the other, so that neither is lost while only the other has steps.

        Args:
            tokens: The tokens of the step.
            attended: The sum of their contexts.
            seconds: The time of the step.
        """
        if 2 * (tokens + attended / self.reach) < self.least or seconds <= 0:
            return
        if not self._linear:
            self._linear = seconds / (tokens + attended / FIRST_REACH)
            self._attention = self._linear / FIRST_REACH
        if attended < NEAR * tokens:
            self._linear = _closer(self._linear, (seconds - self._attention * attended) / tokens)
        else:
            self._attention = _closer(self._attention, (seconds - self._linear * tokens) / attended)
        self.reach = self._linear / self._attention
        self.step_tokens = max(self.least, min(self._most, int(self._step_s / self._linear)))


def _closer(known: float, measured: float) -> float:
    return known + RATE * (min(MOST * known, max(known / MOST, measured)) - known)
