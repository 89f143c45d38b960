"""Chunks are the same on the fast path, which nearly all of them take, and on the general one."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from lean_ovms.features.chat.chunks import ChoiceState, ChunkOptions, Chunks, Envelope
from lean_ovms.types import Usage

ENVELOPE = Envelope(id="chatcmpl-1", model='a "model"', object="chat.completion.chunk", created=7)


def chunks(**options: bool) -> Chunks:
    running: Any = SimpleNamespace(usage=Usage(3, 2), prompt_ids=[1, 2])
    return Chunks(ENVELOPE, running, ChunkOptions(**options))


@pytest.mark.parametrize("usage", [False, True])
@pytest.mark.parametrize("index", [0, 3])
@pytest.mark.parametrize("text", ["", "word", 'quote " and \u2028 and 🙂'])
def test_a_chunk_of_text_is_what_the_long_way_makes_of_it(usage: bool, index: int, text: str) -> None:
    content = b'"delta":{"content":%b}' % orjson.dumps(text)
    long = chunks(usage=usage)
    long._plain = False

    made = [chunks(usage=usage).chunk(index, content, ChoiceState()) for _ in range(2)]

    assert made == [long.chunk(index, content, ChoiceState())] * 2
    said = json.loads(made[0].removeprefix(b"data: "))
    assert said["choices"] == [{"index": index, "logprobs": None, "delta": {"content": text}, "finish_reason": None}]
    assert said.get("usage", "absent") == (None if usage else "absent")


def test_what_is_not_plain_is_written_the_long_way() -> None:
    content = b'"delta":{"content":"x"}'

    def parsed(chunk: bytes) -> dict[str, Any]:
        body: dict[str, Any] = json.loads(chunk.removeprefix(b"data: "))
        return body

    assert parsed(chunks().chunk(0, content, ChoiceState(), finish="stop"))["choices"][0]["finish_reason"] == "stop"
    assert parsed(chunks().chunk(0, content, ChoiceState(), b'{"content":[]}'))["choices"][0]["logprobs"] == {
        "content": []
    }
    assert parsed(chunks(continuous=True).chunk(0, content, ChoiceState()))["usage"]["completion_tokens"] == 2
    assert parsed(chunks(token_ids=True).chunk(0, content, ChoiceState(tokens=[5])))["choices"][0]["token_ids"] == [5]
