"""The official client, as its users use it, with the demo model."""

from __future__ import annotations

import openai
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


def test_a_stop_string_ends_the_answer_and_is_not_shown(client: openai.OpenAI) -> None:
    ask = {"model": "demo", "messages": HELLO, "temperature": 0, "max_tokens": 64}
    text = client.chat.completions.create(**ask).choices[0].message.content or ""
    middle = text[3:6]
    cut = client.chat.completions.create(stop=[middle], **ask).choices[0]
    assert cut.message.content == text[: text.index(middle)]
    assert cut.finish_reason == "stop"


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
