"""Commands with long texts are tokenized in a thread while steps continue, with one outcome each."""

from __future__ import annotations

import threading
from array import array

import pytest

from lean_ovms.engine.generation import worker_thread
from lean_ovms.engine.generation.fake_tokenizer import encode
from lean_ovms.engine.generation.task import GenerationTask
from lean_ovms.engine.protocol import Accepted, Encode, Encoded, Refused
from lean_ovms.errors import BadRequest, from_wire
from tests.engine.rig import Rig, queue_limits

LONG = "x" * 200
LIMITS = queue_limits(64)


class BlockedEncoder:
    """A pipeline.LongTextEncoder that waits until `go` is set. `threads` has the threads that called it."""

    def __init__(self):
        self.go = threading.Event()
        self.threads, self.texts, self.learnt = set(), [], []

    def is_long(self, text):
        return len(text) >= len(LONG)

    def encode(self, text, add_special_tokens):
        self.threads.add(threading.current_thread().name)
        self.texts.append(text)
        assert self.go.wait(300)
        if text.startswith("?"):
            raise BadRequest("no such text")
        if text.startswith("!"):
            raise ValueError("a bug")
        return array("i", encode(text, add_special_tokens))

    def learn(self, text, ids, add_special_tokens):
        self.learnt.append((text, ids))


class ThreadRig(Rig):
    """A rig that can wait for its thread."""

    def __init__(self, limits=LIMITS, **changes):
        super().__init__(limits=limits, **changes)
        self.woken = threading.Semaphore(0)
        self.long_text_encoder = self.backend.long_text_encoder = BlockedEncoder()
        self.worker.task = self.task = GenerationTask(self.backend, limits, wake=self.woken.release)

    def finish_text(self):
        self.long_text_encoder.go.set()
        assert self.woken.acquire(timeout=300)
        self.turn_without_waiting()

    def turn_without_waiting(self):
        self.put()
        self.turn()


@pytest.fixture
def rig():
    made = ThreadRig(context=1000, blocks=100)
    yield made
    made.long_text_encoder.go.set()  # leaves no thread waiting


def test_t38_a_neighbour_goes_on_while_a_long_text_is_tokenized(rig):
    neighbour = rig.submit("hello", ignore_eos=True, max_tokens=60)
    rig.turn()
    long = rig.submit(LONG, max_tokens=2)
    rig.turn(5)
    assert len(rig.answer(neighbour).tokens[0]) >= 5
    assert rig.answer(long).accepted is None
    assert rig.stats().queued == 1
    rig.finish_text()
    rig.run()
    assert rig.answer(long).accepted == Accepted(long, len(LONG), None)
    assert rig.answer(long).reasons == {0: "length"}
    assert rig.long_text_encoder.threads == {"tokenize"}
    assert rig.long_text_encoder.learnt == [(LONG, encode(LONG, False))]


def test_a_short_text_behind_a_long_one_of_the_same_client_does_not_wait_for_it(rig):
    rig.submit(LONG, client="a")
    short = rig.submit("hi", client="a", max_tokens=1)
    rig.turn()
    assert rig.answer(short).reasons == {0: "length"}


@pytest.mark.parametrize(("begin", "status"), [("?", 400), ("!", 500)])
def test_an_error_in_the_thread_is_the_requests_outcome(rig, begin, status):
    long = rig.submit(begin + LONG)
    rig.turn()
    rig.finish_text()
    assert from_wire(rig.answer(long).refused).status == status
    assert rig.stats().queued == 0


def test_a_text_beyond_the_context_is_refused_by_its_beginning(rig):
    long = rig.submit("x" * 10_000)
    rig.turn()
    rig.finish_text()
    assert "exceeds model max length: 1000" in from_wire(rig.answer(long).refused).message
    assert [len(text) for text in rig.long_text_encoder.texts] == [8000]


@pytest.mark.parametrize(("text", "side"), [(LONG + "abc", "left"), ("abc" + 8 * LONG, "right")])
def test_truncation_is_as_for_short_texts(rig, text, side):
    long = rig.submit(text, truncate=3, truncation_side=side, max_tokens=3)
    rig.turn()
    rig.finish_text()
    rig.run()
    assert rig.answer(long).text() == "abc"
    assert rig.long_text_encoder.learnt == []


def test_a_cancelled_request_is_not_started(rig):
    first, second = rig.submit(LONG, client="a"), rig.submit(LONG + "2", client="b")
    rig.turn()
    rig.cancel(first)
    rig.cancel(second)
    rig.turn()
    rig.finish_text()
    assert rig.answer(first).accepted is rig.answer(second).accepted is None
    assert rig.long_text_encoder.texts == [LONG]
    assert rig.stats().queued == 0


def test_a_tokenized_request_that_cannot_be_queued_is_refused(rig, monkeypatch):
    monkeypatch.setattr("lean_ovms.engine.paged.engine.Sequence", lambda **fields: 1 / 0)
    long = rig.submit(LONG)
    rig.turn()
    rig.finish_text()
    assert rig.answer(long).refused[0] == "EngineFailure"
    assert rig.answer(long).accepted is None
    assert not rig.backend.requests


def test_clients_take_turns(rig):
    for number in range(3):
        rig.submit(f"{LONG}{number}", client="a", max_tokens=1)
    rig.submit(f"{LONG}b", client="b", max_tokens=1)
    rig.turn()
    rig.long_text_encoder.go.set()
    for _ in range(4):
        rig.finish_text()
    assert rig.long_text_encoder.texts == [f"{LONG}{end}" for end in ("0", "b", "1", "2")]


def test_too_many_long_texts_of_one_client_are_refused(rig, monkeypatch):
    monkeypatch.setattr(worker_thread, "MOST_OF_CLIENT", 2)
    mine = [rig.submit(f"{LONG}{number}", client="a") for number in range(3)]
    other = rig.submit(LONG, client="b")
    rig.turn()
    assert [rig.answer(number).refused is None for number in [*mine, other]] == [True, True, False, True]
    assert from_wire(rig.answer(mine[2]).refused).status == 429


def test_long_texts_count_as_queued():
    limits = queue_limits(64, queued_by_client=1)
    rig = ThreadRig(limits, context=1000, blocks=100)
    try:
        rig.submit(LONG, client="a")
        second = rig.submit(LONG, client="a")
        rig.turn()
        assert from_wire(rig.answer(second).refused).status == 429
    finally:
        rig.long_text_encoder.go.set()


def test_texts_of_an_encode_are_tokenized_in_the_thread_too(rig):
    rig.put(Encode(7, ["hi", LONG], False), Encode(8, ["?" + LONG], False))
    rig.turn()
    assert rig.transport.frames == []
    rig.finish_text()
    rig.finish_text()
    records = [record for frame in rig.transport.frames for record in frame]
    assert records[0] == Encoded(7, [encode("hi", False), encode(LONG, False)])
    assert isinstance(records[1], Refused)
    assert records[1].id == 8


def test_many_short_texts_of_an_encode_are_tokenized_in_the_thread(rig):
    texts = ["x" * 40] * 2000
    rig.put(Encode(7, texts, False), Encode(8, ["short"], False))
    rig.turn()
    assert rig.transport.frames == [[Encoded(8, [encode("short", False)])]]
    rig.finish_text()
    [record] = [record for frame in rig.transport.frames[1:] for record in frame]
    assert (record.id, record.sizes) == (7, [40] * 2000)
    assert rig.long_text_encoder.threads == {"tokenize"}


def test_many_bad_words_are_tokenized_in_the_thread():
    """256 words of 250 letters blocked all clients for 2.5 s."""
    rig = ThreadRig(context=1000, blocks=100)
    words = tuple(f"{letter}q" for letter in "abcdefghij")
    few = rig.submit("hi", bad_words=words[:8], max_tokens=1)
    many = rig.submit("xbq", bad_words=words, max_tokens=1)
    both = rig.submit(LONG, bad_words=words, max_tokens=1)
    rig.turn()
    assert rig.answer(few).accepted is not None
    assert rig.answer(many).accepted is rig.answer(both).accepted is None
    for _ in range(2):
        rig.finish_text()
    rig.run()
    assert [rig.answer(number).accepted.prompt_tokens for number in (many, both)] == [3, len(LONG)]
    assert rig.long_text_encoder.threads == {"tokenize"}
