"""vLLM's structured decisions with a scripted engine: prompts, answers, errors."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from lean_ovms.features.media_files.images.decoder_pool import DecoderPool
from lean_ovms.types import Image
from tests.api.conftest import MakeApp, post, whole
from tests.fakes import FakeEngine, say

PATH = "/v1/systemone"
SPAM = {"type": "noul", "instructions": "Is it spam?", "criteria": {"true": "unwanted", "false": None}}
KIND = {"type": "choice", "instructions": "What is it?", "criteria": {"ham": "welcome", "news": None}}
URGENCY = {"type": "score", "criteria": ["low", "high"]}
PICTURE = "data:image/png;base64,iVBORw0KGgo="
IMAGE = {"type": "image_url", "image_url": {"url": PICTURE}}
WORDS = {"yes": 1, "no": 2}
"""Tokens of the scripted engine for labels of more than one character."""


def script(*_: Any) -> Any:
    return say("0", reason="length")


def ask(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "state": "Buy now!", "questions": {"spam": SPAM}, **fields}


def teach_words(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    async def encode(texts: list[str], *_: Any) -> list[list[int]]:
        ends = [next((word for word in WORDS if text.endswith(word)), "") for text in texts]
        return [
            [*text.removesuffix(end).encode(), *([WORDS[end]] if end else [])]
            for text, end in zip(texts, ends, strict=True)
        ]

    monkeypatch.setattr(engine, "encode", encode)


async def test_each_question_is_answered_by_its_name(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    app, engine = await make_app(script, capable=True)
    teach_words(engine, monkeypatch)
    questions = {"spam": SPAM, "kind": KIND, "urgency": URGENCY}
    response = await post(app, PATH, ask(questions=questions, instructions="Be strict.", request_id="r", priority=3))
    body = await whole(response)
    assert response.status == 200, body
    told = [math.exp(-place / 4) for place in range(1, 7)]  # of yes, no, A, B, 0 and 1
    shares = [one / sum(told[start : start + 2]) for start in (0, 2, 4) for one in told[start : start + 2]]
    near = [pytest.approx(share) for share in shares]
    assert body["answers"] == {
        "spam": {
            "type": "noul",
            "noul": near[0],
            "probabilities": {"yes": near[0], "no": near[1]},
            "confidence": pytest.approx(told[0]),
        },
        "kind": {
            "type": "choice",
            "choice": "ham",
            "probabilities": {"ham": near[2], "news": near[3]},
            "confidence": pytest.approx(told[2]),
        },
        "urgency": {
            "type": "score",
            "score": near[5],
            "legend": {"0": "low", "1": "high"},
            "probabilities": {"0": near[4], "1": near[5]},
            "confidence": pytest.approx(told[4]),
        },
    }
    assert body["diagnostics"] == {
        "spam": {"label_mass": pytest.approx(told[0] + told[1]), "argmax_is_label": False},
        "kind": {"label_mass": pytest.approx(told[2] + told[3]), "argmax_is_label": False},
        "urgency": {"label_mass": pytest.approx(told[4] + told[5]), "argmax_is_label": True},
    }
    assert (body["id"], body["object"], body["model"]) == ("decision-r", "structured_decision", "m")
    assert body["usage"] == {"input_tokens": sum(len(prompt) for prompt, _ in engine.submitted), "output_tokens": 3}
    prompts = [prompt for prompt, _ in engine.submitted]
    begin = "system:Be strict.;user:Buy now!\n\n"
    assert prompts[0].startswith(f"{begin}Question: Is it spam?\nyes: unwanted\nno\nAnswer with yes or no only.")
    assert prompts[1].startswith(f"{begin}Question: What is it?\nA: ham - welcome\nB: news\nAnswer with the letter")
    assert prompts[2].startswith(f"{begin}0: low\n1: high\nAnswer with the number")


async def test_a_state_that_is_no_text_is_json(make_app: MakeApp) -> None:
    app, engine = await make_app(script, capable=True)
    assert (await post(app, PATH, ask(state={"a": [1]}, questions={"x": KIND}))).status == 200
    assert engine.submitted[0][0].startswith('user:{"a":[1]}\n\nQuestion: What is it?')


async def test_files_of_a_state_are_before_its_text(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in llama.cpp; those of `files` come first. In the JSON of the state, they would be read as text."""

    async def decode(*_: Any) -> Image:
        return Image(1, 1, bytes(3))

    monkeypatch.setattr(DecoderPool, "decode", decode)
    app, engine = await make_app(script, capable=True)
    engine.info = replace(engine.info, vision=True)
    messages = [{"role": "user", "content": [IMAGE, {"type": "text", "text": "a"}]}, 1, {"content": [2]}]
    text = '[{"role":"user","content":[{"type":"text","text":"a"}]},1,{"content":[2]}]'
    for state, shown in ((messages, text), ({"messages": messages}, f'{{"messages":{text}}}')):
        response = await post(app, PATH, ask(state=state, questions={"x": KIND}, files=[PICTURE, PICTURE]))
        assert response.status == 200, await whole(response)
        prompt, _ = engine.submitted[-1]
        assert shown in prompt.split("\n\n")[0], prompt
        assert len(engine.images[-1]) == 3
        assert PICTURE not in prompt


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"state": None}, "state"),
        ({"questions": {}}, "questions"),
        ({"questions": {"": KIND}}, "questions"),
        ({"questions": {"x": 1}}, "questions.x"),
        ({"questions": {"x": KIND | {"type": "guess"}}}, "questions.x.type"),
        ({"questions": {"x": KIND | {"type": ["choice"]}}}, "questions.x.type"),
        ({"questions": {"x": KIND | {"choices": []}}}, "questions.x"),
        ({"questions": {"x": KIND | {"criteria": ["a"]}}}, "questions.x.criteria"),
        ({"questions": {"x": KIND | {"criteria": {}}}}, "questions.x.criteria"),
        ({"questions": {"x": SPAM | {"criteria": {"maybe": "x"}}}}, "questions.x.criteria"),
        ({"questions": {"x": URGENCY | {"criteria": ["low"]}}}, "questions.x.criteria"),
        ({"questions": {"x": URGENCY | {"criteria": ["low", "low"]}}}, "questions.x.criteria"),
        ({"questions": {"x": URGENCY | {"criteria": [str(n) for n in range(11)]}}}, "questions.x.criteria"),
        ({"images": [1]}, "images"),
        ({"images": ["data:image/png;base64,x"]}, "images"),
        ({"files": ["data:image/png;base64,x"]}, "files"),
        ({"files": ["data:audio/wav;base64,x"]}, "files"),
        ({"state": [{"role": "user", "content": [IMAGE, {"type": "text", "text": "a"}]}]}, "state"),
        ({"state": {"messages": [{"role": "user", "content": [IMAGE]}]}}, "state"),
        ({"images": ["data:image/png;base64,x"], "audio": ["data:audio/wav;base64,x"]}, "state"),
    ],
)
async def test_what_is_wrong_is_named(make_app: MakeApp, fields: Any, param: str) -> None:
    app, engine = await make_app(script, capable=True)
    response = await post(app, PATH, ask(**fields))
    assert response.status == 400
    assert (await whole(response))["error"]["param"] == param
    assert engine.submitted == []


async def test_labels_that_are_not_one_token_are_named(make_app: MakeApp) -> None:
    app, _ = await make_app(script, capable=True)
    response = await post(app, PATH, ask())
    assert response.status == 400
    assert "one token for each of yes, no" in (await whole(response))["error"]["message"]
