"""decisions with a scripted engine: prompts, answers in the types of OpenAI's client, errors."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.api.conftest import MakeApp, post, whole
from tests.fakes import say

PATH = "/v1/decisions"
YES = {"type": "predicate", "name": "spam", "instructions": "Is it spam?"}
CHOICES = [{"value": "ham", "description": "welcome"}, {"value": True}, {"value": "true"}]
CHOICE = {"type": "choice", "instructions": "What is it?", "choices": CHOICES}
LEVELS = [{"label": "low"}, {"label": "high", "description": "at once"}]
SCORE = {"type": "score", "instructions": [{"type": "input_text", "text": "How urgent?"}], "levels": LEVELS}
TOLD = [math.exp(-place / 4) for place in (1, 2, 3)]
"""The probabilities of A, B and C according to the script."""


def ask(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "input": "Buy now!", "questions": [YES], **fields}


def script(*_: Any) -> Any:
    return say("x", reason="length")


async def test_each_question_is_answered_with_probabilities(make_app: MakeApp) -> None:
    app, engine = await make_app(script, capable=True)
    body = await whole(await post(app, PATH, ask(questions=[YES, CHOICE, SCORE], cache_salt="s")))
    two, three = (TOLD[0] / sum(TOLD[:2]), TOLD[1] / sum(TOLD[:2])), [chance / sum(TOLD) for chance in TOLD]
    assert body["answers"] == [
        {"type": "predicate", "name": "spam", "probability": pytest.approx(two[0])},
        {
            "type": "choice",
            "name": None,
            "choice": "ham",
            "probabilities": [
                {"value": value, "probability": pytest.approx(p)}
                for value, p in zip(("ham", True, "true"), three, strict=True)
            ],
            "confidence": pytest.approx(TOLD[0]),
        },
        {
            "type": "score",
            "name": None,
            "score": pytest.approx(two[1]),
            "probabilities": [
                {"value": place, "label": label, "probability": pytest.approx(p)}
                for place, (label, p) in enumerate(zip(("low", "high"), two, strict=True))
            ],
            "confidence": pytest.approx(TOLD[0]),
        },
    ]
    assert body["usage"]["output_tokens"] == 3
    assert body["usage"]["total_tokens"] == sum(len(prompt) for prompt, _ in engine.submitted) + 3
    first, sampling = engine.submitted[0]
    assert first.startswith("user:Buy now!\n\nQuestion: Is it spam?\nA: true\nB: false\nAnswer with the letter")
    assert (sampling.max_tokens, sampling.logprob_token_ids, sampling.cache_salt) == (1, (65, 66, 67), "s")
    assert 'A: "ham" - welcome\nB: true\nC: "true"\n' in engine.submitted[1][0]
    assert "How urgent?\nA: low\nB: high - at once\n" in engine.submitted[2][0]


async def test_a_conversation_is_judged_from_outside(make_app: MakeApp) -> None:
    app, engine = await make_app(script, capable=True)
    talk = [
        {"role": "user", "content": [{"type": "input_json", "data": {"a": 1}}]},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "42"},
    ]
    assert (await post(app, PATH, ask(input=talk))).status == 200
    assert engine.submitted[0][0].startswith(
        'user:user:\n{"a":1}\n\nassistant:\nNo.\n\ncall of f:\n{}\n\noutput of the call:\n42\n\n\n\nQuestion: '
    )
    assert (await post(app, PATH, ask(input=talk[:1]))).status == 200
    assert engine.submitted[1][0].startswith('user:{"a":1}\n\nQuestion: ')


WHAT_IS_WRONG_IS_NAMED: list[tuple[Any, ...]] = [
    ({"input": None}, "input"),
    ({"input": ""}, "input"),
    ({"input": []}, "input"),
    (
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,x"}]}]},
        "input",
    ),
    ({"input": [{"type": "reasoning", "summary": []}, {"role": "user", "content": "x"}]}, "input"),
    ({"input": [{"role": "user", "content": [{"type": "input_json", "data": 1}]}]}, "input[0].content[0].data"),
    ({"questions": None}, "questions"),
    ({"questions": []}, "questions"),
    ({"questions": [YES] * 129}, "questions"),
    ({"questions": [1]}, "questions[0]"),
    ({"questions": [YES | {"type": "guess"}]}, "questions[0].type"),
    ({"questions": [YES | {"name": 1}]}, "questions[0].name"),
    ({"questions": [YES | {"instructions": ""}]}, "questions[0].instructions"),
    ({"questions": [CHOICE | {"choices": CHOICES[:1]}]}, "questions[0].choices"),
    ({"questions": [CHOICE | {"choices": [CHOICES[1]] * 2}]}, "questions[0].choices"),
    ({"questions": [CHOICE | {"choices": [{"value": str(n)} for n in range(27)]}]}, "questions[0].choices"),
    ({"questions": [SCORE | {"levels": [{"label": True}, {"label": "x"}]}]}, "questions[0].levels[0].label"),
    ({"questions": [SCORE | {"levels": [{"label": "x", "description": 1}] * 2}]}, "questions[0].levels[0].description"),
]


@pytest.mark.slow
async def test_an_answer_has_the_types_of_openais_client(make_app: MakeApp) -> None:
    from openai.types import Decision  # the import takes half a second

    app, _ = await make_app(script, capable=True)
    body = await whole(await post(app, PATH, ask(questions=[YES, CHOICE, SCORE])))
    Decision.model_validate(body, strict=True)


async def test_what_is_wrong_is_named(make_app: MakeApp) -> None:
    app, engine = await make_app(script, capable=True)
    for fields, param in WHAT_IS_WRONG_IS_NAMED:
        response = await post(app, PATH, ask(**fields))
        assert response.status == 400, fields
        assert (await whole(response))["error"]["param"] == param, fields
        assert engine.submitted == [], fields


async def test_an_engine_without_alternatives_says_so(make_app: MakeApp) -> None:
    app, _ = await make_app(script)
    response = await post(app, PATH, ask())
    assert response.status == 400
    assert "--pipeline_type PAGED" in (await whole(response))["error"]["message"]
