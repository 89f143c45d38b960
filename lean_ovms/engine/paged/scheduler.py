"""The scheduler: a step computes one token of every decoding sequence, then prompts in chunks, up to its token limit.

Blocks are allocated as sequences grow. When none is left, the sequence of lowest priority (then the youngest) is
preempted: its blocks are freed, it waits, and it is computed again later from its tokens and the prefix cache. Only a
sequence that runs alone and still does not fit is dropped.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .adapters import AdapterTable
from .block_manager import BlockManager, Parent
from .chunk_sizes import ChunkSizes
from .model_inputs import Chunk
from .network import Network
from .proposer import Proposer
from .rows import Rows
from .sequence import Request, Sequence, members

PREFILL_TOKENS = 32
"""Tokens of a step reserved for prompts, which decoding sequences could otherwise keep out for ever."""

MOST_AHEAD = 2
"""Decoding sequences up to which grammars guess tokens: a step of few of them reads weights more than it computes.
With the demo model, whose steps take a quarter of a millisecond, 4 streams took up to a third more CPU time with
guesses than without, 1 and 2 up to a third less (2026-11)."""


class Step(NamedTuple):
    """decoding: sequences of one token each, with their rows; changed: not those of the last step, or other blocks."""

    decoding: list[Sequence]
    rows: NDArray[np.int64]
    chunks: list[Chunk]
    changed: bool


class Scheduler:
    """The queue, the running sequences and their blocks."""

    def __init__(
        self,
        network: Network,
        blocks: BlockManager,
        rows: Rows,
        step_tokens: int,
        proposer: Proposer,
        adapters: AdapterTable,
        *,
        split: bool,
        caching: bool,
    ) -> None:
        """split: a prompt may be computed over several steps. caching: prompts begin with the blocks of others."""
        self.blocks = blocks
        self.rows = rows
        self.waiting: deque[Sequence] = deque()
        self.prefilling: list[Sequence] = []
        self.decoding: list[Sequence] = []
        self.preemptions = 0
        self.caching = caching and not network.hybrid
        self._network = network
        self._proposer = proposer
        self._adapters = adapters
        self._step_tokens = step_tokens
        self._split = split
        self.chunk_sizes = ChunkSizes(step_tokens, blocks.block_size)
        self._reserved = min(PREFILL_TOKENS, step_tokens // 4)
        self._max_rows = min(rows.total, max(1, step_tokens - self._reserved))
        self._guided: list[Sequence] = []  # of the decoding, those with a grammar that may be guessed ahead
        self._plain: list[Sequence] = []  # of the decoding, those without guesses
        self._plain_rows = np.zeros(0, np.int64)
        self.changed = True  # the decoding sequences, or their blocks
        self._regroup = True

    @property
    def running(self) -> list[Sequence]:
        return self.prefilling + self.decoding

    # --- one step

    def schedule(self) -> Step | None:
        """The next step, with blocks for all of it; None when nothing can be computed."""
        self._admit()
        self._look_ahead()
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
        """A step with chunks took so long."""
        tokens = len(step.decoding) + sum(chunk.length for chunk in step.chunks)
        attended = sum(chunk.length * chunk.start for chunk in step.chunks)
        self.chunk_sizes.learn(tokens, attended + int(self.rows.computed[step.rows].sum()), seconds)

    def computed(self, sequence: Sequence, tokens: int) -> None:
        """The first tokens of the sequence are in the cache: its full blocks can be found from now on."""
        self.rows.computed[sequence.row] = sequence.request.computed = tokens
        self._register(sequence, tokens)

    def decode(self, sequence: Sequence) -> None:
        """Its prompt is computed."""
        self.prefilling.remove(sequence)
        self.decoding.append(sequence)
        sequence.state = "decode"
        self._regroup = True

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """child goes on from where parent is: shares its full blocks, gets a copy of the one that is being written.

        A row and a block must be free.
        """
        self._adapters.take(child.params.adapter)
        row = self.rows.take([], child.params.adapter)
        self.rows.copy(parent.row, row)
        whole, rest = divmod(int(self.rows.computed[parent.row]), self.blocks.block_size)
        child.row, child.state = row, "decode"
        child.blocks, child.chain = parent.blocks[:whole], list(parent.chain)
        self.blocks.share(child.blocks)
        if rest:
            block = self.blocks.allocate()
            self._network.copy_block(parent.blocks[whole], block)
            child.blocks.append(block)
            self.rows.table[row, whole] = block
        self.rows.held[row] = len(child.blocks)
        self._network.copy_state(parent.row, row)
        self.decoding.append(child)
        self._regroup = True

    def leave(self, sequence: Sequence) -> None:
        """Take a sequence out, running or waiting; its blocks are free and can still be found."""
        if sequence.state == "waiting":
            self.waiting.remove(sequence)
        elif sequence.row >= 0:
            (self.prefilling if sequence.state == "prefill" else self.decoding).remove(sequence)
            self._register(sequence, int(self.rows.computed[sequence.row]))
            self.blocks.release(sequence.blocks)
            self.rows.give(sequence.row)
            self._adapters.give(sequence.params.adapter)
            sequence.blocks, sequence.chain, sequence.row = [], [], -1
            self._regroup = True
        sequence.state = "over"
        sequence.guess, sequence.ahead = [], False
        self._proposer.leave(sequence)

    def make_room(self, sequence: Sequence, blocks: int) -> bool:
        """Preempt sequences until so many blocks are free. False: this one was preempted itself, or dropped."""
        while self.blocks.available < blocks:
            running = self.running
            victim = max(running, key=_order)
            mine = set(members(victim))
            if mine.issuperset(running):
                _drop(self, sequence.request)
                return False
            self._preempt(victim)
            if sequence in mine:
                return False
        return True

    def recompute(self, sequences: list[Sequence]) -> None:
        """Send them back to the queue, to be computed from their first token again."""
        for sequence in sorted(sequences, key=_order, reverse=True):
            if sequence.row >= 0:
                self._preempt(sequence)

    # --- admission

    def _admit(self) -> None:
        """In order of priority. A sequence that does not fit waits, and so do those behind it, or it would starve."""
        if len(self.waiting) > 1:
            first = min(self.waiting, key=_order)
            if first is not self.waiting[0]:
                self.waiting = deque(sorted(self.waiting, key=_order))
        while self.waiting:
            sequence = self.waiting[0]
            places, used = _places(sequence.request), self._used()
            if used and used + places > self._max_rows:
                return
            need = self.blocks.blocks(len(sequence.ids))
            if need > self.blocks.total:
                _drop(self, sequence.request)
                continue
            if not self._start(sequence, need, spare=used // 4):
                return

    def _used(self) -> int:
        """Rows that running requests have, or will have when their prompts are computed."""
        running = {id(s.request): s.request for s in self.running}
        return sum(_places(request) for request in running.values())

    def _start(self, sequence: Sequence, need: int, spare: int) -> bool:
        found = self._known(sequence, 0)
        promised = sum(self.blocks.blocks(len(s.ids)) - len(s.blocks) for s in self.prefilling)
        if need - len(found) + promised + spare > self.blocks.available and (self.prefilling or self.decoding):
            self.blocks.release([block for block, _ in found])
            return False
        if not self._adapters.take(sequence.params.adapter):
            self.blocks.release([block for block, _ in found])
            return False
        self.waiting.popleft()
        sequence.blocks = [block for block, _ in found]
        sequence.chain = [serial for _, serial in found]
        sequence.row, sequence.state = self.rows.take(sequence.blocks, sequence.params.adapter), "prefill"
        self._network.clear_state(sequence.row)
        if sequence.request.cached < 0:
            sequence.request.cached = len(found) * self.blocks.block_size
        self.prefilling.append(sequence)
        return True

    def _known(self, sequence: Sequence, start: int) -> list[tuple[int, int]]:
        """Blocks from the prefix cache from a block's border on; at least one token is always computed.

        Log probabilities of a prompt need all of it computed.
        """
        beginning = self._beginning(sequence)
        if beginning is None or sequence.needs_prompt_logprobs:
            return []
        parent = sequence.chain[-1] if sequence.chain else beginning
        return self.blocks.match(sequence.ids, start, len(sequence.ids) - 1, parent)

    def _beginning(self, sequence: Sequence) -> Parent | None:
        """What its text is found by in the prefix cache; None: it is not in there."""
        asked = sequence.params
        salt = asked.salt if self.caching else asked.group
        if self._network.hybrid or not (self.caching or salt):
            return None
        return salt if asked.adapter is None else (asked.adapter.key, salt)

    # --- growth

    def _look_ahead(self) -> None:
        """Guess what grammars leave no choice about. A sequence with a guess is not one of the plain ones."""
        if self._regroup:
            self._group()
        few = len(self.decoding) <= MOST_AHEAD and not self._network.hybrid
        for sequence in self._guided:
            assert sequence.matcher is not None
            sequence.guess = sequence.matcher.forced() if few and sequence.credit > 0 else []
            if bool(sequence.guess) is not sequence.ahead:
                sequence.ahead, self._regroup = bool(sequence.guess), True

    def _extend(self) -> None:
        """Blocks for the next token of decoding sequences."""
        if self._regroup:
            self._group()
        plain = self._plain
        for place in self.rows.full(self._plain_rows).tolist():
            sequence = plain[place]
            if sequence.row < 0:
                continue  # preempted for one before it
            computed = int(self.rows.computed[sequence.row])
            self._register(sequence, computed)
            self._grow(sequence, computed + 1)

    def _grow(self, sequence: Sequence, tokens: int) -> bool:
        """Blocks for so many tokens. False: it was preempted itself, or dropped."""
        need = self.blocks.blocks(tokens) - len(sequence.blocks)
        if need <= 0:
            return True
        if not self.make_room(sequence, need):
            return False
        blocks = [self.blocks.allocate() for _ in range(need)]
        sequence.blocks += blocks
        self.rows.append(sequence.row, blocks)
        self.changed = True
        return True

    def _chunks(self) -> list[Chunk]:
        """Guesses to be verified, then prompts."""
        chunks: list[Chunk] = []
        groups: set[str] = set()
        budget = self._step_tokens - len(self._plain)
        guessing = [s for s in self.decoding if s.params.lookahead or s.ahead]
        if guessing:
            self._guess(guessing, budget)
        for sequence in guessing:
            if sequence.row >= 0:
                budget -= self._verify(sequence, chunks)
        for sequence, kept in self._prompts(budget):
            if budget <= kept:
                break
            if sequence.row >= 0 and not self._waits(sequence, groups):
                budget -= self._prompt(sequence, budget - kept, chunks)
        return chunks

    def _waits(self, sequence: Sequence, groups: set[str]) -> bool:
        """Whether another text of its group (groups: those that do) computes blocks in this step that it can share."""
        group = sequence.params.group
        if not group or self._beginning(sequence) is None:
            return False
        left = len(sequence.ids) - int(self.rows.computed[sequence.row])
        if group in groups and left > self.blocks.block_size and not sequence.needs_prompt_logprobs:
            return True
        groups.add(group)
        return False

    def _prompts(self, budget: int) -> list[tuple[Sequence, int]]:
        """Prompts in the order in which they are computed, each with the tokens of the step to keep for those behind.

        The oldest has at least half of a step; those that fit into the other half need not wait for all of it. What is
        kept is work, as in ChunkSizes.
        """
        prompts = list(self.prefilling)
        if len(prompts) < 2 or not self._split:
            return [(sequence, 0) for sequence in prompts]
        left = {s: len(s.ids) - int(self.rows.computed[s.row]) for s in prompts[1:]}
        rest = sorted(left, key=lambda s: left[s] > budget // 2)
        work = self.chunk_sizes.work
        short = (work(int(self.rows.computed[s.row]), n) for s, n in left.items() if n <= budget // 2)
        kept = min(budget // 2, sum(short))
        return [(prompts[0], kept), *((sequence, 0) for sequence in rest)]

    def _guess(self, sequences: list[Sequence], budget: int) -> None:
        """Set their guesses, which leave room in the step for all of them, and for prompts."""
        left = budget - len(sequences) - (self._reserved if self.prefilling else 0)
        wanted: list[tuple[Sequence, int]] = []
        for sequence in sequences:
            if sequence.ahead:
                most = min(self._room(sequence), left, (budget - self._reserved) // 2)
                sequence.guess = sequence.guess[: max(0, most)]
                left -= len(sequence.guess)
            elif sequence.row >= 0:
                room = max(0, min(self._room(sequence), left, sequence.params.lookahead))
                wanted.append((sequence, room))
                left -= room
        self._proposer.propose(wanted)

    def _room(self, sequence: Sequence) -> int:
        """How long its guess may be. Nobody is preempted for a guess, and a state cannot go back to before it."""
        if self._network.hybrid:
            return 0
        known = len(sequence.ids)
        free = (len(sequence.blocks) + self.blocks.available) * self.blocks.block_size - known
        return min(sequence.limit - known - 1, free)

    def _verify(self, sequence: Sequence, chunks: list[Chunk]) -> int:
        """Compute its newest token and its guess; the number of tokens."""
        known = len(sequence.ids)
        sequence.guess = sequence.guess[: max(0, self._room(sequence))]  # others have taken blocks meanwhile
        count = 1 + len(sequence.guess)
        if not self._grow(sequence, known + len(sequence.guess)):
            return 0
        chunks.append(Chunk(sequence, known - 1, count, count))
        return count

    def _prompt(self, sequence: Sequence, budget: int, chunks: list[Chunk]) -> int:
        """Compute a part of its prompt; how much of the budget it takes, as work (ChunkSizes).

        A prompt alone has whole steps. Beside others its parts shrink, or their pauses would grow with its length.
        """
        start, known = int(self.rows.computed[sequence.row]), len(sequence.ids)
        # Nothing of a block is its own, nor does it hold one from a step that failed.
        if start == self.blocks.block_size * len(sequence.chain) and len(sequence.blocks) == len(sequence.chain):
            start = self._catch_up(sequence, start)
        count = taken = known - start
        if self._split and not self.decoding and len(self.prefilling) == 1:
            count = taken = min(count, budget)
        elif self._split:
            count, taken = self.chunk_sizes.part(start, count, budget)
        if not self._grow(sequence, start + count):
            return 0
        wanted = count if sequence.needs_prompt_logprobs else int(start + count == known)
        chunks.append(Chunk(sequence, start, count, wanted))
        return taken

    def _catch_up(self, sequence: Sequence, start: int) -> int:
        """Share blocks that another sequence with the same prompt has computed meanwhile."""
        found = self._known(sequence, start)
        if not found:
            return start
        blocks = [block for block, _ in found]
        sequence.blocks += blocks
        sequence.chain += [serial for _, serial in found]
        self.rows.append(sequence.row, blocks)
        start += len(found) * self.blocks.block_size
        self.rows.computed[sequence.row] = start
        if not sequence.preempted:
            sequence.request.cached += len(found) * self.blocks.block_size
        return start

    # --- bookkeeping

    def _group(self) -> None:
        self._plain = [s for s in self.decoding if not (s.params.lookahead or s.ahead)]
        self._guided = [s for s in self.decoding if s.matcher is not None and s.request.search is None]
        self._plain_rows = np.array([s.row for s in self._plain], np.int64)
        self._regroup, self.changed = False, True

    def _register(self, sequence: Sequence, tokens: int) -> None:
        beginning = self._beginning(sequence)
        if beginning is not None:
            self.blocks.register_all(sequence.blocks, sequence.ids, tokens, sequence.chain, beginning)

    def _preempt(self, victim: Sequence) -> None:
        """Send it back to the queue; a beam search begins again."""
        self.preemptions += 1
        request = victim.request
        for sequence in list(members(victim)):
            self.leave(sequence)
        if victim.needs_prompt_logprobs:
            request.prompt_details = []
        if request.search is not None:
            victim = request.search.begin_again(request)
        victim.state, victim.preempted = "waiting", True
        self.waiting.appendleft(victim)


def _places(request: Request) -> int:
    """Sequences that a request computes at once."""
    return max(request.params.beams, request.params.n)


def _drop(scheduler: Scheduler, request: Request) -> None:
    for sequence in list(request.sequences):
        scheduler.leave(sequence)
    request.end("lost")


def _order(sequence: Sequence) -> tuple[int, int]:
    return sequence.order
