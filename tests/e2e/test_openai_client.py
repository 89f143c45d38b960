"""The official client, as its users and agents use it, with the demo model and the paged engine's exact fields."""

from __future__ import annotations

import json
import math
from typing import Any, Literal

import httpx
import jsonschema
import openai
import pydantic
import pytest

pytestmark = pytest.mark.model

HELLO = [{"role": "user", "content": "Hello!"}]


def test_chat_stream_folds_to_the_unary_answer(client: openai.OpenAI) -> None:
    unary = client.chat.completions.create(model="demo", messages=HELLO, temperature=0, max_tokens=64)
    chunks = list(
        client.chat.completions.create(
            model="demo",
            messages=HELLO,
            temperature=0,
            max_tokens=64,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == unary.choices[0].message.content
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == unary.choices[0].finish_reason
    assert chunks[-1].usage == unary.usage


def test_errors_reach_the_client_as_its_own_types(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="nope", messages=HELLO)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as wrong:
        client.chat.completions.create(model="demo", messages=HELLO, temperature=3)
    assert wrong.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(model="demo", prompt="word " * 80_000)
    assert long.value.code == "context_length_exceeded"


class Person(pydantic.BaseModel):
    """The type that a client of OpenAI's `parse` requests."""

    age: int = pydantic.Field(ge=0, le=120)
    kind: Literal["human", "robot"]
    tags: list[Literal["a", "b"]] = pydantic.Field(max_length=3)


def test_an_answer_has_the_form_that_was_asked_for_whole_and_streamed(client: openai.OpenAI) -> None:
    """The streamed one is long, because all that the engine computes before the front end reads becomes one piece."""
    ask: dict[str, Any] = {"model": "demo", "messages": HELLO, "temperature": 0}
    answer = client.chat.completions.parse(response_format=Person, max_tokens=300, **ask)
    assert isinstance(answer.choices[0].message.parsed, Person)
    assert answer.choices[0].finish_reason == "stop"
    days = {"type": "array", "items": {"enum": [*range(1, 10)]}, "minItems": 300, "maxItems": 300}
    schema = {"type": "object", "properties": {"days": days}, "required": ["days"]}
    form: Any = {"type": "json_schema", "json_schema": {"name": "w", "schema": schema, "strict": True}}
    stream = client.chat.completions.create(response_format=form, max_tokens=2000, stream=True, **ask)
    pieces = [chunk.choices[0].delta.content or "" for chunk in stream]
    assert len([piece for piece in pieces if piece]) > 1
    jsonschema.validate(json.loads("".join(pieces)), schema)


def test_free_json_ends_where_the_model_would_end_it(client: openai.OpenAI) -> None:
    wanted = {"role": "user", "content": "Give me a JSON object with name Quentin and age 41."}
    form: Any = {"type": "json_object"}
    [choice] = client.chat.completions.create(
        model="demo", messages=[wanted], response_format=form, temperature=0, max_tokens=100
    ).choices
    assert json.loads(choice.message.content or "") == {"name": "Quentin", "age": 41}
    assert choice.finish_reason == "stop"


# --- agents


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
QUESTION = {"role": "user", "content": "What is the weather in Oslo?"}


def ask(client: openai.OpenAI, messages: list[Any], **fields: Any) -> Any:
    return client.chat.completions.create(model="demo", messages=messages, temperature=0, max_tokens=200, **fields)


def streamed(client: openai.OpenAI, messages: list[Any], **fields: Any) -> tuple[str, list[dict[str, str]], str | None]:
    """Returns content, calls and finish reason, assembled from the deltas as clients do."""
    text, calls, reason = "", list[dict[str, str]](), None
    for chunk in ask(client, messages, stream=True, **fields):
        choice = chunk.choices[0]
        text += choice.delta.content or ""
        reason = choice.finish_reason or reason
        for part in choice.delta.tool_calls or []:
            if part.id:
                calls.append({"id": part.id, "name": part.function.name, "arguments": ""})
            calls[part.index]["arguments"] += part.function.arguments or ""
    return text, calls, reason


def test_a_round_trip_with_a_tool(client: openai.OpenAI) -> None:
    first = ask(client, [QUESTION], tools=[WEATHER]).choices[0]
    assert first.finish_reason == "tool_calls"
    [call] = first.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Oslo"})
    result = {"role": "tool", "tool_call_id": call.id, "content": '{"weather": "sunny"}'}
    second = ask(client, [QUESTION, first.message, result], tools=[WEATHER]).choices[0]
    assert second.finish_reason == "stop"
    assert "sunny" in second.message.content
    assert not second.message.tool_calls


def test_the_stream_of_a_call_folds_to_the_unary_one(client: openai.OpenAI) -> None:
    unary = ask(client, [QUESTION], tools=[WEATHER]).choices[0]
    text, [call], reason = streamed(client, [QUESTION], tools=[WEATHER])
    assert reason == "tool_calls"
    assert text == unary.message.content
    assert call["name"] == unary.message.tool_calls[0].function.name
    assert call["arguments"] == unary.message.tool_calls[0].function.arguments
    assert call["id"].startswith("call_")


def test_two_calls_in_one_answer_and_one_where_one_is_allowed(client: openai.OpenAI) -> None:
    both = [{"role": "user", "content": "What is the weather in Oslo and in Rome?"}]
    _, calls, _ = streamed(client, both, tools=[WEATHER])
    assert [json.loads(c["arguments"])["city"] for c in calls] == ["Oslo", "Rome"]
    assert len({c["id"] for c in calls}) == 2
    _, calls, reason = streamed(client, both, tools=[WEATHER], parallel_tool_calls=False)
    assert [json.loads(c["arguments"])["city"] for c in calls] == ["Oslo"]
    assert reason == "tool_calls"


def test_reasoning_and_a_call_in_one_answer(client: openai.OpenAI) -> None:
    thinking = {"chat_template_kwargs": {"enable_thinking": True}}
    answer = ask(client, [QUESTION], tools=[WEATHER], tool_choice="required", extra_body=thinking)
    message = answer.choices[0].message
    assert message.reasoning_content
    assert "<" not in message.reasoning_content
    assert message.tool_calls[0].function.name == "get_weather"
    assert answer.usage.completion_tokens_details.reasoning_tokens > 0


# --- fields that openvino_genai cannot support


COUNT = [{"role": "user", "content": "Count from 1 to 9."}]


def test_the_clients_fields_have_an_effect_and_no_warning(client: openai.OpenAI) -> None:
    ask = {"model": "demo", "messages": COUNT, "temperature": 0, "max_tokens": 8, "logprobs": True, "top_logprobs": 3}
    raw = client.chat.completions.with_raw_response.create(**ask)
    assert "warning" not in raw.headers
    unary = raw.parse().choices[0].logprobs.content
    for token in unary:
        assert [one.logprob for one in token.top_logprobs] == sorted([t.logprob for t in token.top_logprobs])[::-1]
        assert (token.top_logprobs[0].token, token.top_logprobs[0].logprob) == (token.token, token.logprob)
        assert len(token.top_logprobs) == 3
    stream = client.chat.completions.create(**ask, stream=True)
    chunks = [choice.logprobs.content for chunk in stream for choice in chunk.choices if choice.logprobs]
    assert [token for content in chunks for token in content] == unary
    biased = client.chat.completions.create(**ask, logit_bias={"44": 100})
    assert len({token.token for token in biased.choices[0].logprobs.content}) == 1
    said = client.responses.create(model="demo", input="Count from 1 to 9.", temperature=0, top_logprobs=3, store=False)
    first = said.output[0].content[0].logprobs[0]
    assert [(t.token, t.logprob) for t in first.top_logprobs] == [(t.token, t.logprob) for t in unary[0].top_logprobs]


def test_multiple_choice_as_lm_eval_asks_for_it(client: openai.OpenAI) -> None:
    """Prompts as token ids, echo, one token. The client removes the part of the context, and the generated token."""
    with httpx.Client(base_url=str(client.base_url), timeout=300) as http:
        body = {"prompt": "<|im_start|>user\nCount from 1 to 9.<|im_end|>\n<|im_start|>assistant\n"}
        context = http.post("tokenize", json=body).json()["tokens"]
        texts = ["1, 2, 3", "1, 2, 4", "9, 8, 7"]
        ends = [http.post("tokenize", json={"prompt": text}).json()["tokens"] for text in texts]
    answer = client.completions.create(
        model="demo",
        prompt=[context + end for end in ends],
        max_tokens=1,
        logprobs=1,
        seed=1234,
        echo=True,
        temperature=0,
    )
    found = []
    for choice in sorted(answer.choices, key=lambda choice: choice.index):
        scores = choice.logprobs.token_logprobs[len(context) : -1]
        top = choice.logprobs.top_logprobs[len(context) : -1]
        is_greedy = all(score == max(others.values()) for score, others in zip(scores, top, strict=True))
        found.append((sum(scores), is_greedy))
    assert [greedy for _, greedy in found] == [True, False, False]
    assert found[0][0] == max(score for score, _ in found)
    prompt_only = client.completions.create(
        model="demo", prompt=context, max_tokens=0, echo=True, logprobs=1, extra_body={"prompt_logprobs": 1}
    )
    [choice] = prompt_only.choices
    assert len(choice.logprobs.token_logprobs) == len(context) == len(choice.prompt_logprobs)
    for token, score, entry in zip(
        context[1:], choice.logprobs.token_logprobs[1:], choice.prompt_logprobs[1:], strict=True
    ):
        assert entry[str(token)]["logprob"] == score
        assert min(one["rank"] for one in entry.values()) == 1


def test_generative_scores_are_the_probabilities_of_the_next_token(client: openai.OpenAI) -> None:
    prompt = "<|im_start|>user\nCount from 1 to 9.<|im_end|>\n<|im_start|>assistant\n"
    answer = client.completions.create(model="demo", prompt=prompt, max_tokens=1, logprobs=3, temperature=0)
    with httpx.Client(base_url=str(client.base_url), timeout=300) as http:
        ids = [http.post("tokenize", json={"prompt": text}).json()["tokens"][0] for text in ("1", "9")]
        body = {"query": prompt, "items": [""], "label_token_ids": ids}
        softmax = http.post("generative_scoring", json=body).json()
        absolute = http.post("generative_scoring", json=body | {"apply_softmax": False}).json()
    wanted = math.exp(answer.choices[0].logprobs.top_logprobs[0]["1"])
    assert absolute["data"][0]["score"] == pytest.approx(wanted, rel=1e-4)
    assert wanted < softmax["data"][0]["score"] <= 1
    assert softmax["usage"]["completion_tokens"] == 1


def _said(answer: openai.types.chat.ChatCompletion) -> list[str]:
    return [choice.message.content or "" for choice in answer.choices]


def test_beams_keep_to_what_the_request_allows(client: openai.OpenAI) -> None:
    """If few texts are left, there are fewer choices than requested."""
    ask = {"model": "demo", "messages": COUNT, "max_tokens": 24, "temperature": 0}
    one_of = {"structured_outputs": {"choice": ["yes", "no"]}}
    [said] = _said(client.chat.completions.create(**ask, extra_body={"best_of": 3, **one_of}))
    assert said in ("yes", "no")
    three = _said(client.chat.completions.create(**ask, n=3, extra_body={"best_of": 3, **one_of}))
    assert 1 <= len(three) <= 3
    assert set(three) <= {"yes", "no"}
    token = client.post("/tokenize", body={"prompt": "7", "add_special_tokens": False}, cast_to=httpx.Response)
    [seven] = token.json()["tokens"]
    only = {"best_of": 3, "allowed_token_ids": [seven]}
    answer = client.chat.completions.create(**ask, n=3, extra_body=only)
    assert _said(answer) == ["7" * 24]
    assert answer.usage.completion_tokens == 24
    chunks = list(client.chat.completions.create(**ask, n=3, extra_body=only, stream=True))
    assert {choice.index for chunk in chunks for choice in chunk.choices} == {0}
    texts = client.completions.create(model="demo", prompt=["1", "2"], max_tokens=4, n=3, extra_body=only).choices
    assert [(choice.index, choice.text) for choice in texts] == [(0, "7777"), (3, "7777")]


def test_beams_go_with_schemas_and_tool_calls(client: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    ask = {"model": "demo", "messages": COUNT, "max_tokens": 64, "temperature": 0, "extra_body": {"best_of": 3}}
    [said] = _said(client.chat.completions.create(**ask, response_format=form))
    assert json.loads(said)["a"] in (1, 2)
    tool = {"type": "function", "function": {"name": "pick", "parameters": schema, "strict": True}}
    for choice in ("required", {"type": "function", "function": {"name": "pick"}}):
        message = client.chat.completions.create(**ask, tools=[tool], tool_choice=choice).choices[0].message
        assert message.tool_calls[0].function.name == "pick"
        assert json.loads(message.tool_calls[0].function.arguments)["a"] in (1, 2)
    text = {"format": {"type": "json_schema", "name": "x", "schema": schema, "strict": True}}
    said = client.responses.create(model="demo", input="Hi", text=text, store=False, extra_body={"best_of": 3})
    assert json.loads(said.output_text)["a"] in (1, 2)
