"""Silence of the child: when the watchdog asks, when it means death, and when it means nothing. Time is simulated."""

import asyncio
import heapq

import pytest

from lean_ovms.engine.client.engine import Watchdog


class Clock(asyncio.AbstractEventLoop):
    """The methods of an event loop that use time."""

    def __init__(self):
        self.now = 100.0
        self.timers = []

    def time(self):
        return self.now

    def call_at(self, when, callback, *args):
        handle = asyncio.TimerHandle(when, callback, args, self)
        heapq.heappush(self.timers, handle)
        return handle

    def _timer_handle_cancelled(self, handle):
        self.timers.remove(handle)

    def get_debug(self):
        return False

    def advance(self, seconds, late=0.0):
        """Runs the timers that are due. With `late`, all run only that long after the end."""
        end = self.now + seconds
        while self.timers and self.timers[0].when() <= end:
            handle = heapq.heappop(self.timers)
            self.now = max(self.now, handle.when()) + late
            handle._run()
        self.now = max(self.now, end)


class Dog(Watchdog):
    def __init__(self):
        self.calls = []
        self.work = False
        super().__init__(10.0, lambda: self.work, lambda: self.calls.append("ping"), lambda: self.calls.append("bite"))

    def begin(self):
        self.start()
        self.work = True


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: clock)
    return clock


@pytest.fixture
def dog(clock):
    """Returns a watchdog that watches work."""
    dog = Dog()
    dog.begin()
    return dog


def test_silence_is_asked_about_after_half_the_limit_and_ends_at_the_limit(clock, dog):
    clock.advance(4.9)
    assert dog.calls == []
    clock.advance(0.2)
    assert dog.calls == ["ping"]
    clock.advance(4.8)
    assert dog.calls == ["ping"]
    clock.advance(0.2)
    assert dog.calls == ["ping", "bite"]
    assert clock.timers == []


def test_an_engine_that_answers_pings_lives(clock, dog):
    for _ in range(20):
        before = dog.calls.count("ping")
        clock.advance(2.5)
        if dog.calls.count("ping") > before:
            dog.record_received(clock.now)
    assert "bite" not in dog.calls
    assert dog.calls.count("ping") >= 5


def test_an_engine_that_sends_is_never_asked(clock, dog):
    for _ in range(100):
        clock.advance(1.0)
        dog.record_received(clock.now)
    assert dog.calls == []


def test_when_the_work_is_done_the_last_timer_is_the_end(clock, dog):
    clock.advance(1.0)
    dog.work = False
    clock.advance(100.0)
    assert dog.calls == []
    assert clock.timers == []


def test_silence_before_new_work_does_not_count(clock, dog):
    clock.advance(1.0)
    dog.work = False
    clock.advance(3.9)  # the first timer is still running
    dog.begin()
    clock.advance(9.8)
    assert dog.calls == ["ping"]
    clock.advance(0.3)
    assert dog.calls == ["ping", "bite"]


def test_more_work_does_not_put_off_the_end(clock):
    dog = Dog()
    for _ in range(10):
        dog.begin()
        clock.advance(1.1)
    assert dog.calls == ["ping", "bite"]


def test_a_process_that_slept_itself_first_listens_again(clock, dog):
    clock.advance(6.0, late=60.0)
    assert dog.calls == []
    clock.advance(10.1)
    assert dog.calls == ["ping", "bite"]


def test_sleep_takes_the_timer_away(clock, dog):
    dog.stop()
    dog.stop()
    assert clock.timers == []
