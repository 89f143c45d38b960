"""Each value that an official SDK declares for a field of a request is taken, or refused for a listed reason.

A value that comes with a new SDK fails here until it is read, or listed.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator
from typing import Any

import pytest

from lean_ovms.api.fields import doc_of
from lean_ovms.api.generation.common_fields import ACCEPTED, UNSUPPORTED
from lean_ovms.api.router import imported
from lean_ovms.composition import compose
from lean_ovms.features.responses import fields as responses
from tests.api.conftest import MakeApp, post, whole
from tests.fakes import say
from tests.sdk_types import examples, members

pytestmark = pytest.mark.slow

USER = [{"role": "user", "content": "hi"}]
APART = ("model", "stream", "stream_options", "tools", "messages", "input")
"""Fields whose values are not choices, or that test_sdk_histories has."""
REFUSED = (
    "audio.format must be one of",
    "this model does not generate audio",
    "tool_choice is required, but no tools are given",
    "tool_choice names 'x', which is not in tools",
    "tool_choice.name is not a valid string",
    "is not supported",
    "'x' not found",
    "stored prompt templates are not supported",
    "compaction: this endpoint does not compact conversations",
    "container: this server does not run code",
    "thread: conversations are not stored",
)
"""Reasons for which a value is refused."""


HEADERS = {"betas"}
"""Parameters that an SDK sends as headers."""


def choices(kind: Any) -> Iterator[Any]:
    """Yields each literal of a field's type, and examples of its objects with each literal of their members."""
    for one in members(kind):
        if typing.get_origin(one) is typing.Literal:
            yield from typing.get_args(one)
        elif typing.is_typeddict(one) or hasattr(one, "__required_keys__"):
            whole_object = max(examples(one, {}), key=len)
            yield whole_object
            for name, hint in typing.get_type_hints(one).items():
                literals = [part for part in members(hint) if typing.get_origin(part) is typing.Literal]
                yield from (whole_object | {name: value} for part in literals for value in typing.get_args(part))


def parameters() -> Iterator[tuple[str, dict[str, Any], Any]]:
    from anthropic.types import message_create_params as messages
    from anthropic.types.beta import message_create_params as beta
    from openai.types.chat import completion_create_params as chat
    from openai.types.responses import response_create_params as creation

    yield "/v1/chat/completions", {"messages": USER}, chat.CompletionCreateParamsNonStreaming
    yield "/v1/responses", {"input": "hi"}, creation.ResponseCreateParamsNonStreaming
    for module in (messages, beta):
        yield "/v1/messages", {"messages": USER, "max_tokens": 5}, module.MessageCreateParamsNonStreaming


def bodies() -> Iterator[tuple[str, Any]]:
    """Yields each endpoint with a type of its body that an SDK declares."""
    from openai.types import batch_create_params as batch
    from openai.types import completion_create_params as completions
    from openai.types import embedding_create_params as embeddings
    from openai.types import file_create_params as files
    from openai.types import image_create_variation_params as variations
    from openai.types import image_edit_params as edits
    from openai.types import image_generate_params as images
    from openai.types.audio import speech_create_params as speech
    from openai.types.audio import transcription_create_params as transcriptions
    from openai.types.audio import translation_create_params as translations
    from openai.types.conversations import conversation_create_params as conversations
    from openai.types.responses import input_token_count_params as input_tokens
    from openai.types.responses import response_compact_params as compact

    yield from ((path, kind) for path, _, kind in parameters())
    yield "/v1/completions", completions.CompletionCreateParamsNonStreaming
    yield "/v1/responses/input_tokens", input_tokens.InputTokenCountParams
    yield "/v1/responses/compact", compact.ResponseCompactParams
    yield "/v1/conversations", conversations.ConversationCreateParams
    yield "/v1/embeddings", embeddings.EmbeddingCreateParams
    yield "/v1/audio/transcriptions", transcriptions.TranscriptionCreateParamsNonStreaming
    yield "/v1/audio/translations", translations.TranslationCreateParams
    yield "/v1/audio/speech", speech.SpeechCreateParams
    yield "/v1/images/generations", images.ImageGenerateParamsNonStreaming
    yield "/v1/images/edits", edits.ImageEditParamsNonStreaming
    yield "/v1/images/variations", variations.ImageCreateVariationParams
    yield "/v1/batches", batch.BatchCreateParams
    yield "/v1/files", files.FileCreateParams


def test_no_field_of_an_sdk_is_dropped_silently() -> None:
    docs = {(route.bases[0] + route.path): route for route in compose().routes if route.method == "POST"}
    everywhere = compose().harmless | ACCEPTED.names | UNSUPPORTED.names | set(responses.REFUSED) | HEADERS
    for path, kind in bodies():
        known = everywhere | {row.name for row in doc_of(imported(docs[path])).body}
        assert set(typing.get_type_hints(kind)) <= known, path


async def test_every_choice_of_an_sdk_is_taken(make_app: MakeApp) -> None:
    app, _ = await make_app(lambda *_: say("x"), capable=True)
    refused, count = list[str](), 0
    for path, body, kind in parameters():
        for name, hint in typing.get_type_hints(kind).items():
            for value in () if name in APART else choices(hint):
                count += 1
                response = await post(app, path, {"model": "m", **body, name: value})
                answer = str(await whole(response))
                if response.status != 200 and not any(why in answer for why in REFUSED):
                    refused.append(f"{path} {name}: {response.status} {answer[:200]} for {value}"[:400])
    assert not refused
    assert count > 100
