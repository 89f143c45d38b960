"""chat/completions/batch: a choice for each conversation."""

from __future__ import annotations

from typing import Any

from lean_ovms.errors import EngineFailure
from tests.api.conftest import MakeApp, post, whole
from tests.fakes import Script, say

PATH = "/v1/chat/completions/batch"
TWO = [[{"role": "user", "content": "a"}], [{"role": "user", "content": "bc"}]]


def repeat(prompt: Any, _: Any) -> Script:
    return say(f"<{prompt}>")


async def test_each_conversation_has_a_choice(make_app: MakeApp) -> None:
    app, engine = await make_app(repeat, enable_per_request_metrics=True)
    body = await whole(await post(app, PATH, {"messages": TWO, "max_tokens": 50}))
    assert [choice["index"] for choice in body["choices"]] == [0, 1]
    assert [choice["message"]["content"] for choice in body["choices"]] == ["<user:a;>", "<user:bc;>"]
    assert (body["object"], body["usage"]["prompt_tokens"]) == ("chat.completion", len("user:a;") + len("user:bc;"))
    assert body["usage"]["completion_tokens"] == len("<user:a;><user:bc;>") + 2
    assert [sampling.max_tokens for _, sampling in engine.submitted] == [50, 50]
    assert "metrics" not in body, "which are those of one generation"


async def test_ids_and_log_probabilities_are_in_the_choices(make_app: MakeApp) -> None:
    app, _ = await make_app(repeat, capable=True)
    fields = {"return_token_ids": True, "prompt_logprobs": 0, "logprobs": True, "timings": True}
    body = await whole(await post(app, PATH, {"messages": TWO, **fields}))
    first, second = body["choices"]
    assert bytes(first["prompt_token_ids"]) == b"user:a;"
    assert bytes(second["prompt_token_ids"]) == b"user:bc;"
    assert len(second["prompt_logprobs"]) == len("user:bc;")
    assert second["logprobs"]["content"][0]["token"] == "<user:bc;>"[0]
    assert "timings" in body


IMAGE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,x"}}]}
WHAT_IS_REFUSED: list[tuple[Any, ...]] = [
    ({"messages": None}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "user", "content": "a"}]}, "messages[0]"),
    ({"messages": [*TWO, []]}, "messages[2]"),
    ({"messages": [[{"role": "user", "content": 5}], *TWO]}, "messages[0][0].content"),
    ({"messages": [*TWO, [{"role": 5}]]}, "messages[2][0].role"),
    ({"messages": [TWO[0]] * 4}, "messages"),
    ({"messages": [[IMAGE], TWO[0]]}, "messages"),
    ({"stream": True}, "stream"),
    ({"n": 2}, "n"),
    ({"use_beam_search": True, "n": 2}, "n"),
    ({"best_of": 2}, "best_of"),
]


async def test_what_is_refused(make_app: MakeApp) -> None:
    app, engine = await make_app(repeat, max_prompts=3)
    for fields, param in WHAT_IS_REFUSED:
        response = await post(app, PATH, {"messages": TWO, **fields})
        assert (response.status, (await whole(response))["error"]["param"]) == (400, param), fields
        assert engine.submitted == [], fields


async def test_an_error_of_one_ends_all(make_app: MakeApp) -> None:
    def script(prompt: Any, _: Any) -> Any:
        return [EngineFailure("broken")] if "bc" in prompt else say("x")

    app, _ = await make_app(script)
    assert (await post(app, PATH, {"messages": TWO})).status == 500
    assert not app.registry.models["m"].in_flight
