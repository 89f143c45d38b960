"""The pooling task: every request has exactly one outcome, whatever else is in its batch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from lean_ovms.config import Config
from lean_ovms.engine.protocol import Decode, Decoded, Encode, Encoded, Ping, Pong
from lean_ovms.errors import BadRequest
from lean_ovms.features.pooling.child import task as task_module
from lean_ovms.features.pooling.child.fake_pooler import FakePooler, _info
from lean_ovms.features.pooling.child.model import ImagesAlone
from lean_ovms.features.pooling.child.network import PaddedLength
from lean_ovms.features.pooling.child.queue import QueuedPooling, QueuedText, TextQueue
from lean_ovms.features.pooling.feature import PoolingOptions
from lean_ovms.features.pooling.records import Pooled
from lean_ovms.features.pooling.types import PER_TOKEN, PoolingParams, TextWithImages
from lean_ovms.media.pixels import SquareProcessor
from lean_ovms.types import Image
from tests.features.pooling.child.rig import LIMITS, Rig, texts, with_info


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_equal_texts_get_equal_vectors_in_any_batch(rig: Rig) -> None:
    [alone] = rig.ask("hello")
    many = rig.ask(*texts(40), "hello", *texts(3, 200))
    assert np.array_equal(many[40], alone)
    assert alone.shape == (1, 16)
    assert np.linalg.norm(alone) == pytest.approx(1)


def test_requests_that_wait_share_a_batch(rig: Rig) -> None:
    numbers = [rig.submit(text) for text in texts(8)]
    rig.run()
    assert rig.shapes == [(8, 32)]
    assert all(len(rig.rows(number)) == 1 for number in numbers)
    assert len(rig.transport.frames) == 1  # one frame, and so one wake-up, for all


def test_one_text_passes_a_long_list_of_another_request(rig: Rig) -> None:
    rig.submit(*texts(600, 100))
    rig.turn(3)
    short = rig.submit("hello")
    rig.turn(1)
    assert short in rig.batches[-1]
    rig.run()
    assert rig.results(short)[0].indices == [0]


def test_an_image_is_a_batch_of_its_own_and_counts_as_many_tokens() -> None:
    pooler = with_info(FakePooler(Config(fake_engine=True, task="embeddings")), images="alone")
    pooler.vision = ImagesAlone(SquareProcessor.read({"size": {"height": 8, "width": 8}, "do_normalize": False}))
    rig = Rig(pooler=pooler)
    image = TextWithImages("<ov_genai_image_0>", (Image(2, 2, bytes(12)),))
    pictures = rig.submit(image, "a text", image)
    others = [rig.submit(text) for text in texts(3, 100)]
    rig.run()
    assert rig.batches == [others, [pictures], [pictures], [pictures]]
    assert rig.tokens(pictures) == [1, 8, 1]
    assert rig.stats().queued == 0


def test_the_tokens_of_prompts_are_left_out_of_the_pooled_ones(rig: Rig) -> None:
    masks: list[Any] = []
    inner = rig.pooler.start
    rig.pooler.start = lambda batch, alone: (masks.append((batch.mask, batch.pooled)), inner(batch, alone))
    with_prompt, without = rig.submit("q: one", "q: two", unpooled="q: "), rig.submit("three")
    rig.run()
    [(mask, pooled)] = masks
    assert rig.batches == [[without, with_prompt, with_prompt]]
    assert (mask.sum(1) - pooled.sum(1)).tolist() == [0, 4, 4]  # <bos> and the three bytes of the prompt
    assert [row.tolist().index(1) for row in pooled] == [0, 4, 4]
    rig.ask("q: one", unpooled="q: ", add_special_tokens=False)
    assert masks[-1][1][0].tolist().index(1) == 3
    rig.ask("three")
    assert masks[-1][1] is None


def test_lower_priorities_go_first_and_nobody_starves(rig: Rig) -> None:
    patient = rig.submit(*texts(30, 100), priority=5)
    urgent = rig.submit(*texts(300, 100), priority=-5)
    rig.run()
    order = [set(batch) for batch in rig.batches]
    assert order[0] == {urgent}
    assert any(patient in batch for batch in order[:4])


def test_a_short_text_goes_along_with_longer_ones_of_other_small_requests(rig: Rig) -> None:
    urgent = rig.submit("short", priority=-1)
    for text in texts(15, 25):
        rig.submit(text)
    rig.run()
    assert rig.shapes == [(16, 32)]
    assert urgent in rig.batches[0]


def test_an_urgent_short_text_does_not_wait_for_long_documents_of_a_list(rig: Rig) -> None:
    rig.submit(*texts(100, 400), priority=1)
    rig.turn(1)
    before = len(rig.shapes)
    short = rig.submit("short")
    rig.run()
    batch = next(number for number, requests in enumerate(rig.batches) if short in requests)
    assert batch <= before + 1
    assert rig.shapes[batch] == (1, 16)


def test_batches_that_are_computed_at_once_are_half_as_large_at_most() -> None:
    rig = Rig(num_streams=2)
    rig.submit(*["x" * 30] * 80)
    rig.run()
    assert max(rows * size for rows, size in rig.shapes) == LIMITS.of(PoolingOptions).pooling_batch_tokens // 2


def test_batches_may_end_in_another_order_than_they_began() -> None:
    pooler = FakePooler(Config(fake_engine=True, task="embeddings", num_streams=3))
    wait = pooler.wait

    def last_first() -> Any:
        pooler._started.rotate(1)
        return wait()

    pooler.wait = last_first  # type: ignore[method-assign]
    rig = Rig(pooler=pooler)
    texts = ["one", "two " * 8, "three " * 12]
    numbers = [rig.submit(text) for text in texts]
    rig.run()
    for number, text in zip(numbers, texts, strict=True):
        assert np.array_equal(rig.rows(number)[0], Rig().ask(text)[0])


@pytest.mark.parametrize(
    ("needed", "chosen"),
    [
        ([16, 32, 16, 32, 16, 32], [16, 32, 32, 32, 32, 32]),
        ([48, 32, 32, 32, 16], [48, 48, 48, 32, 32]),
        ([512, 16, 512], [512, 16, 512]),
    ],
)
def test_padding_of_lone_texts_costs_no_more_than_the_change(needed: list[int], chosen: list[int]) -> None:
    lengths = PaddedLength()
    assert [lengths.size(one) for one in needed] == chosen


def test_a_cancelled_request_is_forgotten_wherever_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_module, "TURN_CHARACTERS", 3000)
    rig = Rig()
    waiting, arriving, other = rig.submit(*texts(60)), rig.submit(*texts(400)), rig.submit("other")
    rig.turn(1)
    done = len(rig.results(waiting))
    rig.cancel(waiting)
    rig.cancel(arriving)
    rig.cancel(99)
    rig.run()
    assert len(rig.results(waiting)) == done
    assert rig.results(arriving) == []
    assert len(rig.rows(other)) == 1
    assert (rig.stats().queued, rig.stats().running, rig.task.queue.padded_tokens) == (0, 0, 0)


def test_many_texts_are_tokenized_over_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_module, "TURN_CHARACTERS", 200)
    rig = Rig()
    number = rig.submit(*texts(30))
    rig.turn(1)
    assert rig.results() == []
    assert rig.stats().queued == 30
    rig.run()
    assert len(rig.rows(number)) == 30


# --- refusals, before anything is computed


@pytest.mark.parametrize(
    ("inputs", "params", "message"),
    [
        (["ok", [1, 266]], {}, "Token id 266 is out of vocabulary: ids are from 0 to 265"),
        ([[5, -1]], {}, "Token id -1 is out of vocabulary"),
        ([[1 << 62]], {}, f"Token id {1 << 62} is out of vocabulary"),
        (["ok", []], {}, "The input has no tokens"),
        ([""], {"add_special_tokens": False}, "The input has no tokens"),
        (["ok", "x" * 511], {}, "Input length 513 longer than allowed 512. This model's maximum context"),
        (["x"], {"truncate": 2},
         "The input has 2 tokens that cannot be cut, which leaves no room for its text within 2 tokens"),
        ([("a", "b")], {}, "reads single inputs, not pairs"),
        (["\ud800"], {}, "not valid Unicode"),
    ],
)  # fmt: skip
def test_a_wrong_input_refuses_its_whole_request_and_no_other(
    inputs: list[Any], params: dict[str, Any], message: str, rig: Rig
) -> None:
    wrong, right = rig.submit(*inputs, **params), rig.submit("right")
    rig.run()
    assert message in rig.error(wrong)
    assert rig.results(wrong) == []
    assert len(rig.rows(right)) == 1 or "Unicode" in message  # the pipe cannot transport such text


def test_a_text_that_cannot_be_tokenized_refuses_no_other_request(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    tokenize = rig.pooler.tokenize

    def fails(texts: list[str]) -> list[list[int]]:
        if "wrong" in texts:
            raise BadRequest("not a text")
        return tokenize(texts)

    monkeypatch.setattr(rig.pooler, "tokenize", fails)
    numbers = [rig.submit(*inputs) for inputs in (["a", "bc"], ["d", "wrong"], ["efg"])]
    rig.run()
    assert [len(rig.rows(number)) for number in numbers] == [2, 0, 1]
    assert rig.error(numbers[1]) == "not a text"
    assert rig.tokens(numbers[0]) == [3, 4]


def finished(rig: Rig) -> list[int]:
    """Runs all requests, and returns their ids in the order in which they end."""
    rig.run()
    return [record.id for record in rig.records(Pooled)]


def test_clients_share_the_model_whatever_the_number_of_their_requests() -> None:
    rig = Rig()
    many = [rig.submit(*texts(60, 100), client="a") for _ in range(10)]
    one = rig.submit(*texts(60, 100), client="b")
    assert finished(rig).index(one) <= 2
    rows = {number for batch in rig.batches[: len(rig.batches) // 4] for number in batch}
    assert len(rows) > 2  # the requests of one client take turns, too
    assert [len(rig.rows(number)) for number in many] == [60] * 10


@pytest.mark.parametrize("across", [False, True])
def test_priority_is_that_of_one_clients_requests_unless_the_operator_wants_it(across: bool) -> None:
    rig = Rig(limits=LIMITS.replace(priority_across_clients=across))
    for _ in range(6):
        rig.submit(*texts(60, 100), client="a", priority=-5)
    late, soon = (rig.submit(*texts(60, 100), client="b", priority=priority) for priority in (9, 3))
    order = finished(rig)
    assert order.index(soon) < order.index(late)
    assert (order.index(soon) >= 5) == across


def test_a_client_may_have_some_of_the_requests_that_wait() -> None:
    rig = Rig(limits=LIMITS.replace(max_queued_requests=6, max_queued_requests_per_client=3))
    numbers = [rig.submit("x", client=client) for client in "aaaabb"]
    rig.run()
    assert "3 requests of this client are already waiting" in rig.error(numbers[3])
    assert [len(rig.rows(number)) for number in numbers] == [1, 1, 1, 0, 1, 1]
    encodes = [rig.next_id() for _ in range(5)]
    for number in encodes:
        rig.put(Encode(number, ["x"], False, "a"))
    last = rig.submit("x", client="b")
    rig.run()
    assert [record.id for record in rig.records(Encoded)] == encodes[:3]
    assert "3 requests of this client are already waiting" in rig.error(encodes[4])
    assert len(rig.rows(last)) == 1


def test_texts_of_clients_are_tokenized_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_module, "TURN_CHARACTERS", 100)
    rig = Rig()
    long = [rig.submit("x" * 400, client="a", priority=-1) for _ in range(4)]
    other = rig.submit("y" * 410, client="b")
    assert finished(rig).index(other) <= 1
    assert len(rig.task._admitted) <= 1  # nobody is remembered who has gone
    assert [len(rig.rows(number)) for number in long] == [1] * 4


def test_any_error_of_a_batch_ends_only_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    start = rig.pooler.start

    def fails(batch: Any, alone: bool) -> None:
        if 120 in batch.ids:  # an "x"
            raise MemoryError("an image that does not fit")
        start(batch, alone)

    monkeypatch.setattr(rig.pooler, "start", fails)
    wrong, right = rig.submit("x"), rig.submit("a", "b")
    rig.run()
    assert rig.error(wrong) == "The engine could not process this request."
    assert len(rig.rows(right)) == 2


def test_the_numbers_of_all_vectors_of_tokens_and_of_sparse_ones_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_module, "MOST_NUMBERS", 160)
    rig = Rig()
    right = [rig.submit(*["a"] * 11), rig.submit("a" * 8, output=PER_TOKEN)]
    wrong = rig.submit("a" * 9, output=PER_TOKEN)
    rig.run()
    assert [len(rig.rows(number)) for number in right] == [11, 1]
    assert rig.error(wrong) == "the results together have 176 numbers, more than the limit of 160"
    rig = Rig(pooling="SPLADE")
    numbers = [rig.submit(*["a"] * count) for count in (10, 11)]
    rig.run()
    assert len(rig.rows(numbers[0])) == 10
    assert rig.error(numbers[1]) == "the results together have 176 numbers, more than the limit of 160"


def test_a_request_has_a_limit_of_tokens_and_the_queue_one_of_requests() -> None:
    rig = Rig(limits=Config(max_queued_requests=2, max_pooling_tokens=100, pooling_batch_tokens=64))
    assert rig.ask(*texts(4)) is not None
    large = rig.submit(*texts(5))
    rig.run()
    assert "110 tokens, more than this server's limit of 100" in rig.error(large)
    numbers = [rig.submit("x") for _ in range(3)]
    rig.run()
    assert "2 requests are already waiting" in rig.error(numbers[2])
    assert [len(rig.rows(number)) for number in numbers] == [1, 1, 0]


# --- failures


def test_a_batch_that_fails_is_computed_again_request_by_request(rig: Rig) -> None:
    good, bad, other = rig.submit("good"), rig.submit("<|raise|>"), rig.submit("other")
    rig.run()
    assert len(rig.rows(good)) == len(rig.rows(other)) == 1
    assert rig.error(bad) == "The engine could not process this request."
    assert rig.stats().recoveries == 2


def test_after_a_failed_batch_a_client_has_one_share_and_pays_for_each_text_once() -> None:
    queue = TextQueue(1024)

    def add(number: int, client: str) -> QueuedPooling:
        request = QueuedPooling(number, PoolingParams(), 1, client)
        queue.add(request, [QueuedText(request, 0, [1] * 10)])
        return request

    first, others = add(1, "a"), add(2, "b")
    batch = queue.next_batch()
    later = add(3, "a")
    assert later.share is not first.share
    for item in batch:
        queue.restore(item)
    assert first.share is later.share
    assert (first.charged, first.share.charged, others.share.charged) == (0, 0, 0)
    assert sorted(item.request.id for item in queue.next_batch()) == [1, 2, 3]
    assert (first.share.charged, others.share.charged) == (20, 10)
    assert (queue.waiting, queue.padded_tokens) == (0, 0)


@pytest.mark.parametrize(
    ("task", "value"),
    [("embeddings", math.nan), ("rerank", math.inf), ("classify", -math.inf), ("token_classify", math.nan)],
)
def test_what_is_not_a_number_is_an_error_and_never_sent(task: str, value: float) -> None:
    pooler = FakePooler(Config(fake_engine=True, task=task))
    wait = pooler.wait

    def broken() -> Any:
        batch, output = wait()
        output[0, ..., 0] = value
        return batch, output

    pooler.wait = broken  # type: ignore[method-assign]
    rig = Rig(task, pooler=pooler)
    asked = [("a", "b"), ("c", "d")] if task == "rerank" else ["a", "b"]
    first, second = map(rig.submit, asked)
    rig.run()
    assert "not a number" in rig.error(first)
    assert len(rig.rows(second)) == 1


def test_long_vectors_have_the_length_1_too() -> None:
    rows = np.array([[3e30, 4e30], [3, 4], [0, 0]], np.float32)
    found = task_module.finished(rows, _info(Config(task="embeddings")), PoolingParams())
    assert np.allclose(found, [[0.6, 0.8], [0.6, 0.8], [0, 0]])


# --- kinds of results


def test_a_row_for_each_token_does_not_share_a_batch_with_pooled_texts(rig: Rig) -> None:
    tokens, pooled = rig.submit("hello", output=PER_TOKEN), rig.submit("hello")
    rig.run()
    assert rig.rows(tokens)[0].shape == (7, 16)
    assert rig.rows(pooled)[0].shape == (1, 16)
    assert np.allclose(np.linalg.norm(rig.rows(tokens)[0], axis=1), 1)
    assert len(rig.shapes) == 2


def test_pairs_share_one_query_and_get_the_template() -> None:
    rig = Rig("rerank")
    number = rig.submit(("abc", "xabcx"), ("abc", "zz"), ("abc", [*b"cab"]))
    rig.run()
    scores = [float(rows[0, 0]) for rows in rig.rows(number)]
    assert scores[0] == scores[2] > 0.99 > 0.01 > scores[1]
    assert rig.tokens(number) == [1 + 3 + 1 + 5 + 1, 8, 9]
    assert float(rig.ask(("abc", "zz"), activation=False)[0][0, 0]) == -6


@pytest.mark.parametrize(
    ("query", "document", "options", "kept"),
    [
        ("abc", "x" * 600, {"truncate": -1}, (b"abc", b"x" * (512 - 6))),
        ("q" * 600, "x", {"truncate": -1}, (b"q" * (512 - 4), b"x")),
        ("abc", "uvwxyz" * 9, {"truncate": 10}, (b"abc", b"uvwx")),
        ("abc", "uvwxyz" * 9, {"truncate": 10, "truncation_side": "left"}, (b"abc", b"wxyz")),
        ("abcdef", "uvwxyz", {"truncate": 10}, (b"abc", b"uvwx")),
        ("abcdefg", "uvwxyz", {"truncate": 10}, (b"abcd", b"uvw")),
        ("abcdefg", "uvwxyz", {"truncate": 10, "truncation_side": "left"}, (b"defg", b"xyz")),
        ("abc", "uvw", {"truncate": 4}, (b"", b"u")),
    ],
)
def test_of_a_pair_the_longer_text_is_cut_and_beyond_half_both(
    query: str, document: str, options: dict[str, Any], kept: tuple[bytes, bytes]
) -> None:
    """This is longest_first of transformers, as in vLLM. With truncation, a query of 600 tokens is no error."""
    rig = Rig("rerank")
    rig.ask((query, document), **options)
    assert rig.first_ids == [[257, *kept[0], 262, *kept[1], 256]]


def test_two_outputs_make_one_score() -> None:
    info = {"kind": "score", "outputs": 2}
    for activation, expected in (
        ("softmax", lambda row: np.exp(row[1]) / np.exp(row[:2]).sum()),
        ("sigmoid", lambda row: 1 / (1 + np.exp(-row[1]))),
        ("none", lambda row: row[1]),
    ):
        pooler = FakePooler(Config(fake_engine=True, task="classify"))
        [logits] = Rig(pooler=pooler).ask("text", activation=False)
        rig = Rig(
            pooler=with_info(FakePooler(Config(fake_engine=True, task="classify")), **info, activation=activation)
        )
        rig.pooler._output = lambda batch, row=logits: np.repeat(row[:, :2], len(batch.ids), 0)
        assert np.allclose(rig.ask("text")[0], expected(logits[0]))
        assert np.allclose(rig.ask("text", activation=False)[0], logits[0, 1])


# --- tokens


def test_tokens_and_text_and_counts(rig: Rig) -> None:
    rig.put(Encode(7, ["hi", ""], True), Encode(8, ["hi"], False), Decode(9, [257, *b"hi"], True), Ping(10))
    rig.put(Decode(11, [9999], True))
    rig.run()
    rig.turn(0)
    assert rig.records(Encoded, 7)[0].tokens == [[257, *b"hi", 256], [257, 256]]
    assert rig.records(Encoded, 8)[0].tokens == [[*b"hi"]]
    assert [r.text for r in rig.records(Decoded)] == ["hi"]
    assert rig.records(Pong)[0].stats["queued"] == 0
    assert "is out of vocabulary: ids are from 0 to" in rig.error(11)
    with pytest.raises(AssertionError, match="waits"):
        rig.turn()
