"""For tests of the engine child: a worker on the scripted engine, and a transport without a socket."""

import threading
from collections import deque
from dataclasses import asdict

from lean_ovms.config import EngineConfig
from lean_ovms.engine.generation.task import GenerationTask
from lean_ovms.engine.protocol import (
    Accepted,
    Cancel,
    Counted,
    DetailedTokens,
    Drafted,
    Failed,
    Pong,
    Prefilled,
    Progress,
    PromptLogprobs,
    Refused,
    Submit,
    Tokens,
)
from lean_ovms.engine.task import Worker
from lean_ovms.types import SamplingParams
from lean_ovms.types.engine import EngineStats


def queue_limits(queued, queued_by_client=1 << 30, queued_tokens=1 << 30):
    """Returns options with these limits of waiting requests, and without separate limits for each client."""
    return EngineConfig(
        max_queued_requests=queued,
        max_queued_requests_per_client=queued_by_client,
        max_queued_tokens_per_client=queued_tokens,
    )


LIMITS = queue_limits(64)
RUNNING = 64


class MemoryTransport:
    """Keeps frames in lists. Raises an error where a socket would block forever."""

    def __init__(self):
        self.inbox = deque()
        self.frames = []
        self.closed = False

    def receive(self, wait):
        if self.inbox:
            records = [r for frame in self.inbox for r in frame]
            self.inbox.clear()
            return records
        if self.closed:
            return None
        if wait:
            raise AssertionError("the worker waits for a command that will not come")
        return []

    def send(self, records):
        assert records, "an empty frame"
        self.frames.append(list(records))


class WakingTransport(MemoryTransport):
    """Waits to be woken up where MemoryTransport would say that nothing will come."""

    def __init__(self):
        super().__init__()
        self.bell = threading.Event()

    def receive(self, wait):
        if wait and not self.inbox and not self.closed:
            assert self.bell.wait(300), "nobody wakes the loop"
        self.bell.clear()
        return super().receive(False)

    def wake(self):
        self.bell.set()


class Replies:
    """All records of one request."""

    def __init__(self):
        self.accepted = None
        self.refused = None
        self.failed = None
        self.prompt_logprobs = self.prompt_ranks = self.prompt_top = None
        self.cached = None
        self.prefill_ms = None
        self.progress = []
        self.drafted = (0, 0)
        self.tokens = {}
        self.logprobs = {}
        self.top = {}
        self.reasons = {}

    def text(self, index=0):
        return bytes(t for t in self.tokens[index] if t < 256).decode()


def scripted(running=RUNNING, priority_across_clients=False, **changes):
    """Returns the scripted engine, with changes to its script."""
    # Late, because numpy takes 0.1 s to import.
    from lean_ovms.features.scripted_engine.child.backend import ScriptedEngine
    from lean_ovms.features.scripted_engine.child.script import Script

    return ScriptedEngine(Script(**changes), max_running=running, priority_across_clients=priority_across_clients)


def guarded(pipeline, running=RUNNING):
    """Returns a pipeline of openvino_genai, or the fake of one, with its guard."""
    from lean_ovms.features.genai_pipelines.child.guard.backend import GuardedPipeline

    return GuardedPipeline(pipeline, running)


def fresh(backend):
    """Returns a backend for use by one rig after the other, each with its own ids."""
    assert backend.idle
    backend.out.clear()
    return backend


class WorkerRig:
    """A worker on a task, and what it sends."""

    def __init__(self, task, transport=None):
        self.task = task
        self.transport = transport or MemoryTransport()
        self.worker = Worker(task, self.transport)
        self._ids = 0

    def next_id(self):
        self._ids += 1
        return self._ids

    def put(self, *records):
        self.transport.inbox.append(records)

    def cancel(self, request_id, index=None):
        self.put(Cancel(request_id, index))

    def turn(self, times=1):
        """Runs turns of the worker, and returns what they send."""
        before = len(self.transport.frames)
        for _ in range(times):
            assert self.worker.turn()
        return self.sent(before)

    def sent(self, frames=0):
        """Returns the records that were sent, without those of the first frames."""
        return [record for frame in self.transport.frames[frames:] for record in frame]

    def run(self, most=3000):
        """Runs turns until the task is idle."""
        for _ in range(most):
            if self.task.idle and not self.transport.inbox:
                return self
            self.turn()
        raise AssertionError(f"still at work after {most} turns: {self.stats()}")

    def stats(self):
        """Returns the engine's counts at this moment."""
        return EngineStats(**self.task.stats())


class Rig(WorkerRig):
    """A worker and the records that it has sent, by request.

    `pipeline` is one of openvino_genai, which gets a guard, or a complete backend; with None, the scripted engine is
    used, with changes to its script. With `meanwhile`, commands are handled while long steps are computed.
    """

    def __init__(
        self,
        pipeline=None,
        limits=LIMITS,
        running=RUNNING,
        priority_across_clients=False,
        *,
        meanwhile=False,
        **changes,
    ):
        if pipeline is None:
            self.backend = scripted(running=running, priority_across_clients=priority_across_clients, **changes)
        elif hasattr(pipeline, "admit"):
            self.backend = fresh(pipeline)
        else:
            self.backend = guarded(pipeline, running)
        self.pipeline = getattr(self.backend, "pipeline", self.backend)
        super().__init__(GenerationTask(self.backend, limits), WakingTransport() if meanwhile else None)
        self.backend.wake = self.transport.wake if meanwhile else None
        # The guard of a pipeline is its own scheduler.
        self.scheduler = getattr(self.backend, "scheduler", self.backend)
        self._read = 0
        self._answers = {}

    def submit(
        self,
        prompt,
        *,
        request_id=0,
        truncate=None,
        truncation_side="left",
        want_tokens=False,
        add_special_tokens=False,
        client="",
        group=0,
        priority=0,
        **sampling,
    ):
        """Puts a Submit into the inbox, by default greedy and with a new id. Returns the id."""
        number = request_id or self.next_id()
        asked = SamplingParams(**{"temperature": 0.0, **sampling})
        record = Submit(number, prompt, add_special_tokens, truncate, want_tokens, asdict(asked))
        record.client, record.group, record.priority = client, group, priority
        record.truncation_side = truncation_side
        self.put(record)
        return number

    def answer(self, request_id):
        """Returns the answer. Raises AssertionError if records are in the wrong order, or there is a second final."""
        self._take_in()
        return self._answers.get(request_id, Replies())

    def ask(self, prompt, **kw):
        """Submits a request, runs it to the end, and returns the answer."""
        request_id = self.submit(prompt, **kw)
        self.run()
        return self.answer(request_id)

    def _take_in(self):
        for record in self.sent(self._read):
            if not isinstance(record, Pong):
                take_in(self._answers.setdefault(record.id, Replies()), record)
        self._read = len(self.transport.frames)


def take_in(answer, record):
    over = answer.refused or answer.failed
    assert not over, f"{record} after {over}"
    if isinstance(record, Accepted):
        assert answer.accepted is None
        answer.accepted = record
    elif isinstance(record, Refused):
        assert answer.accepted is None
        answer.refused = record.error
    elif isinstance(record, Failed):
        assert answer.accepted
        answer.failed = record.error
    elif isinstance(record, Counted):
        assert answer.accepted
        assert not answer.reasons
    elif isinstance(record, Prefilled):
        assert answer.accepted
        assert answer.prefill_ms is None
        assert 0 not in answer.tokens  # another choice may have been faster, if a step failed meanwhile
        answer.cached, answer.prefill_ms = record.cached, record.ms
    elif isinstance(record, Progress):
        assert answer.accepted
        assert 0 not in answer.tokens
        answer.progress.append(record)
    elif isinstance(record, PromptLogprobs):
        assert answer.accepted
        assert 0 not in answer.tokens  # another choice may have been faster, if a part of its prompt was cached
        answer.prompt_logprobs = record.logprobs
        answer.prompt_ranks, answer.prompt_top = record.ranks, record.top
    elif isinstance(record, Drafted):
        assert answer.accepted
        answer.drafted = (sum(record.tokens), sum(record.accepted))
    elif isinstance(record, Tokens):
        assert answer.accepted
        assert record.index not in answer.reasons, "something after the final"
        answer.tokens.setdefault(record.index, []).extend(record.tokens)
        answer.logprobs.setdefault(record.index, []).extend(record.logprobs or [])
        if isinstance(record, DetailedTokens):
            assert len(record.top) == len(record.tokens)
            answer.top.setdefault(record.index, []).extend(record.top)
        if record.reason:
            answer.reasons[record.index] = record.reason
