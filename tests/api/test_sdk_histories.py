"""Conversations that began with another provider can continue here: items, blocks and messages of all types that an
official SDK can send are accepted, in their role.

A type of a new SDK fails here until it is supported, or listed with the reason.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.api.conftest import MakeApp, post, whole
from tests.fakes import say
from tests.sdk_types import examples, members

pytestmark = pytest.mark.slow

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
URL = f"data:image/png;base64,{PNG}"
FILE = "data:text/plain;base64,eA=="
USER = {"role": "user", "content": "hi"}

REFUSED = (
    "supports only text input",
    "this model does not read audio",
    "input_image requires image_url",
    "this server does not store files",
    "file does not have file_data",
    "Invalid PDF file",
    "file_data is not a file in base64",
    "type must be base64 or url",
    "a document must be a text, a PDF in base64",
    "the URL of a file must be",
    "input_file requires one of",
    "Item with id 'x' not found",
    "input item type 'compaction_trigger'",
    "The function of each tool_call must have a name",
    "Each tool_call must have a 'function' object",
)
"""Reasons for which a user's own content, a reference, or an item that requests an action may be rejected."""

Case = tuple[str, list[dict[str, Any]]]
"""The name of a type, and bodies that contain it, one of which must be accepted."""


def of_responses() -> Iterator[Case]:
    from openai.types.responses.response_input_item_param import ResponseInputItemParam

    values = {"image_url": URL, "arguments": "{}", "file_data": FILE, "result": PNG}
    for kind in members(ResponseInputItemParam):
        for item in examples(kind, values):
            yield kind.__name__, [{"input": [USER, item, USER], "store": False}]


def of_chat() -> Iterator[Case]:
    from openai.types.chat import ChatCompletionMessageParam

    values = {"url": URL, "arguments": "{}", "file_data": FILE, "data": PNG}
    for kind in members(ChatCompletionMessageParam):
        for message in examples(kind, values):
            yield kind.__name__, [{"messages": [USER, message, USER]}]


def of_anthropic() -> Iterator[Case]:
    from anthropic.types import ContentBlockParam
    from anthropic.types.beta import BetaContentBlockParam

    values = {"data": PNG, "transformations": None, "tool_changes": None}
    for union in (ContentBlockParam, BetaContentBlockParam):
        for kind in members(union):
            for block in examples(kind, values):
                said = {"role": "assistant", "content": [block]}
                yield (
                    kind.__name__,
                    [
                        {"messages": [USER, {"role": "user", "content": [block]}, USER], "max_tokens": 5},
                        {"messages": [USER, said, USER], "max_tokens": 5},
                    ],
                )


def of_ollama() -> Iterator[Case]:
    import ollama

    for role in ("user", "assistant", "system", "tool"):
        for message in examples(ollama.Message, {"role": role, "images": None, "arguments": {}}):
            yield f"Message of {role}", [{"messages": [USER, message, USER], "stream": False}]


def of_cohere() -> Iterator[Case]:
    from cohere import ChatMessageV2

    for kind in members(ChatMessageV2):
        for message in examples(kind, {"arguments": "{}", "url": URL, "detail": "auto"}):
            yield kind.__name__, [{"messages": [USER, message, USER]}]


APIS = [
    ("/v1/responses", of_responses, 30),
    ("/v1/chat/completions", of_chat, 6),
    ("/v1/messages", of_anthropic, 30),
    ("/api/chat", of_ollama, 4),
    ("/v2/chat", of_cohere, 4),
]


@pytest.mark.parametrize(("path", "cases", "kinds"), APIS, ids=[path for path, *_ in APIS])
async def test_every_type_of_an_sdk_is_taken(make_app: MakeApp, path: str, cases: Any, kinds: int) -> None:
    app, _ = await make_app(lambda *_: say("x"), capable=True)
    seen, refused = set(), list[str]()
    for name, bodies in cases():
        seen.add(name)
        answers = []
        for body in bodies:
            response = await post(app, path, {"model": "m", **body})
            answers.append((response.status, json.dumps(await whole(response))))
            if response.status == 200:
                break
        status, text = answers[-1]
        if status != 200 and not any(why in answer for why in REFUSED for _, answer in answers):
            refused.append(f"{name}: {status} {text[:300]} for {json.dumps(bodies[-1])[:400]}")
    assert not refused
    assert len(seen) >= kinds
