"""An app with a scripted speech-to-text engine, and the forms that clients send to it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import orjson
import pytest

from lean_ovms.api.app import App
from lean_ovms.features.media_files.audio import decoder
from lean_ovms.types import Response
from tests.api.conftest import apps_of, whole
from tests.features.speech.scripts import InlineDecoding, ScriptedSpeech, speech_model
from tests.forms import Part, form_request
from tests.recordings import plain_wav

TRANSCRIBE, TRANSLATE = "/v1/audio/transcriptions", "/v1/audio/translations"
WAV = plain_wav(1.5)
MakeSpeech = Callable[..., Awaitable[tuple[App, ScriptedSpeech]]]


@pytest.fixture
async def make_speech(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[MakeSpeech]:
    """Returns make_speech(script, **options) -> (app, engine). The model's name is "w". Files are decoded in this
    process."""
    monkeypatch.setattr(decoder, "_Process", InlineDecoding)
    async with apps_of(speech_model) as make:
        yield make


async def send(app: App, *parts: Part, path: str = TRANSCRIBE, file: bytes | None = WAV, **headers: str) -> Response:
    """Sends a form with a file at its end, as OpenAI's client does. Returns the response."""
    files: list[Part] = [] if file is None else [("file", ("a.wav", file))]
    return await app.handle(form_request(path, [*parts, *files], **headers))


async def said(app: App, *parts: Part, **more: Any) -> Any:
    """Returns the JSON of a response, and checks that its status is 200."""
    response = await send(app, *parts, **more)
    assert response.status == 200, response.body
    return await whole(response)


async def text_of(app: App, *parts: Part, **more: Any) -> tuple[str, str]:
    """Returns the content type and the text of a response, and checks that its status is 200."""
    response = await send(app, *parts, **more)
    assert response.status == 200, response.body
    assert isinstance(response.body, bytes)
    await response.aclose()
    return dict(response.headers)["Content-Type"], response.body.decode()


async def refused(app: App, *parts: Part, status: int = 400, **more: Any) -> tuple[str, str | None]:
    """Returns message and param of an error, and checks its status."""
    response = await send(app, *parts, **more)
    assert response.status == status, response.body
    assert isinstance(response.body, bytes)
    error = orjson.loads(response.body)["error"]
    await response.aclose()
    assert set(error) == {"message", "type", "param", "code"}
    return error["message"], error["param"]
