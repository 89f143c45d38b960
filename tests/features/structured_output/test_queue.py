"""Requests wait until their grammar is checked and compiled; the loop never waits."""

import json
import threading
from dataclasses import replace

import pytest

from lean_ovms.engine.generation.fair_queue import GenerationRequest
from lean_ovms.engine.generation.task import GenerationTask
from lean_ovms.engine.protocol import Submit
from lean_ovms.engine.task import Worker
from lean_ovms.errors import EngineFailure, GrammarInvalid, GrammarTooComplex, TooManyRequests, Unavailable
from lean_ovms.features.structured_output import limits
from lean_ovms.features.structured_output.child import queue
from lean_ovms.features.structured_output.child.library import LibraryGrammars
from lean_ovms.features.structured_output.limits import GrammarCost
from lean_ovms.types import SamplingParams
from tests.engine.rig import LIMITS, Rig, WakingTransport, queue_limits


def tag(text="a"):
    return json.dumps({"type": "structural_tag", "format": {"type": "regex", "pattern": text}})


class Compiler:
    """Compiles when the test allows it, in both roles. `calls` has its arguments in order."""

    def __init__(self):
        self.calls = []
        self.bad = {}
        self.cost = GrammarCost(0.01, 1000)
        self.let = {"check": threading.Event(), "compile": threading.Event()}
        for event in self.let.values():
            event.set()
        self.reached = {"check": threading.Semaphore(0), "compile": threading.Semaphore(0)}

    def _do(self, what, text):
        self.calls.append((what, text))
        self.reached[what].release()
        assert self.let[what].wait(300)

    def check(self, text, bounds):
        self._do("check", text)
        limits.check(text, bounds)
        if text in self.bad:
            raise self.bad[text]
        return self.cost

    def compile(self, text):
        self._do("compile", text)

    def clear(self):
        self.calls.append(("clear", ""))

    def stop(self):
        self.calls.append(("stop", ""))

    def count(self, what):
        return sum(1 for call, _ in self.calls if call == what)


class GrammarRig(Rig):
    """A worker with a grammar queue."""

    def __init__(self, limits=LIMITS, pipeline=None):
        super().__init__(pipeline=pipeline)
        self.compiler = Compiler()
        self.transport = WakingTransport()
        self.backend.grammars = LibraryGrammars(lambda: self.compiler)
        self.task = GenerationTask(self.backend, limits, self.transport.wake)
        self.queue = self.task.grammars
        self.worker = Worker(self.task, self.transport)

    def send(self, constraint, prompt="hello", **sampling):
        number = self.submit(prompt, **sampling)
        self.transport.inbox[-1][0].constraint = constraint
        return number

    def run(self, most=4000):
        for _ in range(most):
            if self.backend.idle and not self.transport.inbox and not self.queue.waiting and not self.queue.compiling:
                return self
            self.turn()
        raise AssertionError("still at work")


@pytest.fixture
def rig():
    return GrammarRig()


def test_a_new_grammar_is_checked_then_compiled_once_and_then_all_its_requests_run(rig):
    numbers = [rig.send(tag()) for _ in range(5)]
    rig.run()
    known = rig.send(tag())
    rig.turn()
    assert rig.answer(known).accepted, "at once"
    rig.run()
    assert [rig.answer(number).text() for number in (*numbers, known)] == ["hello"] * 6
    assert rig.compiler.calls == [("check", tag()), ("compile", tag())]


def test_nothing_is_accepted_before_the_grammar_is_known_good_and_others_run_meanwhile(rig):
    rig.compiler.let["check"].clear()
    number = rig.send(tag())
    other = rig.submit("others go on")
    for _ in range(100):
        rig.turn()
        if rig.answer(other).reasons:
            break
    assert rig.answer(other).text() == "others go on"
    assert rig.answer(number).accepted is None
    assert rig.stats().queued == 1
    rig.compiler.let["check"].set()
    rig.run()
    assert rig.answer(number).text() == "hello"


@pytest.mark.parametrize("error", [GrammarInvalid("no"), GrammarTooComplex("much")])
def test_a_bad_grammar_is_refused_and_remembered(error, rig):
    rig.compiler.bad[tag()] = error
    numbers = [rig.send(tag()), rig.send(tag())]
    rig.run()
    numbers.append(rig.send(tag()))
    rig.run()
    assert [rig.answer(n).refused for n in numbers] == [error.to_wire()] * 3
    assert rig.compiler.count("check") == 1
    assert rig.compiler.count("compile") == 0


def test_the_parts_of_a_refused_grammar_are_checked_alone_until_time_is_up(rig):
    texts = ["a", "b", "c", "b"]
    whole = json.dumps(
        {"format": {"type": "sequence", "elements": [{"type": "regex", "pattern": text} for text in texts]}}
    )
    numbers = list(limits.expressions(json.loads(whole)))
    alone = [f'{{"type":"structural_tag","format":{part}}}' for part in numbers]
    rig.compiler.bad |= {whole: GrammarInvalid("no"), alone[1]: GrammarTooComplex("much")}
    for seconds, refused in ((1000, {"1": "much"}), (-1, {"0": "no", "1": "no", "2": "no"})):
        check = queue.GrammarCheck(whole, most_s=seconds)
        error = check.proceed(rig.compiler, rig.queue.bounds)
        while check.unfinished:
            assert check.proceed(rig.compiler, rig.queue.bounds) is error
        assert (error.message, error.reasons) == ("no", refused)
    assert [text for _, text in rig.compiler.calls] == [whole, *alone, whole]


def test_other_clients_have_turns_between_the_parts_of_a_refused_grammar(rig):
    parts = [{"type": "regex", "pattern": text} for text in "abc"]
    whole = json.dumps({"format": {"type": "sequence", "elements": parts}})
    rig.compiler.bad[whole] = GrammarInvalid("no")
    rig.compiler.let["check"].clear()
    greedy = rig.send(whole, client="greedy")
    rig.turn()
    assert rig.compiler.reached["check"].acquire(timeout=300)
    other = rig.send(tag("x"), client="other")
    rig.turn()
    rig.compiler.let["check"].set()
    rig.run()
    checks = [text for call, text in rig.compiler.calls if call == "check"]
    assert checks.index(tag("x")) == 1
    assert (checks[0], len(checks)) == (whole, 5)
    assert rig.answer(greedy).refused[0] == "GrammarInvalid"
    assert rig.answer(other).text() == "hello"


def test_a_refused_grammar_that_nobody_waits_for_any_more_is_checked_no_further(rig):
    whole = json.dumps(
        {"format": {"type": "sequence", "elements": [{"type": "regex", "pattern": one} for one in "ab"]}}
    )
    rig.compiler.bad[whole] = GrammarInvalid("no")
    rig.compiler.let["check"].clear()
    number = rig.send(whole)
    rig.turn()
    assert rig.compiler.reached["check"].acquire(timeout=300)
    rig.cancel(number)
    rig.turn()
    rig.compiler.let["check"].set()
    rig.run()
    assert rig.compiler.count("check") == 1


def test_a_grammar_that_exceeds_the_bounds_never_reaches_the_checker(rig):
    number = rig.send(tag("a{99999}"))
    rig.run()
    assert rig.answer(number).refused[0] == "GrammarTooComplex"
    assert rig.compiler.calls == []


@pytest.mark.parametrize("error", [Unavailable("later"), RuntimeError("broken")])
def test_a_failure_that_says_nothing_about_the_grammar_is_not_remembered(error, rig):
    rig.compiler.bad[tag()] = error
    first = rig.send(tag())
    rig.run()
    assert rig.answer(first).refused[0] in (Unavailable.__name__, EngineFailure.__name__)
    rig.compiler.bad.clear()
    second = rig.send(tag())
    rig.run()
    assert rig.answer(second).text() == "hello"


def test_a_request_that_waits_for_its_grammar_can_be_cancelled(rig):
    rig.compiler.let["check"].clear()
    gone, stays = rig.send(tag()), rig.send(tag())
    rig.turn()
    rig.cancel(gone)
    rig.turn()
    assert rig.queue.waiting == 1
    rig.compiler.let["check"].set()
    rig.run()
    assert rig.answer(gone).accepted is None
    assert rig.answer(stays).text() == "hello"


def test_a_grammar_nobody_waits_for_any_more_is_not_compiled_here(rig):
    rig.compiler.let["check"].clear()
    number = rig.send(tag())
    rig.turn()
    rig.cancel(number)
    rig.turn()
    rig.compiler.let["check"].set()
    other = rig.send(tag("b"))
    rig.run()
    assert rig.answer(other).text() == "hello"
    assert ("compile", tag()) not in rig.compiler.calls


def test_waiting_requests_count_as_queued():
    rig = GrammarRig(limits=queue_limits(2))
    rig.compiler.let["check"].clear()
    waiting = [rig.send(tag()), rig.send(tag())]
    rig.turn()
    refused = rig.submit("no room")
    rig.turn()
    assert rig.answer(refused).refused[0] == "TooManyRequests"
    rig.compiler.let["check"].set()
    rig.run()
    assert [rig.answer(n).text() for n in waiting] == ["hello"] * 2


def test_too_many_new_grammars_are_refused(monkeypatch):
    monkeypatch.setattr(queue, "MOST", 2)
    rig = GrammarRig()
    rig.compiler.let["check"].clear()
    numbers = [rig.send(tag(c)) for c in "abc"]
    rig.turn()
    assert rig.answer(numbers[2]).refused[0] == "TooManyRequests"
    rig.compiler.let["check"].set()
    rig.run()
    assert [rig.answer(n).text() for n in numbers[:2]] == ["hello"] * 2


def test_while_a_thread_compiles_nobody_with_a_grammar_starts_and_everybody_else_does(rig):
    rig.send(tag("a"))
    rig.run()
    rig.compiler.let["compile"].clear()
    new = rig.send(tag("b"))
    rig.turn()
    while not rig.queue.compiling:
        rig.turn()
    known, free = rig.send(tag("a")), rig.submit("free")
    for _ in range(50):
        rig.turn()
        if rig.answer(free).reasons:
            break
    assert rig.answer(free).text() == "free"
    assert rig.answer(known).accepted is None
    rig.compiler.let["compile"].set()
    rig.run()
    assert [rig.answer(n).text() for n in (new, known)] == ["hello"] * 2


def test_compiled_grammars_are_dropped_when_they_take_too_much_and_compiled_again():
    rig = GrammarRig(limits=replace(LIMITS, grammar_cache_mb=1))
    for letter in "abcdef":
        rig.send(tag(letter))
        rig.run()
    assert rig.compiler.count("clear") == 1
    before = rig.compiler.count("compile")
    number = rig.send(tag("a"))
    rig.run()
    assert rig.answer(number).text() == "hello"
    assert rig.compiler.count("compile") == before + 1
    assert rig.compiler.count("check") == 6


def test_verdicts_are_bounded(monkeypatch):
    monkeypatch.setattr(queue, "RESULTS", 3)
    rig = GrammarRig()
    for letter in "abcdef":
        rig.compiler.bad[tag(letter)] = GrammarInvalid("no")
        rig.send(tag(letter))
        rig.run()
    rig.send(tag("f"))
    rig.send(tag("a"))
    rig.run()
    assert rig.compiler.count("check") == 7


def test_the_helper_is_stopped_after_a_while_without_work(monkeypatch):
    monkeypatch.setattr(queue, "IDLE_S", 0.01)
    rig = GrammarRig()
    rig.send(tag())
    rig.run()
    for _ in range(500):
        if rig.compiler.count("stop"):
            break
        threading.Event().wait(0.01)
    assert rig.compiler.count("stop") == 1


def test_ignore_eos_gives_way_to_the_end_of_the_grammar(rig):
    number = rig.send(tag(), ignore_eos=True, max_tokens=200)
    rig.run()
    assert rig.answer(number).reasons == {0: "stop"}


def test_the_text_of_a_long_grammar_is_not_read_in_the_loop(rig):
    rig.compiler.let["check"].clear()
    long = tag("a{99999}" + "b" * queue.INLINE_BYTES)
    number = rig.send(long)
    rig.turn()
    assert rig.answer(number).refused is None
    assert rig.queue.waiting == 1
    rig.compiler.let["check"].set()
    rig.run()
    assert rig.answer(number).refused[0] == "GrammarTooComplex"


def of_client(rig, client, text):
    submit = Submit(rig.submit("hello"), "hello", True, None, False, {}, tag(text))
    rig.transport.inbox.pop()
    request = GenerationRequest(submit.id, SamplingParams(), {0}, submit.constraint)
    rig.queue.add(submit, Asking(request, client))


class Asking:
    """A client's request."""

    def __init__(self, request, client):
        self.client, self.unfinished, self.sequences, self.cost = client, request.unfinished, [], None


def test_clients_take_turns_and_none_fills_the_queue(monkeypatch):
    monkeypatch.setattr(queue, "MOST", 8)
    rig = GrammarRig()
    rig.compiler.let["check"].clear()
    for place in range(5):
        of_client(rig, "greedy", f"g{place}")
    with pytest.raises(TooManyRequests) as caught:
        of_client(rig, "greedy", "g5")
    assert caught.value.retry_after_s
    of_client(rig, "polite", "p0")
    rig.compiler.let["check"].set()
    while rig.queue._checks.queued("greedy"):
        rig.queue.poll(may_compile=False)
    order = [call[1] for call in rig.compiler.calls if call[0] == "check"]
    assert order.index(tag("p0")) <= 2


def test_what_a_grammar_costs_is_known_when_its_request_runs(rig):
    rig.compiler.cost = GrammarCost(0.1, 1000, 0.03)
    for _ in range(2):
        rig.send(tag(), "hello")
        rig.turn()
        while rig.queue.waiting:
            rig.turn()
        (request,) = rig.backend.requests.values()
        assert request.cost == rig.compiler.cost
        rig.run()


def test_masks_of_one_step_are_limited_and_cheap_ones_do_not_wait_for_costly_ones(rig):
    rig.compiler.cost = GrammarCost(0.1, 1000, 0.03)
    for place in range(6):
        rig.send(tag(), f"costly {place} " * 30)
    most = 0
    for _ in range(60):
        rig.turn()
        most = max(most, len(rig.scheduler.running))
    assert most == 3
    rig.compiler.cost = GrammarCost(0.1, 1000, 0.002)
    cheap = rig.send(tag("cheap"), "hello")
    rig.run()
    assert rig.answer(cheap).text() == "hello"
    assert most == 3
