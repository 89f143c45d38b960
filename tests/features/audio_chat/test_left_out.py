"""A server without audio in chats rejects audio parts, and answers requests for speech with text."""

from __future__ import annotations

from tests.api.conftest import MakeApp, post, warnings_of, whole
from tests.fakes import say


async def test_audio_is_refused_by_what_the_server_reads(make_app: MakeApp) -> None:
    app, _ = await make_app(say("fine"), without="vision,audio_chat,pdf")
    content = [{"type": "input_audio", "input_audio": {"data": "QUJD", "format": "wav"}}]
    body = {"model": "m", "messages": [{"role": "user", "content": content}]}
    response = await post(app, "/v1/chat/completions", body)
    assert response.status == 400
    assert (await whole(response))["error"]["message"] == "Unsupported content type: text is read, not 'input_audio'"


async def test_an_answer_is_a_text(make_app: MakeApp) -> None:
    app, _ = await make_app(say("fine"), without="audio_chat")
    messages = [{"role": "user", "content": "hi"}]
    body = {"model": "m", "messages": messages, "modalities": ["text", "audio"], "audio": {"format": "wav"}}
    response = await post(app, "/v1/chat/completions", body)
    assert (await whole(response))["choices"][0]["message"]["content"] == "fine"
    assert warnings_of(response) == [
        "audio is not supported and was ignored",
        "modalities is not supported and was ignored",
    ]
