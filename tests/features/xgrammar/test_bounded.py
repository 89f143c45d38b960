"""Calls in a thread that is abandoned when one takes too long."""

import threading
import time

import pytest

from lean_ovms.features.xgrammar.child import bounded
from lean_ovms.features.xgrammar.child.bounded import CallThread

LONG_S = 60


def test_calls_run_in_order_and_their_errors_are_their_own():
    seen, thread = [], CallThread("test")

    def fail():
        raise ValueError("no")

    thread.run(lambda: seen.append(1), LONG_S)
    with pytest.raises(ValueError, match="no"):
        thread.run(fail, LONG_S)
    thread.run(lambda: seen.append(2), LONG_S)
    assert seen == [1, 2]
    assert thread.left == 0


def test_a_call_that_does_not_end_is_left_behind_and_the_others_go_on_elsewhere():
    go_on, seen, thread = threading.Event(), [], CallThread("test")
    try:
        with pytest.raises(TimeoutError):
            thread.run(lambda: go_on.wait(LONG_S), 0.001)
        thread.run(lambda: seen.append(1), LONG_S)
        assert (seen, thread.left) == ([1], 1)
    finally:
        go_on.set()
    while thread.left:
        threading.Event().wait(0.01)


@pytest.mark.slow
def test_a_call_that_computes_is_given_up_by_its_cpu_time_and_that_of_earlier_ones_does_not_count(monkeypatch):
    monkeypatch.setattr(bounded, "WALL_FACTOR", 1e9)
    over, thread = threading.Event(), CallThread("test")

    def compute(until_s=LONG_S):
        end = time.thread_time() + until_s
        while not over.is_set() and time.thread_time() < end:
            pass

    thread.run(lambda: compute(0.06), LONG_S)
    thread.run(lambda: threading.Event().wait(0.05), 0.05)
    try:
        with pytest.raises(TimeoutError):
            thread.run(compute, 0.05)
    finally:
        over.set()
