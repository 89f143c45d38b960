"""The scheduler: a step computes one token of every decoding sequence, then prompts in chunks, up to its token limit.

Which waiting sequence starts next is AdmissionPolicy's: fair between clients, by priority. Blocks are allocated as
sequences grow. When none is left, a sequence is preempted: its blocks are freed, it waits, and it is computed again
later from its tokens and the prefix cache. Only a sequence that runs alone and still does not fit is dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...errors import BadRequest, EngineFailure, RequestError
from ..generation import preemption
from ..generation.admission_policy import AdmissionPolicy
from ..generation.fair_queue import FairQueue
from ..generation.grammar_load import GrammarLoad
from ..generation.sequence import ClientQueue, GenerationRequest
from ..generation.suspects import Suspects
from .block_manager import BlockManager
from .block_tables import BlockTables
from .chunk_sizes import ChunkSizes
from .drafting.proposer import Proposer
from .hooks import StepHook
from .model_inputs import Chunk
from .network import Network
from .parts import AdapterProvider, MatcherFactory
from .running import RunningSequences
from .sequence import Sequence
from .state_cache import StateCache

PREFILL_TOKENS = 32
"""Tokens of a step reserved for prompts, which decoding sequences could otherwise keep out for ever."""
IMAGE_PARTS = 4
"""How much less of a step the tokens of images take beside decoding sequences: these pause less, and the first token
that has waited for the encoder waits a few steps more."""


class Step(NamedTuple):
    """decoding: sequences of one token each, with their rows; changed: not those of the last step, or other blocks."""

    decoding: list[Sequence]
    rows: NDArray[np.int64]
    chunks: list[Chunk]
    changed: bool


class Scheduler(RunningSequences):
    """The running sequences with the queue of waiting ones. steps: since the start, counted by the engine."""

    def __init__(
        self,
        network: Network,
        blocks: BlockManager,
        tables: BlockTables,
        step_tokens: int,
        proposer: Proposer | None,
        adapters: AdapterProvider,
        states: StateCache,
        *,
        slots: int,
        split: bool,
        caching: bool,
        interval: int,
        across: bool,
        new_matcher: MatcherFactory,
        fail: Callable[[GenerationRequest, RequestError], None],
        hooks: list[StepHook],
    ) -> None:
        """slots: sequences that run at once. split: a prompt may be computed over several steps. caching: prompts begin
        with the blocks of others. interval: of RunningSequences. across: as in FairQueue. fail: ends a request. hooks:
        of features.
        """
        reserved = min(PREFILL_TOKENS, step_tokens // 4)
        most = min(tables.total, max(1, step_tokens - reserved))
        waiting: FairQueue[Sequence] = FairQueue(min(slots, most), across=across)
        super().__init__(
            network,
            blocks,
            tables,
            proposer,
            adapters,
            states,
            waiting,
            caching=caching,
            interval=interval,
            hooks=hooks,
        )
        self.steps = self.preemptions = 0
        self.suspects: Suspects[Sequence] = Suspects()
        self.chunk_sizes = ChunkSizes(step_tokens, blocks.block_size)
        self._step_tokens = step_tokens
        self._reserved = reserved
        self._max_rows = most
        self._split = split
        self._new_matcher = new_matcher
        self._fail = fail
        self._policy = AdmissionPolicy(waiting, self)
        self._grammar_load = GrammarLoad(lambda: waiting.clock())
        self._searching: list[Sequence] = []  # the sequence that began each running beam search

    def add(self, request: GenerationRequest) -> None:
        """Queues the sequences of a request."""
        self.waiting.add(request)
        if self.states.total:
            for sequence in request.sequences:
                for other in self.prefilling:
                    self._leads(other, sequence)

    def admit(self) -> None:
        """Starts waiting sequences as far as slots, rows, blocks and the next step allow."""
        if self.waiting:
            self._policy.admit()

    # --- admission_policy.Runner

    @property
    def in_use(self) -> int:
        """The number of slots that are taken: a beam search has one."""
        return len(self.decoding) + len(self.prefilling) - sum(len(s.members) - 1 for s in self._searching)

    @property
    def full(self) -> bool:
        return self.in_use >= self.waiting.slots

    @property
    def total_blocks(self) -> int:
        return self.blocks.total

    def blocks_needed(self, sequence: Sequence) -> int:
        return self.blocks.blocks(len(sequence.ids))

    def prompts_full(self, client: ClientQueue) -> bool:
        """Implements Runner.prompts_full. A long prompt leaves half of each step to short ones, which fit into it.

        So short prompts wait for one another alone.
        """
        if not any(s.client is client for s in self.prefilling):
            return False
        left, half = self._prompts_left(), self._half()
        short = [tokens for tokens in left if tokens <= half]
        return sum(left) >= self._budget() and (not self._split or len(short) == len(left) or sum(short) >= half)

    def must_wait(self, sequence: Sequence) -> bool:
        """Returns whether a sequence has to wait: for a feature, for the masks of other grammars, for its trial
        as a suspect, or for the long prompt of its client.
        """
        if self.is_held(sequence) or (sequence.constrained and self._grammar_load.must_wait(sequence, self.running)):
            return True
        if not self.suspects.may_start(sequence, self.running):
            return True
        mine = any(s.client is sequence.client for s in self.prefilling)
        return mine and len(sequence.ids) > self._half() and sum(self._prompts_left()) >= self._budget()

    def reserve(self, sequence: Sequence, leaving: Sequence | None) -> bool:
        running, used = self.running, self.in_use + sum(s.rows - 1 for s in self._searching)
        if running and used - (leaving is not None) + sequence.rows > self._max_rows:
            return False
        found = self._known(sequence, 0)
        promised = sum(self.blocks.blocks(len(s.ids)) - len(s.blocks) for s in self.prefilling)
        need = self.blocks_needed(sequence) - len(found) + promised + used // 4  # a fourth can still grow by a block
        if (running and need > self.blocks.available) or not self._adapters.acquire(sequence.params.adapter):
            self.blocks.release([block for block, _ in found])
            return False
        sequence.blocks = [block for block, _ in found]
        sequence.chain = [serial for _, serial in found]
        return True

    def start(self, sequence: Sequence) -> None:
        try:
            if sequence.constrained and sequence.matcher is None:
                sequence.matcher = self._new_matcher(sequence)
        except BadRequest as error:
            self.blocks.release(sequence.blocks)
            self._adapters.release(sequence.params.adapter)
            sequence.blocks, sequence.chain, sequence.state = [], [], "over"
            self._fail(sequence.request, error)
            return
        self.waiting.started(sequence)
        found = len(sequence.blocks) * self.blocks.block_size
        sequence.row, sequence.state = self.tables.allocate(sequence.blocks, sequence.params), "prefill"
        if self.states.total:
            self._begin_state(sequence, self.waiting)
        self.prefilling.append(sequence)
        if sequence.search is not None:
            self._searching.append(sequence)
        if not sequence.started:
            sequence.started, sequence.started_at = True, self.waiting.clock()
            sequence.cached, sequence.charged = found, len(sequence.ids)
            self.waiting.charge(sequence.client, len(sequence.ids) - found)

    def preempt(self, sequence: Sequence, *, first: bool = False) -> None:
        self._checkpoint_computed(sequence)
        self._requeue(sequence, first=first)
        self.preemptions += 1

    def _prompts_left(self) -> list[int]:
        return [len(s.ids) - int(self.tables.computed[s.row]) for s in self.prefilling]

    def _budget(self) -> int:
        return self._step_tokens - len(self.decoding)

    def _half(self) -> int:
        return max(1, self._budget() // 2)

    # --- one step

    def schedule(self) -> Step | None:
        """Returns the next step, with blocks for all of it; None when nothing can be computed."""
        self._speculate()
        self._extend()
        chunks = self._chunks()
        if self._regroup:
            self._group()
            chunks = [chunk for chunk in chunks if chunk.sequence.row >= 0]
        if not self._plain and not chunks:
            return None
        changed, self.changed = self.changed, False
        return Step(self._plain, self._plain_rows, chunks, changed)

    def timed(self, step: Step, seconds: float) -> None:
        """Records how long a step with chunks took."""
        tokens = len(step.decoding) + sum(chunk.length for chunk in step.chunks)
        attended = sum(chunk.length * chunk.start for chunk in step.chunks)
        self.chunk_sizes.learn(tokens, attended + int(self.tables.computed[step.rows].sum()), seconds)

    def decode(self, sequence: Sequence) -> None:
        """Moves a sequence whose prompt is computed to the decoding ones."""
        self.prefilling.remove(sequence)
        self.decoding.append(sequence)
        sequence.state, sequence.has_output, sequence.output_since = "decode", True, self.steps
        self.suspects.discard(sequence)
        self._regroup = True

    def finish(self, sequence: Sequence) -> None:
        """Ends a sequence that has all its tokens, between two steps."""
        self._checkpoint_completion(sequence)
        self.end(sequence)

    def end(self, sequence: Sequence) -> None:
        """Ends a sequence, or its beam search, that is over or not wanted any more, whatever its state."""
        self.suspects.discard(sequence)
        if sequence.state == "waiting":
            self.waiting.remove(sequence.request, sequence.index)
            sequence.state = "over"
        elif sequence.row >= 0 or sequence in self._searching:
            self._stop(sequence)

    def make_room(self, sequence: Sequence, blocks: int) -> bool:
        """Preempts sequences until so many blocks are free. False: this one was preempted itself, or has failed.

        The oldest of the least urgent stays longest.
        """
        while self.lacks(blocks):
            running = sorted(self.running, key=lambda s: s.arrival)
            clients = self.waiting.clients.values()
            victim = preemption.over_budget(
                running, clients, self.blocks_of, lambda s: (-s.request.priority, -s.arrival)
            )
            mine = set(victim.members)
            if mine.issuperset(running):
                self._fail(sequence.request, EngineFailure("The engine ran out of KV cache for this request."))
                return False
            self.preempt(victim, first=True)
            if sequence in mine:
                return False
        return True

    def recover(self) -> Sequence | None:
        """Queues all running sequences of a failed step again, before all others; returns the one at fault, if known.

        It is queued as well: the caller ends its request.
        """
        running = {s.arrival: s for s in [*self.running, *self._searching]}
        interrupted = sorted(running.values(), key=lambda s: s.arrival)
        at_fault = self.suspects.blame(interrupted)
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
            self._searching.remove(sequence)
        if sequence.needs_prompt_logprobs:
            sequence.prompt_details = []
        sequence.preempted, sequence.has_output = True, False
        return sequence

    # --- growth

    def _extend(self) -> None:
        """Allocates blocks for the next token of decoding sequences, and slots for their states."""
        if self._regroup:
            self._group()
        plain = self._plain
        for place in self.tables.full(self._plain_rows).tolist():
            sequence = plain[place]
            if sequence.row < 0:
                continue  # preempted for one before it
            computed = int(self.tables.computed[sequence.row])
            self._register(sequence, computed)
            self._checkpoint_completion(sequence)
            self._grow(sequence, computed + 1)
        self._move(self._plain)

    def _grow(self, sequence: Sequence, tokens: int) -> bool:
        """Allocates blocks for so many tokens. False: the sequence was preempted itself, or has failed."""
        need = self.blocks.blocks(tokens) - len(sequence.blocks)
        if need <= 0:
            return True
        if not self.make_room(sequence, need):
            return False
        blocks = [self.blocks.allocate() for _ in range(need)]
        sequence.blocks += blocks
        self.tables.append(sequence.row, blocks)
        self._charge(sequence)
        self.changed = True
        return True

    def _chunks(self) -> list[Chunk]:
        """Returns the chunks of a step: draft tokens to be verified, then parts of prompts."""
        chunks: list[Chunk] = []
        budget = self._step_tokens - len(self._plain)
        drafting = [s for s in self.decoding if s.drafting]
        if drafting or self.proposer is not None:
            self._draft(drafting, budget)
        for sequence in drafting:
            if sequence.row >= 0:
                budget -= self._verify(sequence, chunks)
        prompts = self._prompts(budget)
        leaders = self._leaders([sequence for sequence, _ in prompts])
        computing: set[Sequence] = set()
        for sequence, kept in prompts:
            if budget <= kept:
                break
            if sequence.row >= 0 and leaders.get(sequence) not in computing:
                taken = self._prompt(sequence, budget - kept, chunks)
                if taken:
                    computing.add(sequence)
                budget -= taken
        return chunks

    def _prompts(self, budget: int) -> list[tuple[Sequence, int]]:
        """Returns prompts in the order in which they are computed, each with the work to keep for those behind.

        The oldest has at least half of a step; those that fit into the other half need not wait for all of it. What is
        kept is work, as in ChunkSizes.
        """
        prompts = list(self.prefilling)
        if len(prompts) < 2 or not self._split:
            return [(sequence, 0) for sequence in prompts]
        left = {s: len(s.ids) - int(self.tables.computed[s.row]) for s in prompts[1:]}
        rest = sorted(left, key=lambda s: left[s] > budget // 2)
        work = self.chunk_sizes.work
        short = (work(int(self.tables.computed[s.row]), n) for s, n in left.items() if n <= budget // 2)
        kept = min(budget // 2, sum(short))
        return [(prompts[0], kept), *((sequence, 0) for sequence in rest)]

    def _draft(self, sequences: list[Sequence], budget: int) -> None:
        """Sets draft tokens, as many as leave room in the step for all sequences, and for prompts."""
        left = min(budget - len(sequences) - (self._reserved if self.prefilling else 0), self._spare_states())
        longest = self.draft_budget.most(len(self.decoding))
        wanted: list[tuple[Sequence, int]] = []
        for sequence in sequences:
            if sequence.draft_tokens:
                most = min(self._room(sequence), left, (budget - self._reserved) // 2)
                sequence.draft_tokens = sequence.draft_tokens[: max(0, most)]
                left -= len(sequence.draft_tokens)
            elif sequence.row >= 0:
                room = max(0, min(self._room(sequence), left, sequence.params.lookahead, longest))
                wanted.append((sequence, room))
                left -= room
        if self.proposer is not None:
            self.proposer.propose(wanted)

    def _verify(self, sequence: Sequence, chunks: list[Chunk]) -> int:
        """Adds a chunk for a sequence's newest token, its draft tokens and alternatives; returns how many tokens."""
        start, room = int(self.tables.computed[sequence.row]), max(0, self._room(sequence))
        del sequence.draft_tokens[room:]  # others have taken blocks meanwhile
        del sequence.alternatives[min(len(sequence.draft_tokens), room - len(sequence.draft_tokens)) :]
        known, count = len(sequence.ids) - start, 1 + len(sequence.draft_tokens)
        if self.states.total:
            count = self._write_states(sequence, count)
            del sequence.draft_tokens[max(0, count - 1) :]
        wanted = count + len(sequence.alternatives)
        length = known - 1 + wanted
        if not count or not self._grow(sequence, start + length):
            return 0
        chunks.append(Chunk(sequence, start, length, wanted, self._slots(sequence), 1, 1))
        return length

    def _prompt(self, sequence: Sequence, budget: int, chunks: list[Chunk]) -> int:
        """Adds a chunk of a sequence's prompt; returns how much of the budget it takes, as work (ChunkSizes).

        A prompt alone has whole steps. Beside others its parts shrink, or their pauses would grow with its length.
        """
        start, known = int(self.tables.computed[sequence.row]), len(sequence.ids)
        count, images = known - start, sequence.params.images
        taken = count
        if self._split and not self.decoding and len(self.prefilling) == 1:
            count = taken = min(count, budget)
        elif self._split:
            if images is not None and self.decoding and any(images.rows(start, min(count, budget))):
                budget = min(budget, max(1, self._step_tokens // IMAGE_PARTS))
            count, taken = self.chunk_sizes.part(start, count, budget)
        if images is not None:
            count = images.chunk(start, count)
        ends = self._write_prompt_states(sequence, start, start + count)
        if not ends or not self._grow(sequence, ends[-1]):
            return 0
        count = ends[-1] - start
        wanted = count if sequence.needs_prompt_logprobs else int(ends[-1] == known)
        chunks.append(self._prompt_chunk(sequence, start, ends, wanted))
        return taken
