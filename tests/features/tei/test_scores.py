"""text-embeddings-inference's /similarity and /predict."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.api.conftest import MakePooling, ask
from tests.features.tei.test_api import refused


async def test_similarities_are_cosines(make_pooling: MakePooling) -> None:
    app, engine = await make_pooling()
    parameters = {"truncate": True, "truncation_direction": "Left", "prompt_name": "query"}
    inputs = {"source_sentence": "a", "sentences": ["a", "bc", "xyz"]}
    found = await ask(app, "/similarity", inputs=inputs, parameters=parameters)
    texts, params = engine.asked[-1]
    assert texts == ["query: a", "query: a", "query: bc", "query: xyz"]
    assert (params.truncate, params.truncation_side) == (-1, "left")
    same = await ask(app, "/embed", inputs=["a", "bc", "xyz"], prompt_name="query", normalize=True)
    vectors = np.array(same)
    assert found == pytest.approx((vectors @ vectors[0]).tolist(), rel=1e-5)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "inputs field"),
        ({"inputs": {"sentences": ["a"]}}, "inputs.source_sentence"),
        ({"inputs": {"source_sentence": "a", "sentences": []}}, "inputs.sentences"),
        ({"inputs": {"source_sentence": "a", "sentences": [1]}}, "inputs.sentences"),
        (
            {"inputs": {"source_sentence": "a", "sentences": ["b"]}, "parameters": {"truncate": 1}},
            "parameters.truncate",
        ),
    ],
)
async def test_what_cannot_be_compared_is_refused(make_pooling: MakePooling, fields: Any, param: str) -> None:
    app, engine = await make_pooling()
    assert (await refused(app, "/similarity", **fields)).startswith(param)
    assert engine.asked == []


async def test_predictions_begin_with_the_likeliest(make_pooling: MakePooling) -> None:
    app, engine = await make_pooling("classify")
    for raw in (False, True):
        [item] = (await ask(app, "/classify", input="abc", use_activation=not raw))["data"]
        pairs = zip(item["probs"], ["negative", "neutral", "positive"], strict=True)
        wanted = [{"score": pytest.approx(score, rel=1e-5), "label": label} for score, label in sorted(pairs)[::-1]]
        assert await ask(app, "/predict", inputs="abc", raw_scores=raw) == wanted
        assert await ask(app, "/predict", inputs=["abc"], raw_scores=raw) == wanted
        assert await ask(app, "/predict", inputs=[["abc"], ["abc"]], raw_scores=raw) == [wanted, wanted]
    engine.describe(labels=[])
    assert {one["label"] for one in await ask(app, "/predict", inputs="abc")} == {"LABEL_0", "LABEL_1", "LABEL_2"}


async def test_pairs_have_predictions_of_their_own(make_pooling: MakePooling) -> None:
    app, engine = await make_pooling("classify")
    pair, single = await ask(app, "/predict", inputs=["abc", "de"]), await ask(app, "/predict", inputs="abc")
    assert engine.asked[-2][0] == [("abc", "de")]
    assert pair != single
    assert await ask(app, "/predict", inputs=[["abc", "de"], ["abc"]]) == [pair, single]
    engine.describe(pair="")
    assert "not pairs" in await refused(app, "/predict", inputs=["abc", "de"])


@pytest.mark.parametrize(
    ("inputs", "why"),
    [
        (None, "inputs field is required"),
        (["a", "b", "c"], "inputs must be a string"),
        ([["a", "b", "c"]], "inputs must be a string"),
        ([["a"], 1], "inputs must be a string"),
        ([], "inputs must be a string"),
        ([[]], "inputs must be a string"),
    ],
)
async def test_inputs_of_other_forms_are_refused(make_pooling: MakePooling, inputs: Any, why: str) -> None:
    app, engine = await make_pooling("classify")
    assert why in await refused(app, "/predict", inputs=inputs)
    assert engine.asked == []
