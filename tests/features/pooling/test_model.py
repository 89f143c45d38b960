"""A pooling model in the front end: what it rejects, sends, counts and cancels. Its engine is a fake child."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

from lean_ovms.composition import compose
from lean_ovms.config import Config
from lean_ovms.engine.protocol import FrameError
from lean_ovms.errors import BadRequest, RequestTimeout
from lean_ovms.features.metrics.counts import PrometheusMetrics
from lean_ovms.features.pooling.child.inputs import with_images
from lean_ovms.features.pooling.model import PooledOutputs, PoolingModel, pool_record
from lean_ovms.features.pooling.records import PooledPart
from lean_ovms.features.pooling.types import IN_PROMPT, PooledOutput, PoolingParams, TextWithImages
from lean_ovms.models.model import make_model
from lean_ovms.observability.records import RequestRecord, current_record
from lean_ovms.types import Image
from tests.waiting import cancel

PARAMS = PoolingParams()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def model() -> AsyncIterator[PoolingModel]:
    made = make_model(Config(fake_engine=True, task="embeddings", model_name="e"))
    assert isinstance(made, PoolingModel)
    await made.load()
    yield made
    await made.stop()


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_outputs_come_in_the_order_of_the_inputs(model: PoolingModel) -> None:
    found = await model.pool(["b" * 90, "a", [97], "a"], PARAMS)
    assert [(one.rows, one.width, one.tokens) for one in found] == [(1, 16, 92), (1, 16, 3), (1, 16, 1), (1, 16, 3)]
    assert found[1].data == found[3].data != found[2].data
    assert len(found[0].values) == 16
    assert await model.pool([], PARAMS) == []


async def test_a_request_is_recorded_and_counted(model: PoolingModel) -> None:
    record = RequestRecord(request_id="r", method="POST", path="/", peer="", started=0.0)
    token, before = current_record.set(record), model.metrics
    metrics = model.metrics = PrometheusMetrics(compose().metrics)
    try:
        await model.pool(["a", "bc"], PARAMS)
        with pytest.raises(BadRequest):
            await model.pool([[-1]], PARAMS)
    finally:
        current_record.reset(token)
        model.metrics = before
    assert [(one.prompt_tokens, one.finish_reasons) for one in record.generations] == [(7, ("stop",)), (0, ("error",))]
    assert b'vllm:prompt_tokens_total{model_name="e"} 7' in metrics.expose()


async def test_text_that_cannot_fit_is_refused_before_it_is_tokenized(model: PoolingModel) -> None:
    limit = model.pooling.window * model.engine.vocabulary.longest
    with pytest.raises(BadRequest, match=f"prompt characters: {limit + 1} exceeds"):
        await model.pool(["x" * (limit + 1)], PARAMS)
    [one] = await model.pool(["x" * (limit + 1)], PoolingParams(truncate=-1))
    assert one.tokens == model.pooling.window
    with pytest.raises(BadRequest, match="cannot be passed"):
        await model.pool(["\ud800"], PARAMS)
    text = "x" * 500 * model.engine.vocabulary.longest
    with pytest.raises(BadRequest, match="characters, too many for 300000 tokens"):
        await model.pool([text] * (model.options.max_pooling_tokens // 500 + 1), PARAMS)


async def test_an_instruction_counts_once_for_each_pair(model: PoolingModel) -> None:
    """A generating reranker reads it in the prompt of each pair, so a long one takes the memory of as many."""
    pairs = [("a", "b")] * 3000
    model._own_pooling = model.info, replace(model.own_pooling, pair=IN_PROMPT)
    try:
        with pytest.raises(BadRequest, match="characters, too many for 300000 tokens"):
            await model.pool(pairs, PoolingParams(instruction="x" * 101 * model.engine.vocabulary.longest))
    finally:
        model._own_pooling = None


async def test_a_request_has_a_time_limit(model: PoolingModel, monkeypatch: pytest.MonkeyPatch) -> None:
    cancelled = asyncio.Event()

    async def never(*asked: Any) -> Any:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    monkeypatch.setattr(model, "config", model.config.replace(request_timeout_s=0.001))
    monkeypatch.setattr(PoolingModel, "_compute", never)
    with pytest.raises(RequestTimeout):
        await model.pool(["x"], PARAMS)
    assert cancelled.is_set()


async def test_a_cancelled_request_is_cancelled_in_the_engine(model: PoolingModel) -> None:
    work = asyncio.ensure_future(model.pool(["x" * 400] * 2000, PARAMS))
    while not model.engine.busy:
        await asyncio.sleep(0.001)
    await cancel(work)
    assert not model.engine.busy
    assert (await model.pool(["next"], PARAMS))[0].tokens == 6
    assert (await model.stats()).queued == 0


# --- results


def part(*indices: int) -> PooledPart:
    count = len(indices)
    return PooledPart(1, list(indices), [2] * count, [1] * count, 1, bytes(4 * count))


async def test_results_of_several_records_are_one_list_and_what_does_not_fit_is_a_broken_child() -> None:
    results = PooledOutputs(3)
    results.add(part(2))
    with pytest.raises(FrameError):  # some fields are missing
        results.all()
    results.add(part(0, 1))
    assert results.all() == [PooledOutput(bytes(4), 1, 1, 2)] * 3
    for wrong in (part(3), part(0, 0), PooledPart(1, [0], [1], [1], 9, b""), part(-1)):
        with pytest.raises(FrameError):
            PooledOutputs(3).add(wrong)


async def test_a_query_that_all_pairs_share_is_sent_once() -> None:
    assert pool_record(1, [("q", "a"), ("q", "b")], PARAMS).queries == ["q"]
    assert pool_record(1, [("q", "a"), ([1], "b")], PARAMS).queries == ["q", [1]]
    record: Any = pool_record(1, ["a", [1, 2]], PARAMS)
    assert (record.inputs, record.queries) == (["a", [1, 2]], [])


async def test_the_pixels_of_an_image_that_several_texts_have_are_sent_once() -> None:
    images = [Image(1, 1, b"abc", "x", "a"), Image(1, 1, b"def", "y", "b"), Image(1, 1, b"abc", "z", "a")]
    inputs = [TextWithImages("1", (images[0],)), TextWithImages("2", (images[1], images[2]))]
    record = pool_record(1, inputs, PARAMS)
    assert record.pixels == [b"abc", b"def", b""]
    found = with_images(record)
    assert [replace(image, digest="") for one in found for image in one.images] == [  # type: ignore[union-attr]
        replace(image, digest="") for image in images
    ]
