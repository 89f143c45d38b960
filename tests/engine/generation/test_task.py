"""Text generation with each scheduler: one outcome per request, in the right frames, and nothing left."""

import asyncio
from array import array
from dataclasses import asdict

import pytest

from lean_ovms.engine.client.engine import unpacked
from lean_ovms.engine.generation.fake_tokenizer import EOS, VOCAB_SIZE
from lean_ovms.engine.protocol import (
    Accepted,
    Cancel,
    Decode,
    Decoded,
    Decoder,
    Encode,
    Encoded,
    Ping,
    Pong,
    Refused,
    Tokens,
    attachments,
    encode,
)
from lean_ovms.errors import from_wire
from lean_ovms.types.engine import EngineStats
from tests.engine.rig import Rig, queue_limits

on_both = pytest.mark.usefixtures("each_backend")
"""Runs a test on the guard of openvino_genai's pipelines too, which has its own scheduler."""


def idle(rig):
    stats = rig.stats()
    return (stats.running, stats.queued, stats.kv_blocks_used) == (0, 0, 0) and rig.backend.idle


# --- one request


FREE = {"ignore_eos": True}


@pytest.mark.parametrize(
    ("script", "prompt", "fields", "text", "reason"),
    [
        ({}, "hi", {"max_tokens": 3}, "hi", "stop"),  # the stop token is also the last allowed
        ({}, "hi", {**FREE, "max_tokens": 7}, "hihihih", "length"),
        ({}, "abcabc", {**FREE, "max_tokens": 50, "stop_token_ids": (ord("c"),)}, "abc", "stop"),
        ({}, "ab", {"stop_token_ids": (ord("x"),)}, "ab", "stop"),  # the model's own stop tokens stay in force
        ({}, "hello", {"truncate": 3}, "llo", "stop"),
        ({}, "hello", {"truncate": 3, "truncation_side": "right"}, "hel", "stop"),
        ({}, [104, 105, 106], {"truncate": 2, "truncation_side": "right"}, "hi", "stop"),
        ({"context": 40}, "ab", FREE, "ab" * 19, "length"),
        ({"context": 40}, "ab", {**FREE, "max_tokens": 2**31 - 1}, "ab" * 19, "length"),
        ({"blocks": 2}, "ab", FREE, "ab" * 31, "length"),
    ],
)
@on_both
def test_where_an_answer_begins_and_ends(script, prompt, fields, text, reason):
    answer = Rig(**script).ask(prompt, **fields)
    assert (answer.text(), answer.reasons) == (text, {0: reason})


def test_text_is_encoded_with_special_tokens_only_when_asked():
    assert Rig().ask("hi", add_special_tokens=True).accepted.prompt_tokens == 3
    assert Rig().ask("hi").accepted.prompt_tokens == 2


# --- several sequences


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("", "prompt is empty"),
        ([], "prompt is empty"),
        ([1, 2, VOCAB_SIZE], f"prompt: {VOCAB_SIZE} is not a token id in [0, {VOCAB_SIZE})"),
        ([-1], f"prompt: -1 is not a token id in [0, {VOCAB_SIZE})"),
        ([2**63], f"prompt: {2**63} is not a token id in [0, {VOCAB_SIZE})"),
        ("a\ud800b", "the text is not valid Unicode (lone surrogates)"),
    ],
)
def test_a_prompt_that_cannot_be_computed_is_refused(prompt, message):
    rig = Rig()
    answer = rig.ask(prompt)
    assert answer.refused[:2] == ["BadRequest", message]
    assert idle(rig)


@pytest.mark.parametrize(
    ("size", "words"), [(41, "Number of prompt tokens: 41 exceeds model max length: 40"), (40, "leaves no room")]
)
def test_a_prompt_beyond_the_context_is_refused_with_the_numbers(size, words):
    answer = Rig(context=40).ask([1] * size)
    assert words in answer.refused[1]
    assert answer.refused[1].endswith(
        ". This model's maximum context length is 40 tokens. Please reduce the length of the input prompt."
    )  # by it agents shorten
    assert answer.refused[3] == "context_length_exceeded"


def test_a_text_that_cannot_fit_the_context_is_refused_before_it_is_tokenized(monkeypatch):
    rig = Rig(context=40)
    monkeypatch.setattr(rig.backend, "encode", lambda *a: pytest.fail("tokenized"))
    answer = rig.ask("x" * 2000)
    assert answer.refused[1].startswith("Number of prompt characters: 2000 exceeds model max length: 40 tokens. ")
    assert answer.refused[3] == "context_length_exceeded"


def test_of_a_text_that_seems_too_long_only_a_part_is_tokenized(monkeypatch):
    rig = Rig(context=100)
    seen, encode = [], rig.backend.encode
    monkeypatch.setattr(rig.backend, "encode", lambda text, special: seen.append(text) or encode(text, special))
    answer = rig.ask("x" * 900)
    assert "more than 736 exceeds model max length: 100. This model's maximum context" in answer.refused[1]
    answer = rig.ask("x" * 900 + "hello", truncate=7, want_tokens=True, max_tokens=1)
    assert bytes(answer.accepted.tokens) == b"xxhello"
    assert [len(text) for text in seen] == [800, 800]


@pytest.mark.parametrize("context", [40, 100])  # the text is cut by its characters, a part of it is tokenized
def test_of_a_text_whose_right_side_is_cut_only_the_beginning_is_tokenized(context):
    rig = Rig(context=context)
    text = "hello" + "x" * 3000
    answer = rig.ask(text, truncate=7, truncation_side="right", want_tokens=True, max_tokens=1)
    assert bytes(answer.accepted.tokens) == b"helloxx"


@on_both
def test_beams_that_do_not_fit_the_cache_are_refused():
    assert Rig(blocks=8).ask([1] * 40, beams=16).refused[3] == "context_length_exceeded"


@on_both
def test_prompt_logprobs_of_n_sequences_come_once():
    answer = Rig().ask("hello", prompt_logprobs=True, n=2, seeds=(1, 2), temperature=0.5)
    assert len(answer.prompt_logprobs) == 5
    assert set(answer.reasons) == {0, 1}


def test_the_queue_has_an_end():
    rig = Rig(limits=queue_limits(3), running=2)
    ids = [rig.submit("hello") for _ in range(7)]
    rig.run()
    answers = [rig.answer(i) for i in ids]
    assert [a.refused is None for a in answers] == [True] * 5 + [False] * 2
    assert answers[-1].refused[0] == "TooManyRequests"
    assert all(a.text() == "hello" for a in answers[:5])


@pytest.mark.slow
def test_a_flood_of_texts_lets_others_step_between():
    rig = Rig(context=10**6)
    runner = rig.submit("hello", max_tokens=100, ignore_eos=True)
    rig.turn(2)
    rig.transport.inbox.append([Encode(1000, ["x" * 20_000, ""] * 20, False)])
    floods = [rig.submit("y" * 60_000, max_tokens=1) for _ in range(4)]
    rig.transport.inbox.append([Cancel(floods[3])])
    told = []
    for _ in range(40):
        before = len(rig.transport.frames)
        rig.turn(1)
        records = [record for frame in rig.transport.frames[before:] for record in frame]
        assert any(isinstance(record, Tokens) and record.id == runner for record in records), "a turn without a step"
        told += [type(record).__name__ for record in records if record.id != runner]
    assert told.index("Encoded") < told.index("Accepted")
    [encoded] = [r for frame in rig.transport.frames for r in frame if isinstance(r, Encoded)]
    assert encoded.sizes == [20_000, 0] * 20
    rig.backend.cancel(runner, None)
    rig.run()
    assert [rig.answer(n).reasons == {0: "length"} for n in floods] == [True, True, True, False]
    assert idle(rig)


def test_a_full_queue_says_when_an_eighth_of_it_will_have_begun():
    rig = Rig(limits=queue_limits(16), running=1)
    now = [0.0]
    rig.scheduler.waiting.clock = lambda: now[0]
    for _ in range(8):  # one every five seconds
        rig.submit("a", max_tokens=1)
        rig.run()
        now[0] += 5.0
    for _ in range(17):
        rig.submit("a", max_tokens=50, ignore_eos=True)
        rig.turn(1)
    late = rig.submit("a")
    rig.turn(1)
    refused = from_wire(rig.answer(late).refused)
    assert refused.status == 429
    assert 8 <= refused.retry_after_s <= 10


def test_the_queue_counts_requests_and_not_sequences():
    rig = Rig(limits=queue_limits(2), running=1)
    ids = [rig.submit("hello", n=10, seeds=tuple(range(10)), temperature=0.5) for _ in range(4)]
    rig.run()
    assert [rig.answer(i).refused is None for i in ids] == [True, True, True, False]


# --- cancel


@on_both
def test_a_request_cancelled_in_the_batch_of_its_submit_never_reaches_the_pipeline():
    rig = Rig()
    request = rig.submit("hello")
    rig.cancel(request)
    rig.turn()
    assert rig.stats().steps == 0
    assert idle(rig)


@on_both
def test_cancel_of_one_beam_result_keeps_the_search_and_of_all_ends_it():
    rig = Rig(step_tokens=16)
    request = rig.submit("hello" * 20, n=2, beams=2)
    rig.turn()
    rig.cancel(request, 0)
    rig.run()
    assert set(rig.answer(request).reasons) == {1}
    request = rig.submit("hello" * 20, n=2, beams=2)
    rig.turn()
    rig.cancel(request, 0)
    rig.cancel(request, 1)
    rig.turn()
    assert idle(rig)


@pytest.mark.parametrize("index", [None, 0, 7])
@on_both
def test_cancel_of_the_unknown_and_of_the_finished_is_ignored(index):
    rig = Rig()
    request = rig.submit("hi")
    rig.run()
    rig.put(Cancel(99, index), Cancel(request, index))
    rig.turn()
    assert idle(rig)


@on_both
def test_one_frame_per_step_whatever_the_number_of_streams():
    rig = Rig()
    for _ in range(8):
        rig.submit("hello")
    rig.turn()
    accepted, first = rig.transport.frames
    assert [type(r) for r in accepted] == [Accepted] * 8
    assert [r.id for r in first if isinstance(r, Tokens)] == list(range(1, 9))
    rig.turn()
    assert len(rig.transport.frames) == 3


def test_a_ping_is_answered_while_idle_and_while_busy():
    rig = Rig()
    rig.put(Ping(5))
    rig.turn()
    idle = EngineStats(running=0, queued=0, steps=0, kv_blocks_total=4096, accepted_by_position=[])
    assert rig.transport.frames[-1] == [Pong(5, asdict(idle))]
    rig.submit("hello")
    rig.turn()
    assert rig.stats().running == 1


def test_encode_and_decode_are_answered():
    rig = Rig()
    rig.put(Encode(1, ["hi", "", "<eos>"], True), Decode(2, [104, 105, EOS], True), Decode(3, [104, EOS], False))
    rig.turn()
    assert rig.transport.frames == [
        [Encoded(1, [[257, 104, 105], [257], [257, EOS]]), Decoded(2, "hi"), Decoded(3, "h<eos>")]
    ]


def test_a_text_of_many_megabytes_is_not_tokenized_in_one_go():
    rig = Rig()
    rig.put(Encode(1, ["x" * (1 << 20)] * 5, True))
    rig.turn()
    assert "characters" in rig.transport.frames[0][0].error[1]


def test_encode_and_decode_of_the_impossible_are_refused():
    rig = Rig()
    rig.put(Encode(1, ["a\ud800"], True), Decode(2, [VOCAB_SIZE], True), Decode(3, [-1], True))
    rig.turn()
    assert [type(r) for r in rig.transport.frames[0]] == [Refused] * 3
    assert rig.transport.frames[0][1].error[2] == "tokens"


def test_an_error_of_ours_while_a_request_is_taken_in_ends_that_request_only(monkeypatch):
    rig = Rig()
    other = rig.submit("hello")
    rig.turn()
    monkeypatch.setattr(rig.backend, "encode", lambda *a: 1 / 0)
    rig.put(Encode(9, ["x"], True))
    refused = rig.submit("bad")
    rig.run()
    assert rig.answer(refused).refused[:2] == ["EngineFailure", "The engine could not process this request."]
    assert rig.answer(9).refused[0] == "EngineFailure"
    assert rig.answer(other).text() == "hello"


# --- assisted pipelines


def test_many_ids_of_an_encode_are_no_json():
    """As JSON, a million ids would block the front end's event loop for 60 ms."""
    rig = Rig()
    rig.put(Encode(1, ["a" * 9000, "", "bc"], False))
    rig.turn()
    [[answer]] = rig.transport.frames
    assert (answer.tokens, answer.sizes) == ([], [9000, 0, 2])
    assert answer.data == array("i", list(b"a" * 9000 + b"bc")).tobytes()
    decoded = Decoder().feed(b"".join(attachments([answer])) + encode([answer]))
    assert decoded == [answer]
    assert asyncio.run(unpacked(decoded[0])) == [[97] * 9000, [], [98, 99]]
