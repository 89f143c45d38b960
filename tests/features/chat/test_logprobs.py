"""Log probabilities of alternatives, in every form of response, if the engine reports them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import orjson
import pytest

from lean_ovms.engine import protocol
from lean_ovms.features.chat import logprobs
from lean_ovms.types import SamplingParams
from lean_ovms.util import chunked_json
from tests.api.conftest import MakeApp, events, post, warnings_of, whole
from tests.fakes import EOS, Script, say
from tests.streams import pieces

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"model": "m", "messages": [{"role": "user", "content": "hi"}]},
    COMPLETIONS: {"model": "m", "prompt": "ab"},
    RESPONSES: {"model": "m", "input": "hi"},
}
ALTERNATIVES = [{"token": "A", "logprob": -0.25, "bytes": [65]}, {"token": "B", "logprob": -0.5, "bytes": [66]}]
H = {"token": "H", "logprob": -0.5, "bytes": [72], "top_logprobs": ALTERNATIVES}


def script(_: Any, sampling: SamplingParams) -> Script:
    return say("H", "i", sequences=sampling.n)


def asked(path: str, **fields: Any) -> dict[str, Any]:
    return BODIES[path] | fields


async def test_chat_has_the_likeliest_tokens_in_both_modes(make_app: MakeApp) -> None:
    app, engine = await make_app(script, capable=True)
    body = asked(CHAT, logprobs=True, top_logprobs=2)
    response = await post(app, CHAT, body)
    assert not warnings_of(response)
    unary = (await whole(response))["choices"][0]["logprobs"]["content"]
    assert unary[0] == H
    assert [entry["token"] for entry in unary] == ["H", "i", "<eos>"]
    found = await events(await post(app, CHAT, body | {"stream": True}))
    streamed = [t for e in found[:-1] for c in e["choices"] if c["logprobs"] for t in c["logprobs"]["content"]]
    assert streamed == unary
    assert engine.submitted[0][1].top_logprobs == 2


async def test_completions_have_the_likeliest_tokens_and_the_chosen_one(make_app: MakeApp) -> None:
    app, _ = await make_app(script, capable=True)
    body = asked(COMPLETIONS, logprobs=2)
    unary = (await whole(await post(app, COMPLETIONS, body)))["choices"][0]["logprobs"]
    assert unary["top_logprobs"][0] == {"A": -0.25, "B": -0.5, "H": -0.5}
    assert unary["token_logprobs"] == [-0.5, -0.5, -0.5]
    found = await events(await post(app, COMPLETIONS, body | {"stream": True}))
    chunks = [c["logprobs"] for e in found[:-1] for c in e["choices"] if c["logprobs"]]
    assert [t for c in chunks for t in c["top_logprobs"]] == unary["top_logprobs"]


async def test_responses_have_the_likeliest_tokens_in_both_modes(make_app: MakeApp) -> None:
    app, _ = await make_app(script, capable=True)
    body = asked(RESPONSES, top_logprobs=2, store=False)
    response = await post(app, RESPONSES, body)
    assert not warnings_of(response)
    said = await whole(response)
    assert said["top_logprobs"] == 2
    assert said["output"][0]["content"][0]["logprobs"][0] == H
    found = await data_of(await post(app, RESPONSES, body | {"stream": True}))
    deltas = [e for e in found if e["type"] == "response.output_text.delta"]
    assert deltas[0]["logprobs"] == [H]


async def data_of(response: Any) -> list[Any]:
    text = b"".join([part async for part in pieces(response.body)])
    await response.aclose()
    return [orjson.loads(line.removeprefix(b"data: ")) for line in text.split(b"\n") if line.startswith(b"data: {")]


@pytest.mark.parametrize("path", BODIES)
async def test_the_limit_is_the_servers(make_app: MakeApp, path: str) -> None:
    name = "logprobs" if path == COMPLETIONS else "top_logprobs"
    switch = {} if path == COMPLETIONS else {"logprobs": True}
    app, engine = await make_app(script, capable=True, max_logprobs=3)
    assert (await post(app, path, asked(path, **switch, **{name: 3}))).status == 200
    assert engine.submitted[0][1].top_logprobs == 3
    response = await post(app, path, asked(path, **switch, **{name: 4}))
    error = (await whole(response))["error"]
    assert (response.status, error["param"]) == (400, name)
    assert error["message"] == f"{name} exceeds limit of this server: 3"


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.slow
async def test_all_of_the_vocabulary_where_the_server_allows_it(make_app: MakeApp, path: str) -> None:
    name = "logprobs" if path == COMPLETIONS else "top_logprobs"
    limit = "max_output_tokens" if path == RESPONSES else "max_tokens"
    switch = {} if path == COMPLETIONS else {"logprobs": True}
    app, engine = await make_app(script, capable=True, max_logprobs=-1)
    engine.info = replace(engine.info, vocab_size=5000)
    for number in (-1, 5000):
        assert (await post(app, path, asked(path, **switch, **{name: number, limit: 2}))).status == 200
        assert engine.submitted[-1][1].top_logprobs == 5000
    many = {name: -1, **switch}
    endless = [] if path == COMPLETIONS else [many]  # completions have a default of 16 tokens
    for wrong in ({name: 5001, limit: 2}, {name: -2}, *endless, many | {limit: 53}, many | {limit: 2, "stream": True}):
        response = await post(app, path, asked(path, **switch | wrong))
        assert (response.status, (await whole(response))["error"]["param"]) == (400, name), wrong
    app, _ = await make_app(script, capable=True)
    response = await post(app, path, asked(path, **switch, **{name: -1}))
    assert (response.status, (await whole(response))["error"]["param"]) == (400, name)


async def test_many_alternatives_of_several_prompts_count_together(make_app: MakeApp) -> None:
    app, engine = await make_app(script, capable=True, max_logprobs=-1)
    engine.info = replace(engine.info, vocab_size=5000)
    body = asked(COMPLETIONS, logprobs=-1, max_tokens=20)
    assert (await post(app, COMPLETIONS, body | {"prompt": ["a"] * 2})).status == 200
    assert (await post(app, COMPLETIONS, body | {"prompt": ["a"] * 3})).status == 400


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_many_alternatives_are_written_beside_the_event_loop(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """This depends on the number of generated tokens, whatever max_tokens allows."""
    app, _ = await make_app(script, capable=True)
    sizes: list[int] = []
    written: list[int] = []
    run = app.services.offload.run

    def measured(size: int, work: Callable[[], Any], *, inline_below: int = 0) -> Any:
        sizes.append(size)
        return run(size, work, inline_below=inline_below)

    monkeypatch.setattr(app.services.offload, "run", measured)
    number = {"logprobs": 20} if path == COMPLETIONS else {"logprobs": True, "top_logprobs": 20}
    for fields in ({}, number):
        assert (await post(app, path, asked(path, max_tokens=1000, **fields))).status == 200
        written.append(sizes[-1])  # the other work was the template's
    none, many = written
    assert none == 0
    assert 2 * 21 <= many / logprobs.ENTRY_BYTES <= 3 * 21


async def test_alternatives_without_log_probabilities_are_refused(make_app: MakeApp) -> None:
    app, _ = await make_app(script, capable=True)
    response = await post(app, CHAT, asked(CHAT, top_logprobs=2))
    assert (response.status, (await whole(response))["error"]["param"]) == (400, "top_logprobs")
    assert (await post(app, CHAT, asked(CHAT, top_logprobs=0))).status == 200


@pytest.mark.parametrize("path", BODIES)
async def test_named_tokens_come_instead_of_the_likeliest(make_app: MakeApp, path: str) -> None:
    app, engine = await make_app(script, capable=True)
    body = await whole(await post(app, path, asked(path, logprob_token_ids=[97, 98])))
    assert engine.submitted[0][1].logprob_token_ids == (97, 98)
    named = [("a", -0.25), ("b", -0.5)]
    if path == COMPLETIONS:
        assert list(body["choices"][0]["logprobs"]["top_logprobs"][0].items()) == [*named, ("H", -0.5)]
        return
    entries = body["choices"][0]["logprobs"]["content"] if path == CHAT else body["output"][0]["content"][0]["logprobs"]
    assert [(t["token"], t["logprob"]) for t in entries[0]["top_logprobs"]] == named


async def test_the_prompt_is_scored_with_alternatives(make_app: MakeApp) -> None:
    """lm-evaluation-harness sends this, and computes is_greedy from the likeliest token at each position."""
    app, engine = await make_app(script, capable=True)
    body = asked(COMPLETIONS, temperature=0, max_tokens=1, logprobs=1, seed=1234, echo=True)
    response = await post(app, COMPLETIONS, body)
    assert not warnings_of(response)
    logprobs = (await whole(response))["choices"][0]["logprobs"]
    assert logprobs["tokens"][:2] == ["a", "b"]
    assert logprobs["token_logprobs"][:2] == [None, -1.0]
    assert logprobs["top_logprobs"][:2] == [None, {"A": -0.25, "b": -1.0}]
    assert (engine.submitted[0][1].prompt_logprobs, engine.submitted[0][1].prompt_top_logprobs) == (True, 1)


async def test_max_tokens_0_answers_with_the_prompt_alone(make_app: MakeApp) -> None:
    app, _ = await make_app(lambda *_: say("H", reason="length"), capable=True)
    body = asked(COMPLETIONS, max_tokens=0, logprobs=1, echo=True)
    [choice] = (await whole(await post(app, COMPLETIONS, body)))["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("ab", "length")
    assert choice["logprobs"]["tokens"] == ["a", "b"]
    assert choice["logprobs"]["top_logprobs"] == [None, {"A": -0.25, "b": -1.0}]


SCORED = {"98": {"logprob": -1.0, "rank": 2, "decoded_token": "b"}}
FIRST = {"65": {"logprob": -0.25, "rank": 1, "decoded_token": "A"}}


@pytest.mark.parametrize(("most", "entry"), [(0, SCORED), (1, SCORED | FIRST)])
async def test_prompt_logprobs_have_vllms_form(make_app: MakeApp, most: int, entry: dict[str, Any]) -> None:
    app, _ = await make_app(script, capable=True)
    body = await whole(await post(app, COMPLETIONS, asked(COMPLETIONS, prompt_logprobs=most, n=2)))
    assert [choice["prompt_logprobs"] for choice in body["choices"]] == [[None, entry]] * 2
    assert [choice["logprobs"] for choice in body["choices"]] == [None, None]
    chat = await whole(await post(app, CHAT, asked(CHAT, prompt_logprobs=most)))
    assert chat["prompt_logprobs"][0] is None
    assert len(chat["prompt_logprobs"]) == chat["usage"]["prompt_tokens"]
    assert "prompt_logprobs" not in await whole(await post(app, CHAT, asked(CHAT)))


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_prompt_logprobs_are_not_for_streams(make_app: MakeApp, path: str) -> None:
    app, _ = await make_app(script, capable=True)
    response = await post(app, path, asked(path, prompt_logprobs=1, stream=True))
    assert (response.status, (await whole(response))["error"]["param"]) == (400, "prompt_logprobs")


async def test_tokens_with_one_name_do_not_hide_the_likeliest(make_app: MakeApp) -> None:
    """Parts of characters all have the name U+FFFD; the first entry with a name is the likeliest."""
    app, _ = await make_app(script, capable=True)
    body = asked(COMPLETIONS, logprob_token_ids=[0xE2, 0x82, EOS])
    top = (await whole(await post(app, COMPLETIONS, body)))["choices"][0]["logprobs"]["top_logprobs"][0]
    assert top == {"\ufffd": -0.25, "<eos>": -0.75, "H": -0.5}


async def test_log_probabilities_of_prompts_are_limited(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logprobs, "MAX_ENTRIES", 8)
    monkeypatch.setattr(logprobs, "MAX_STREAMED_ENTRIES", 4)
    app, engine = await make_app(script, capable=True)
    for prompts, stream, status in ((["ab"], True, 200), (["ab"] * 2, True, 400), (["ab"] * 2, False, 200)):
        body = asked(COMPLETIONS, prompt=prompts, logprobs=1, echo=True, stream=stream)
        response = await post(app, COMPLETIONS, body)
        assert response.status == status
        await response.aclose()
    assert (await post(app, COMPLETIONS, asked(COMPLETIONS, prompt=["ab"] * 3, prompt_logprobs=1))).status == 400
    response = await post(app, CHAT, asked(CHAT, prompt_logprobs=1))
    assert (response.status, (await whole(response))["error"]["param"]) == (400, "logprobs")
    assert not engine.mail.busy


async def test_a_choice_that_is_ahead_waits_for_the_scores_of_its_prompt(make_app: MakeApp) -> None:
    """The first choice computes the whole prompt to get them; other choices may find it in the prefix cache."""
    ahead: Script = [[(1, "x", None)] for _ in range(50)]
    app, engine = await make_app(lambda *_: [*ahead, [(0, "y", "length"), (1, "y", "length")]], capable=True)
    deliver = engine.mail.deliver
    scores: list[Any] = []

    def late(records: list[protocol.Record]) -> None:
        scored = [record for record in records if isinstance(record, protocol.PromptLogprobs)]
        scores.extend(scored)
        first = any(isinstance(record, protocol.Tokens) and record.index == 0 for record in records)
        deliver([*(scores if first else ()), *[record for record in records if record not in scored]])

    engine.mail.deliver = late  # type: ignore[method-assign]
    body = asked(COMPLETIONS, logprobs=1, echo=True, n=2, stream=True, temperature=1)
    found = await events(await post(app, COMPLETIONS, body))
    first: dict[int, Any] = {}
    for choice in (choice for event in found[:-1] for choice in event["choices"]):
        if choice["logprobs"]:
            first.setdefault(choice["index"], choice["logprobs"]["token_logprobs"][:2])
    assert first == {0: [None, -1.0], 1: [None, -1.0]}


@pytest.mark.slow
async def test_a_large_answer_is_sent_in_pieces(make_app: MakeApp) -> None:
    app, _ = await make_app(say(*"ab" * 2000), capable=True)
    response = await post(app, CHAT, asked(CHAT, logprobs=True, top_logprobs=20))
    assert response.status == 200
    assert not isinstance(response.body, bytes)
    found = [piece async for piece in pieces(response.body)]
    assert len(found) > 1
    assert max(map(len, found)) < 2 * chunked_json.PIECE_BYTES
    assert orjson.loads(b"".join(found))
