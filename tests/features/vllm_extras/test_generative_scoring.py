"""generative_scoring with a scripted engine: prompts, probabilities, errors."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from lean_ovms.features.vllm_extras.api import generative_scoring
from lean_ovms.models import text_model
from lean_ovms.models.generation import CompletedChoice
from lean_ovms.types import TokenLogprob
from tests.api.conftest import MakeApp, post, whole
from tests.fakes import EOS, say

PATH = "/generative_scoring"
ASK: dict[str, Any] = {"query": "Q", "items": ["a", "bc"], "label_token_ids": [5, 6, 7]}


def ask(**fields: Any) -> dict[str, Any]:
    return ASK | fields


@pytest.mark.parametrize("path", [PATH, "/v1" + PATH])
async def test_each_item_has_the_probability_of_the_first_label(make_app: MakeApp, path: str) -> None:
    app, engine = await make_app(lambda *_: say("x", reason="length"), capable=True)
    body = await whole(await post(app, path, ask(request_id="mine")))
    weights = [math.exp(-place / 4) for place in (1, 2, 3)]  # the script's probabilities
    score = pytest.approx(weights[0] / sum(weights))
    assert body.pop("created") > 0
    assert body == {
        "id": "generative-scoring-mine",
        "object": "list",
        "model": "m",
        "data": [{"index": place, "object": "score", "score": score} for place in (0, 1)],
        "usage": {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9},
    }
    [(first, sampling), (second, _)] = engine.submitted
    assert (first, second) == ([EOS, *b"Qa"], [EOS, *b"Qbc"])
    assert (sampling.max_tokens, sampling.temperature, sampling.logprob_token_ids) == (1, 0.0, (5, 6, 7))


async def test_without_softmax_it_is_the_probability_in_the_vocabulary(make_app: MakeApp) -> None:
    app, _ = await make_app(lambda *_: say("x", reason="length"), capable=True)
    body = await whole(await post(app, PATH, ask(apply_softmax=False)))
    assert body["data"][1]["score"] == pytest.approx(math.exp(-0.25))


def test_an_impossible_label_has_no_probability() -> None:
    def choice(*logprobs: float | None) -> CompletedChoice:
        labels = [TokenLogprob(place, "", b"", logprob) for place, logprob in enumerate(logprobs)]
        return CompletedChoice(logprobs=[TokenLogprob(9, "", b"", -1.0, labels)])

    assert generative_scoring._score(choice(None, -1.0), softmax=False) == 0
    assert generative_scoring._score(choice(None, -1.0), softmax=True) == 0
    assert generative_scoring._score(choice(-1.0, None), softmax=True) == 1
    assert generative_scoring._score(choice(None, None), softmax=True) == 0


async def test_prompts_are_joined_as_ids(make_app: MakeApp) -> None:
    app, engine = await make_app(lambda *_: say("x", reason="length"), capable=True)
    fields = {"query": [9, 8], "items": [[1], "b"], "item_first": True, "cache_salt": "s", "model": "m"}
    assert (await post(app, PATH, ask(**fields))).status == 200
    assert [prompt for prompt, _ in engine.submitted] == [[1, 9, 8], [*b"b", 9, 8]]
    assert engine.submitted[0][1].cache_salt == "s"
    await post(app, PATH, ask(query=[1] * 2000, add_special_tokens=False))
    assert len(engine.submitted[-1][0]) == engine.info.context_length - 1


OUTSIDE = "label_token_id 257 is out of vocabulary range [0, 257). Please provide valid token IDs."
WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"items": []}, "items must contain at least one item.", "items"),
    ({"items": ["x"] * 129}, "items has 129 entries, more than this server's limit of 128 (--max_prompts)", "items"),
    ({"items": ["x", 5]}, "items[1] must be a string or an array of token ids", "items[1]"),
    ({"items": [[-1]]}, "items[0][0] is not a token id", "items[0]"),
    ({"items": None}, "items is missing", "items"),
    ({"query": None}, "query must be a string or an array of token ids", "query"),
    ({"query": [], "items": [[1], []]}, "query and items[1] are empty", "items[1]"),
    ({"label_token_ids": []}, "label_token_ids must contain at least one token ID.", "label_token_ids"),
    ({"label_token_ids": None}, "label_token_ids is missing", "label_token_ids"),
    ({"label_token_ids": [1] * 129}, "label_token_ids must have no more than 128 token ids", "label_token_ids"),
    ({"label_token_ids": [1, 257]}, OUTSIDE, "label_token_ids"),
]


async def test_what_is_wrong_is_said(make_app: MakeApp) -> None:
    app, engine = await make_app(capable=True)
    for fields, message, param in WRONG:
        response = await post(app, PATH, ask(**fields))
        error = (await whole(response))["error"]
        assert (response.status, error["message"], error["param"]) == (400, message, param)
    assert engine.submitted == []
    app, _ = await make_app()  # an engine that does not know them
    response = await post(app, PATH, ask())
    error = (await whole(response))["error"]
    assert (response.status, error["code"], "--pipeline_type PAGED" in error["message"]) == (400, "not_supported", True)


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"query": "x" * 11}, "query"), ({"items": ["x" * 6] * 2}, "items"), ({"items": [[1] * 20] * 2}, "items")],
)
async def test_a_text_that_is_too_long_is_named(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], param: str
) -> None:
    app, engine = await make_app(capable=True, max_queued_tokens_per_client=30)
    monkeypatch.setattr(text_model, "MIN_ENCODE_LIMIT", 10)
    engine.info = replace(engine.info, context_length=2) if "x" in str(fields) else engine.info
    response = await post(app, PATH, ask(**fields))
    error = (await whole(response))["error"]
    assert (response.status, error["param"], error["code"]) == (400, param, "context_length_exceeded")
    assert engine.submitted == []


async def test_one_refusal_closes_the_others(make_app: MakeApp) -> None:
    app, engine = await make_app(lambda *_: [], capable=True)
    response = await post(app, PATH, ask(items=["a", [300]]))
    assert response.status == 400
    assert len(engine.cancelled) == len(engine.submitted) == 1
    assert not engine.mail.busy
