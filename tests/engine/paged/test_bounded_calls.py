"""Calls in a thread that is left behind when one takes too long."""

import threading

from lean_ovms.engine.paged.grammar import bounded_calls
from lean_ovms.engine.paged.grammar.bounded_calls import Calls, CallThread

LONG_S = 60


def run(thread, calls):
    return thread.finish(thread.start(calls))


def test_calls_run_in_order_and_their_errors_are_their_own():
    seen = []

    def fail():
        raise ValueError("no")

    errors = run(CallThread("test", limit_s=LONG_S), [lambda: seen.append(1), fail, lambda: seen.append(2)])
    assert seen == [1, 2]
    assert [type(error) for error in errors] == [type(None), ValueError, type(None)]


def test_a_call_that_does_not_end_is_left_behind_and_the_others_go_on_elsewhere():
    go_on, seen = threading.Event(), []
    thread = CallThread("test", limit_s=0.001)
    try:
        errors = run(thread, [lambda: seen.append(1), lambda: go_on.wait(LONG_S), lambda: seen.append(2)])
        assert [type(error) for error in errors] == [type(None), TimeoutError, type(None)]
        assert seen == [1, 2]
        assert thread.left == 1
    finally:
        go_on.set()
    while thread.left:
        threading.Event().wait(0.01)
    assert run(thread, [lambda: seen.append(3)]) == [None]
    assert seen == [1, 2, 3]


def test_a_call_that_computes_is_given_up_by_its_cpu_time(monkeypatch):
    monkeypatch.setattr(bounded_calls, "WALL_FACTOR", 1e9)
    over = threading.Event()

    def compute():
        while not over.is_set():
            pass

    try:
        errors = run(CallThread("test", limit_s=0.05), [compute])
    finally:
        over.set()
    assert isinstance(errors[0], TimeoutError)


def test_the_time_of_earlier_calls_does_not_count(monkeypatch):
    """The thread has used more than the limit before, and gets no time to begin."""
    calls = Calls([lambda: None])
    monkeypatch.setattr(bounded_calls.time, "clock_gettime", lambda clock: 100.0)
    assert calls.used_s(0) == (0, 0.0)


def test_what_is_over_is_not_given_up():
    calls = Calls([lambda: None])
    assert calls.run()
    assert calls.give_up(0) is None
    other = Calls([lambda: None, lambda: None])
    assert len(other.give_up(0)) == 1
    assert not other.run()
