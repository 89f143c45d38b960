"""The official client, as its users use it, against the demo model."""

from __future__ import annotations

import openai
import pytest

from tests.e2e.conftest import Process

pytestmark = pytest.mark.model

HELLO = [{"role": "user", "content": "Hello!"}]


def test_models(client: openai.OpenAI) -> None:
    model, embedder = client.models.list().data
    assert (model.id, embedder.id) == ("demo", "demo-embed")
    assert client.models.retrieve("demo") == model
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("org/other")


def test_chat_unary(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="demo", messages=HELLO, temperature=0, max_tokens=64)
    choice = answer.choices[0]
    assert choice.message.role == "assistant"
    assert choice.message.content
    assert choice.finish_reason == "stop"
    assert answer.usage
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.completion_tokens > 1


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


async def test_async_chat_and_completions_under_v3(aclient: openai.AsyncOpenAI) -> None:
    async with aclient:
        answer = await aclient.chat.completions.create(model="demo", messages=HELLO, temperature=0, max_tokens=64)
        stream = await aclient.chat.completions.create(
            model="demo", messages=HELLO, temperature=0, max_tokens=64, stream=True
        )
        text = "".join([c.choices[0].delta.content or "" async for c in stream])
        assert text == answer.choices[0].message.content
        completion = await aclient.completions.create(model="demo", prompt="Hello", temperature=0, max_tokens=8)
        assert completion.choices[0].text


def test_completions_unary_streamed_and_several_prompts(client: openai.OpenAI) -> None:
    ask = {"model": "demo", "temperature": 0, "max_tokens": 12}
    one = client.completions.create(prompt="One two three", **ask)
    pieces = list(client.completions.create(prompt="One two three", stream=True, **ask))
    assert "".join(p.choices[0].text for p in pieces) == one.choices[0].text
    both = client.completions.create(prompt=["One two three", "Hello"], **ask)
    assert both.choices[0].text == one.choices[0].text
    assert [c.index for c in both.choices] == [0, 1]
    echoed = client.completions.create(prompt="One two three", echo=True, **ask)
    assert echoed.choices[0].text == "One two three" + one.choices[0].text


def test_n_samples_differ_and_repeat_with_their_seed(client: openai.OpenAI) -> None:
    def ask() -> list[str]:
        answer = client.completions.create(
            model="demo", prompt="The", max_tokens=16, n=4, seed=11, temperature=1.5, extra_body={"top_k": -1}
        )
        return [c.text for c in answer.choices]

    first = ask()
    assert len(set(first)) > 1
    assert ask() == first


def test_one_seed_one_answer_without_a_seed_many(client: openai.OpenAI) -> None:
    def ask(**fields: int) -> str:
        answer = client.completions.create(
            model="demo", prompt="The", max_tokens=16, temperature=2, extra_body={"top_k": -1}, **fields
        )
        return answer.choices[0].text

    assert ask(seed=1) == ask(seed=1)
    assert len({ask() for _ in range(5)}) > 1


def test_logprobs_unary_and_streamed(client: openai.OpenAI) -> None:
    ask = {"model": "demo", "messages": HELLO, "temperature": 0, "max_tokens": 32, "logprobs": True}
    answer = client.chat.completions.create(**ask)
    assert answer.choices[0].logprobs
    content = answer.choices[0].logprobs.content or []
    assert len(content) == answer.usage.completion_tokens  # type: ignore[union-attr]
    assert all(t.logprob <= 0 for t in content)
    streamed = [
        t
        for c in client.chat.completions.create(stream=True, **ask)
        for t in ((c.choices[0].logprobs.content or []) if c.choices[0].logprobs else [])
    ]
    assert [(t.token, t.logprob) for t in streamed] == [(t.token, t.logprob) for t in content]


def test_a_stop_string_ends_the_answer_and_is_not_shown(client: openai.OpenAI) -> None:
    ask = {"model": "demo", "messages": HELLO, "temperature": 0, "max_tokens": 64}
    text = client.chat.completions.create(**ask).choices[0].message.content or ""
    middle = text[3:6]
    cut = client.chat.completions.create(stop=[middle], **ask).choices[0]
    assert cut.message.content == text[: text.index(middle)]
    assert cut.finish_reason == "stop"


def test_max_tokens_ends_with_length(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="demo", messages=HELLO, temperature=0, max_completion_tokens=2)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage
    assert answer.usage.completion_tokens == 2


def test_beam_search(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="demo", prompt="Hello", max_tokens=8, n=2, best_of=3)
    assert len(answer.choices) == 2
    assert answer.choices[0].text != answer.choices[1].text


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


def test_tokens_out_of_the_vocabulary_are_refused_and_named(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match=r"prompt: 10000000 is not a token id"):
        client.completions.create(model="demo", prompt=[5, 10_000_000], max_tokens=2)
    assert client.completions.create(model="demo", prompt=[5, 6], max_tokens=2).usage


def test_a_request_id_comes_back(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="demo", messages=HELLO, max_tokens=2, extra_headers={"X-Request-Id": "mine-1"}
    )
    assert answer._request_id == "mine-1"


def test_unicode_survives_both_ways(client: openai.OpenAI, server: Process) -> None:
    text = "Grüße, 世界! 🙂 \u200d"
    answer = client.completions.create(model="demo", prompt=text, echo=True, max_tokens=1)
    assert answer.choices[0].text.startswith(text)
