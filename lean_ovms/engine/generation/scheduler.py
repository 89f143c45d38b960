"""The sequences that live: those that wait, those that run, and what they may take of the KV cache.

It guards the pipeline (contract.Pipeline): nothing is added that may not fit, nobody grows beyond the cache, whoever is
lost or harmed by another's failure is taken up again. It knows no sockets; what the front end is to hear goes to `out`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from ...errors import BadRequest, EngineFailure, RequestError
from ...types import EngineStats
from ..protocol import Cached, Counted, Failed, Record
from . import outputs as reading
from . import recovery, silence
from .kv_budget import KvBudget
from .pipeline import ASSISTANT_TOKENS, Pipeline
from .prefix_tracker import PrefixTracker
from .sequence import Request, Sequence

CHECK_EVERY = 16
"""Steps of silence after which a sequence's status is looked up (1 us); a long prompt is silent for many steps."""
PREFILL_TOKENS = 32
"""Of a step's tokens, so many are kept for prompts: running sequences come first and could take all for ever."""


class Scheduler:
    """The queue and the running sequences of one pipeline."""

    def __init__(self, pipeline: Pipeline, max_running: int, clock: Callable[[], float] = time.monotonic) -> None:
        info = pipeline.info
        self.pipeline = pipeline
        self.accounts = KvBudget(info.kv_blocks, info.block_size)
        self.out: list[Record] = []
        self.requests: dict[int, Request] = {}
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.suspects: set[Sequence] = set()
        self.steps = self.preemptions = self.recoveries = 0
        self.drafts = self.accepted = 0  # of an assistant
        self._assisted = bool(info.speculative)
        self.clearing = False  # a step is due to free what was cancelled
        self._max_running = min(max_running, _decoding_at_once(pipeline))
        self._prefixes = PrefixTracker(info.block_size, info.kv_blocks) if info.prefix_caching else None
        self._tells_cached = info.reports_cached_tokens
        self.compiling = False  # a thread compiles a grammar: nobody with a grammar may start
        self._empty_outputs: list[Sequence] = []  # had an empty output in this step
        self._diverged: list[Sequence] = []
        self._admitted = 0
        self.admissions: deque[float] = deque(maxlen=32)  # when the last ones began
        self.stuck_since: float | None = None
        self.clock = clock

    @property
    def idle(self) -> bool:
        """Nothing to step for."""
        return not (self.running or self.waiting or self.clearing)

    def stats(self) -> EngineStats:
        """The accounts as they are now."""
        return EngineStats(
            running=len(self.running),
            queued=len(self.waiting),
            kv_blocks_used=self.accounts.used,
            kv_blocks_total=self.accounts.total,
            steps=self.steps,
            preemptions=self.preemptions,
            recoveries=self.recoveries,
            drafts=self.drafts,
            accepted=self.accepted,
        )

    # --- requests come and go

    def put(self, request: Request) -> None:
        """Queue a request that fits the pipeline."""
        self.requests[request.id] = request
        self.waiting.extend(request.sequences)

    def queued_requests(self) -> int:
        """Requests of which no sequence has started."""
        started = {s.request.id for s in self.running}
        return len({s.request.id for s in self.waiting if not s.generated} - started)

    def pace_s(self) -> float:
        """Seconds between two beginnings, of late; this moment counts as one."""
        times = self.admissions
        return (self.clock() - times[0]) / len(times) if times else 0.0

    def cancel(self, request_id: int, index: int | None) -> None:
        """Stop a request or one answer of it; what is not known is over already."""
        request = self.requests.get(request_id)
        if request is None:
            return
        gone = set(request.wanted) if index is None else request.wanted & {index}
        request.wanted -= gone
        if not request.wanted:
            del self.requests[request_id]
        for sequence in request.sequences:
            if not request.wanted or (sequence.index in gone and not sequence.beams):
                self.drop(sequence)

    def drop(self, sequence: Sequence) -> None:
        """Take a sequence out of the queue or out of the pipeline, whatever it is doing.

        One whose prompt is half computed stays until its first output. GenAI takes the block in which a chunk of a
        prompt ends for a whole one when the request is cancelled there, and every later prompt that begins alike gets
        its wrong content from the prefix cache (2026.4.1; log probabilities off by 0.05 and more, other answers).
        """
        if self._half_computed(sequence):
            sequence.cancel_pending = True
        else:
            self._take_out(sequence)

    def _half_computed(self, sequence: Sequence) -> bool:
        """Some of its prompt may be in the prefix cache, and not all.

        Prompts are computed in the order in which they were added, each with what the one before it has left of a step:
        behind one that is not done, none is begun.
        """
        begun = sequence.handle is not None and self.steps > sequence.heard
        if self._prefixes is None or not begun or sequence.has_output:
            return False
        return sequence is next(s for s in self.running if not s.has_output)

    def _take_out(self, sequence: Sequence) -> None:
        if sequence.handle is not None:
            sequence.handle.cancel()
            self.clearing = True
            self.running.remove(sequence)
            self.release(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        self.suspects.discard(sequence)

    def fail(self, request: Request, error: RequestError) -> None:
        """End a request with an error, all its sequences."""
        if self.requests.get(request.id) is request:
            self.out.append(Failed(request.id, error.to_wire()))
            self.cancel(request.id, None)

    def fail_all(self, error: RequestError) -> None:
        """End every request, running or waiting."""
        self.out += [Failed(request_id, error.to_wire()) for request_id in self.requests]
        self.requests.clear()
        self.waiting.clear()
        self.running.clear()

    # --- admission

    def admit(self) -> None:
        """Start those who wait, in order, as far as sequences and blocks allow.

        Who waits for another's prompt or for a clean trial lets others pass; who waits for blocks does not, or a long
        prompt would starve behind short ones. Images are encoded when their request is added, with everybody waiting:
        one such request for each step, so that those who run get a token in between.
        """
        passed: list[Sequence] = []
        looked = False
        while self.waiting and len(self.running) < self._max_running and self._fits(self.waiting[0]):
            sequence = self.waiting.popleft()
            looks = sequence.request.scene is not None and bool(sequence.request.scene.images)
            if self._held(sequence) or (looks and looked):
                passed.append(sequence)
                continue
            looked = looked or looks
            self._start(sequence)
        self.waiting.extendleft(reversed(passed))

    def _fits(self, sequence: Sequence) -> bool:
        if not self.running:
            return True
        if sequence.echo:
            # GenAI takes other tokens' log probabilities for the prompt's if anybody is before it in the batch;
            # whoever comes after does no harm. Nobody passes meanwhile, or it would wait for ever.
            return False
        # Room for a fourth of the others to grow by a block, or the newcomer would be the next to be preempted.
        spare = len(self.running) // 4
        need = sequence.reserve or self.accounts.blocks(sequence.length + sequence.headroom)
        return self.accounts.used + need + spare <= self.accounts.total

    def _held(self, sequence: Sequence) -> bool:
        if self.compiling and sequence.constrained:
            return True
        if self.suspects and not self._may_be_tried(sequence):
            return True
        return self._prefixes is not None and self._prefixes.must_wait(sequence)

    def _may_be_tried(self, sequence: Sequence) -> bool:
        """While suspects are tried, one at a time among the proven: the innocent may come back, newcomers wait."""
        if any(s in self.suspects for s in self.running):
            return False
        if sequence in self.suspects:
            return all(s.has_output for s in self.running)
        return sequence.retries > 0

    def _start(self, sequence: Sequence) -> None:
        try:
            sequence.handle = self.pipeline.add(sequence.work())
        except BadRequest as error:
            self.fail(sequence.request, error)
            return
        first = not sequence.order and not sequence.index
        self._admitted += 1
        self.admissions.append(self.clock())
        sequence.order, sequence.heard, sequence.has_output = self._admitted, self.steps, False
        need = sequence.reserve or self.accounts.blocks(sequence.length + sequence.headroom)
        sequence.blocks = need
        sequence.capacity = need * self.accounts.block_size
        if self._prefixes is not None:
            if first and self._tells_cached:
                self.out.append(Cached(sequence.request.id, self._prefixes.cached(sequence, self.accounts.taken)))
            self._prefixes.started(sequence, self.accounts.certain)
        self.accounts.take(need)
        self.running.append(sequence)

    def release(self, sequence: Sequence) -> None:
        """Book out a sequence that has left the pipeline, and let go of its handle."""
        if self._prefixes is not None and sequence.has_output and self._tells_cached:
            self._prefixes.left(sequence)
        self.accounts.give(sequence.blocks)
        sequence.blocks = 0
        sequence.handle = None
        if self._prefixes is not None:
            self._prefixes.gone(sequence)

    def _make_room(self) -> None:
        """Send the newest back to the head of the queue until the next step fits the cache.

        Those that would have to begin again stay if others can go; then those with presence or
        frequency penalties: what they have generated counts as prompt afterwards, which these do not look at.
        """
        while self.accounts.over:
            movable = [s for s in reversed(self.running) if not s.reserve]
            victim = min(movable, key=lambda s: (self._half_computed(s), s.begins_again, s.penalised))
            self._take_out(victim)
            if victim.cancel_pending:
                continue
            victim.leave()
            self.waiting.appendleft(victim)
            self.preemptions += 1

    # --- stepping

    def step(self) -> None:
        """One step of the pipeline and everything that it brought. Raises EngineLost."""
        if self.accounts.over:
            self._make_room()
        self.steps += 1
        try:
            self.pipeline.step()
            self.clearing = False
            heard = self._collect()
        except Exception as error:  # the border to the pipeline: whatever it throws, the others go on
            recovery.recover(self, error)
            return
        if heard:
            self.stuck_since = None
            if self.steps % CHECK_EVERY == 0:
                silence.check(self, [s for s in self.running if self.steps - s.heard >= CHECK_EVERY])
        else:
            silence.after_step(self)

    def _collect(self) -> bool:
        heard = False
        over: list[Sequence] = []
        for sequence in self.running:
            handle = sequence.handle
            if handle is not None and handle.can_read():
                heard = True
                if self.take(sequence):
                    over.append(sequence)
        for sequence in over:
            self.running.remove(sequence)
            self.release(sequence)
        if self._empty_outputs or self._diverged:
            self.settle()
        return heard

    def settle(self) -> None:
        """Deal with those who had an empty output, and with those who came to other tokens than they had told."""
        mute, self._empty_outputs = self._empty_outputs, []
        silence.check(self, mute)
        diverged, self._diverged = self._diverged, []
        for sequence in diverged:
            self.fail(sequence.request, EngineFailure("The engine had to begin this answer again and lost its thread."))

    def take(self, sequence: Sequence) -> bool:
        """Read one output of a sequence; True if that was its last. Only after can_read."""
        assert sequence.handle is not None
        outputs = sequence.handle.read()
        if not outputs:
            self._empty_outputs.append(sequence)
            return False
        if not sequence.has_output:
            self._first_output(sequence)
        if sequence.cancel_pending:
            self.over(sequence)
            return True
        if not sequence.request.counted:
            self._count(sequence)
        sequence.heard = self.steps
        before = len(sequence.generated) if self._assisted else 0
        try:
            tell = reading.tell_beams if sequence.beams else reading.tell
            over = tell(sequence, outputs, self.out)
        except reading.Diverged:
            self._diverged.append(sequence)
            return False
        if self._assisted and before:  # what comes with the prompt is the first token alone
            self.drafts += 1
            self.accepted += len(sequence.generated) - before - 1
        if over:
            self.over(sequence)
        elif sequence.length + sequence.headroom > sequence.capacity and not sequence.reserve:
            self._grow(sequence)
        return over

    def _first_output(self, sequence: Sequence) -> None:
        sequence.has_output = True
        self.suspects.discard(sequence)
        if self._prefixes is not None:
            self._prefixes.computed(sequence)

    def _count(self, sequence: Sequence) -> None:
        """Tell how many tokens the prompt really had; the pipeline knows when the request is over."""
        sight, request = self.pipeline.sight, sequence.request
        assert sight is not None
        assert request.scene is not None
        tokens = sight.counted(sequence.handle) if sequence.handle is not None else 0
        if tokens:
            request.counted = True
            sight.learn(request.scene, tokens)
            self.out.append(Counted(request.id, tokens))

    def _grow(self, sequence: Sequence) -> None:
        need = self.accounts.blocks(sequence.length + sequence.headroom) - sequence.blocks
        self.accounts.take(need)
        sequence.blocks += need
        sequence.capacity = sequence.blocks * self.accounts.block_size

    def over(self, sequence: Sequence) -> None:
        """The sequence has had its last token: nothing is to be computed for it, whatever the pipeline thinks."""
        request = sequence.request
        request.wanted.discard(sequence.index)
        if sequence.beams:
            request.wanted.clear()
        if not request.wanted:
            self.requests.pop(request.id, None)
        if sequence.handle is not None and self.pipeline.status(sequence.handle) == "running":
            sequence.handle.cancel()
            self.clearing = True


def _decoding_at_once(pipeline: Pipeline) -> int:
    """Sequences that can get a token in every step and still leave some of the step to prompts."""
    each = 1 + (ASSISTANT_TOKENS if pipeline.info.speculative else 0)
    spare = min(PREFILL_TOKENS, pipeline.step_tokens // 4)
    return max(1, (pipeline.step_tokens - spare) // each)
