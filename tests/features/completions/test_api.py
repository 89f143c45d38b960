"""completions with a scripted engine: all forms of prompts, echo, logprobs, streams."""

from __future__ import annotations

from copy import copy
from typing import Any

import pytest

from lean_ovms.errors import BadRequest
from lean_ovms.features.completions.fim import NO_TOKENS
from tests.api.conftest import CODER, MakeApp, events, post, teach, warnings_of, whole
from tests.fakes import EOS, say

PATH = "/v1/completions"


def ask(prompt: Any = "ab", **fields: Any) -> dict[str, Any]:
    return {"model": "m", "prompt": prompt, **fields}


async def test_a_whole_answer_has_the_contracts_shape(make_app: MakeApp) -> None:
    app, _ = await make_app(say("Hi"))
    body = await whole(await post(app, PATH, ask()))
    assert body.pop("id").startswith("cmpl-")
    assert {k: body[k] for k in ("choices", "model", "object", "usage")} == {
        "choices": [{"finish_reason": "stop", "index": 0, "logprobs": None, "text": "Hi"}],
        "model": "m",
        "object": "text_completion",
        "usage": {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5},
    }


@pytest.mark.parametrize(
    ("path", "fields", "options", "sent"),
    [
        (PATH, {}, {}, 16),
        (PATH, {"max_tokens": None}, {}, 16),
        (PATH, {"max_tokens": 50}, {}, 50),
        (PATH, {"n_predict": -1}, {}, None),
        (PATH, {}, {"max_tokens_limit": 100}, 100),
        (PATH, {}, {"override_generation_config": '{"max_new_tokens": 30}', "generation_config_path": "none"}, 30),
        ("/v3/completions", {}, {}, None),
        ("/v3/v1/completions", {}, {}, None),
        ("/invocations", {}, {}, 16),
    ],
)
async def test_the_default_of_max_tokens_is_openais_and_under_v3_the_end_of_the_text(
    make_app: MakeApp, path: str, fields: dict[str, Any], options: dict[str, Any], sent: int | None
) -> None:
    app, engine = await make_app(say("Hi"), **{"fake_engine": "override_generation_config" not in options, **options})
    await whole(await post(app, path, ask(**fields)))
    assert [sampling.max_tokens for _, sampling in engine.submitted] == [sent]


@pytest.mark.parametrize(
    ("prompt", "sent"), [("ab", ["ab"]), (["ab", "c"], ["ab", "c"]), ([1, 2], [[1, 2]]), ([[1], [2, 3]], [[1], [2, 3]])]
)
async def test_every_form_of_prompt(make_app: MakeApp, prompt: Any, sent: list[Any]) -> None:
    app, engine = await make_app(lambda prompt, s: say(str(prompt), "!", sequences=s.n))
    body = await whole(await post(app, PATH, ask(prompt, n=2)))
    assert [p for p, _ in engine.submitted] == sent
    texts = [f"{one}!" for one in sent for _ in range(2)]
    assert [(c["index"], c["text"]) for c in body["choices"]] == list(enumerate(texts))
    found = await events(await post(app, PATH, ask(prompt, n=2, stream=True)))
    choices = [c for e in found[:-1] for c in e["choices"]]
    assert ["".join(c["text"] for c in choices if c["index"] == i) for i in range(len(texts))] == texts
    assert {e["object"] for e in found[:-1]} == {"text_completion"}
    assert not engine.mail.busy


async def test_one_refused_prompt_refuses_the_request_and_stops_the_others(make_app: MakeApp) -> None:
    def script(prompt: Any, sampling: Any) -> Any:
        if prompt == "bad":
            raise BadRequest("no", param="prompt")
        return [[(0, "x", None)]] * 50

    app, engine = await make_app(script)
    response = await post(app, PATH, ask(["a", "bad", "b"]))
    assert response.status == 400
    assert {c.id for c in engine.cancelled} >= {1}


async def test_echo_puts_the_prompt_first_in_both_modes(make_app: MakeApp) -> None:
    app, _ = await make_app(lambda *_: say("Hi"))
    body = await whole(await post(app, PATH, ask(echo=True)))
    assert body["choices"][0]["text"] == "abHi"
    assert body["usage"]["completion_tokens"] == 3
    found = await events(await post(app, PATH, ask(echo=True, stream=True)))
    assert "".join(c["text"] for e in found[:-1] for c in e["choices"]) == "abHi"
    body = await whole(await post(app, PATH, ask([97, 98], echo=True)))
    assert body["choices"][0]["text"] == "abHi"
    app, _ = await make_app(say("Hi", reason="length"))
    body = await whole(await post(app, PATH, ask(echo=True, max_tokens=0)))
    assert (body["choices"][0]["text"], body["choices"][0]["finish_reason"]) == ("ab", "length")
    assert body["usage"] == {"prompt_tokens": 2, "completion_tokens": 0, "total_tokens": 2}


async def test_logprobs_are_four_parallel_lists(make_app: MakeApp) -> None:
    app, _ = await make_app(lambda *_: say("Hi"))
    body = await whole(await post(app, PATH, ask(logprobs=1)))
    assert body["choices"][0]["logprobs"] == {
        "tokens": ["H", "i", "<eos>"],
        "token_logprobs": [-0.5, -0.5, -0.5],
        "top_logprobs": [{"H": -0.5}, {"i": -0.5}, {"<eos>": -0.5}],
        "text_offset": [0, 1, 2],
    }
    found = await events(await post(app, PATH, ask(logprobs=1, stream=True)))
    chunks = [c["logprobs"] for e in found[:-1] for c in e["choices"] if c["logprobs"]]
    assert [t for c in chunks for t in c["tokens"]] == ["H", "i", "<eos>"]
    assert [t for c in chunks for t in c["text_offset"]] == [0, 1, 2]
    body = await whole(await post(app, PATH, ask(logprobs=0, return_tokens_as_token_ids=True, request_id="mine")))
    logprobs = body["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["token_id:72", "token_id:105", f"token_id:{EOS}"]
    assert (logprobs["top_logprobs"][0], logprobs["text_offset"]) == ({"token_id:72": -0.5}, [0, 1, 2])
    assert body["id"] == "cmpl-mine"


async def test_echo_with_logprobs_scores_the_prompt(make_app: MakeApp) -> None:
    app, engine = await make_app(lambda *_: say("H"))
    body = await whole(await post(app, PATH, ask(logprobs=0, echo=True)))
    logprobs = body["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["a", "b", "H", "<eos>"]
    assert logprobs["token_logprobs"] == [None, -1.0, -0.5, -0.5]
    assert engine.submitted[0][1].prompt_logprobs


async def test_alternatives_of_a_prompt_are_refused_as_they_are_unknown(make_app: MakeApp) -> None:
    """lm-evaluation-harness sends this. Given only the prompt's own tokens, it would take every text for the greedy
    one."""
    app, engine = await make_app(lambda *_: say("H"))
    fields = {"temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True}
    for prompt in ("ab", [[97, 98]]):
        response = await post(app, PATH, ask(prompt, **fields))
        assert response.status == 400
        error = (await whole(response))["error"]
        assert error["param"] == "logprobs"
        assert "echo" in error["message"]
        assert "send logprobs 0" in error["message"]
    assert engine.submitted == []


@pytest.mark.parametrize(
    ("fields", "warns"),
    [
        ({"logprobs": 0}, False),
        ({"logprobs": 1}, True),
        ({"logprobs": 1, "temperature": 0}, False),
        ({"logprobs": 2, "temperature": 0}, True),
        ({"logprobs": 1, "temperature": 0, "best_of": 2}, True),
        ({"echo": True}, False),
    ],
)
async def test_alternatives_that_are_not_known_get_a_warning(
    make_app: MakeApp, fields: dict[str, Any], warns: bool
) -> None:
    app, _ = await make_app(lambda *_: say("H"))
    response = await post(app, PATH, ask(**fields))
    assert response.status == 200
    warned = ["only contains the generated tokens" in text for text in warnings_of(response)]
    assert warned == [True] * warns


async def test_token_ids_are_returned_per_choice(make_app: MakeApp) -> None:
    app, _ = await make_app(lambda *_: say("H"))
    body = await whole(await post(app, PATH, ask(return_token_ids=True)))
    assert body["choices"][0]["token_ids"] == [72, EOS]
    assert body["choices"][0]["prompt_token_ids"] == [97, 98]
    for logprobs in (None, 0):
        body = ask(prompt=["ab", "c"], return_token_ids=True, logprobs=logprobs, stream=True)
        choices = [event["choices"][0] for event in (await events(await post(app, PATH, body)))[:-1]]
        for index, prompt in ((0, [97, 98]), (1, [99])):
            first, *rest = [choice for choice in choices if choice["index"] == index]
            assert first["prompt_token_ids"] == prompt
            assert not any("prompt_token_ids" in choice for choice in rest)


WRONG_FIELDS: list[tuple[Any, ...]] = [
    ({"prompt": None}, "prompt is missing", "prompt"),
    ({"prompt": ""}, "prompt is empty", "prompt"),
    ({"prompt": []}, "prompt is empty", "prompt"),
    ({"prompt": [""]}, "prompt[0] is empty", "prompt[0]"),
    ({"prompt": [[]]}, "prompt[0] is empty", "prompt[0]"),
    ({"prompt": [1, "x"]}, "prompt[1] is not a token id", "prompt"),
    ({"prompt": [1, True]}, "prompt[1] is not a token id", "prompt"),
    ({"prompt": [1.5]}, "prompt[0] is not a token id", "prompt"),
    ({"prompt": [[1, -1]]}, "prompt[0][1] is not a token id", "prompt[0]"),
    ({"prompt": {"a": 1}}, None, "prompt"),
    ({"prompt": ["x"] * 129}, None, "prompt"),
    ({"max_tokens": 0}, "max_tokens value should be greater than 0 unless echo is set", "max_tokens"),
    ({"logprobs": True}, "logprobs accepts integer values", "logprobs"),
    ({"logprobs": 21}, "logprobs exceeds limit of this server: 20", "logprobs"),
    ({"logprobs": -1}, None, "logprobs"),
    ({"suffix": "x"}, f"suffix is not supported: {NO_TOKENS}", "suffix"),
    ({"suffix": "x", "echo": True}, None, "suffix"),
    ({"suffix": "x", "prompt": [1]}, None, "suffix"),
]


async def test_what_is_wrong_with_a_request_is_said(make_app: MakeApp) -> None:
    app, engine = await make_app()
    for fields, message, param in WRONG_FIELDS:
        response = await post(app, PATH, {**ask(), **fields})
        error = (await whole(response))["error"]
        assert response.status == 400, fields
        assert error["param"] == param, fields
        assert message is None or error["message"] == message, fields
        assert engine.submitted == [], fields


async def test_a_suffix_is_behind_what_is_generated(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    app, engine = await make_app(lambda *_: say("x"))
    teach(engine, CODER, monkeypatch)
    body = await whole(await post(app, PATH, {"prompt": ["a = ", "b = "], "suffix": "\nc", "stop_token_ids": [9]}))
    assert [choice["text"] for choice in body["choices"]] == ["x", "x"]
    sent = [f"<|fim_prefix|>{before} = <|fim_suffix|>\nc<|fim_middle|>" for before in "ab"]
    assert [prompt for prompt, _ in engine.submitted] == sent
    assert {*engine.submitted[0][1].stop_token_ids} == {9, 4, 5}
    assert (await post(app, PATH, {"prompt": "a", "suffix": ""})).status == 200
    assert engine.submitted[-1][0] == "a"

    async def encode(texts: list[str], add_special_tokens: bool, client: str = "") -> list[list[int]]:
        return [[1, 2] for _ in texts]

    monkeypatch.setattr(engine, "encode", encode)
    assert (await post(app, PATH, {"prompt": "a", "suffix": "b"})).status == 200
    engine.vocabulary = copy(engine.vocabulary)  # as after a restart with other files
    assert (await post(app, PATH, {"prompt": "a", "suffix": "b"})).status == 400
