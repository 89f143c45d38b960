"""/audio/speech: all fields, forms of answers and errors."""

from __future__ import annotations

import base64
import io
import struct
import wave
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import orjson
import pytest

from lean_ovms.api.app import App
from lean_ovms.config import Config
from lean_ovms.errors import EngineFailure, TooManyRequests
from lean_ovms.models.text_model import TextModel
from lean_ovms.observability.records import RequestRecord
from lean_ovms.types import Response
from tests.api.conftest import apps_of, events, get, parts, post, warnings_of, whole
from tests.fakes import FakeEngine, say
from tests.features.voice.fakes import FakeVoiceEngine, fake_voice

PATH = "/v1/audio/speech"
ONE = "Hello."
TWO = "The first sentence is here. The second one is there!"
MakeVoice = Callable[..., Awaitable[tuple[App, FakeVoiceEngine]]]


@pytest.fixture
async def make_voice() -> AsyncIterator[MakeVoice]:
    """Returns make_voice(**options) -> (app, engine), loaded. The model's name is "v"."""
    async with apps_of(fake_voice) as make:
        yield make


async def data(response: Response) -> bytes:
    assert response.status == 200, response.body
    if isinstance(response.body, bytes):
        await response.aclose()
        return response.body
    return b"".join([part async for part in parts(response)])


def header(response: Response, name: str) -> list[str]:
    return [value for key, value in response.headers if key == name]


async def test_a_wav_file(make_voice: MakeVoice) -> None:
    app, engine = await make_voice()
    await (await post(app, PATH, {"input": TWO})).aclose()  # unread
    assert app.registry.models["v"].in_flight._count == 0
    engine.asked.clear()
    response = await post(app, PATH, {"model": "v", "input": ONE})
    assert header(response, "Content-Type") == ["audio/wav"]
    with wave.open(io.BytesIO(await data(response))) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, 16_000)
        assert file.getnframes() == len(ONE) * 160
    assert engine.asked[0][1].voice == ""


async def test_several_sentences_stream_and_ovms_paths_get_the_whole_file(make_voice: MakeVoice) -> None:
    app, _ = await make_voice()
    stream = [part async for part in parts(await post(app, PATH, {"input": TWO}))]
    assert [len(part) for part in stream] == [44 + 27 * 320, 24 * 320]
    assert struct.unpack_from("<I", stream[0], 40) == (0xFFFFFFFF,)
    response = await post(app, "/v3/audio/speech", {"input": TWO})
    assert isinstance(response.body, bytes)
    file = await data(response)
    assert file[44:] == b"".join(stream)[44:]
    assert struct.unpack_from("<I", file, 40) == (len(file) - 44,)
    streamed = await post(app, "/v3/audio/speech", {"input": TWO, "stream_format": "audio"})
    assert await data(streamed) == b"".join(stream)


@pytest.mark.parametrize(
    ("name", "media", "start"),
    [
        ("wav", "audio/wav", b"RIFF"),
        ("pcm", "audio/pcm", b""),
        ("flac", "audio/flac", b"fLaC"),
        ("opus", "audio/ogg", b"OggS"),
        ("mp3", "audio/mpeg", b"\xff\xf3"),
    ],
)
async def test_every_format(make_voice: MakeVoice, name: str, media: str, start: bytes) -> None:
    pytest.importorskip("soundfile")
    app, _ = await make_voice()
    for text in (ONE, TWO):
        response = await post(app, PATH, {"input": text, "response_format": name})
        assert header(response, "Content-Type") == [media]
        file = await data(response)
        assert file.startswith(start)
        assert name != "pcm" or text != ONE or len(file) == len(ONE) * 240 * 2  # 24,000 samples/s, whatever the model


async def test_events(make_voice: MakeVoice, monkeypatch: pytest.MonkeyPatch) -> None:
    app, _ = await make_voice(access_log=True)
    records: list[RequestRecord] = []
    monkeypatch.setattr(app.services.records, "finish", records.append)
    response = await post(app, PATH, {"input": TWO, "response_format": "pcm", "stream_format": "sse"})
    assert header(response, "Content-Type") == ["text/event-stream; charset=utf-8"]
    *deltas, done = await events(response)
    assert {delta["type"] for delta in deltas} == {"speech.audio.delta"}
    pcm = b"".join(base64.b64decode(delta["audio"]) for delta in deltas)
    assert pcm == await data(await post(app, PATH, {"input": TWO, "response_format": "pcm"}))
    assert done == {
        "type": "speech.audio.done",
        "usage": {"input_tokens": len(TWO), "output_tokens": 51, "total_tokens": len(TWO) + 51},
    }
    assert [(record.model, record.stream, record.ttft_s is None) for record in records] == [("v", True, False)] * 2


@pytest.mark.parametrize("name", ["wav", "flac"])
async def test_events_are_short_lines(make_voice: MakeVoice, name: str) -> None:
    pytest.importorskip("soundfile")
    app, _ = await make_voice()
    body = {"input": f"{'A long sentence ' * 6}. " * 3, "response_format": name, "speed": 0.25}
    file = await data(await post(app, PATH, body))
    response = await post(app, PATH, body | {"stream_format": "sse"})
    lines = (await data(response)).splitlines()
    assert max(map(len, lines)) < 1 << 16
    deltas = [orjson.loads(line[6:])["audio"] for line in lines if b"speech.audio.delta" in line]
    assert len(deltas) > 3
    assert b"".join(map(base64.b64decode, deltas)) == file


async def test_fields_reach_the_engine(make_voice: MakeVoice) -> None:
    app, engine = await make_voice()
    given = {"voice": {"id": "loud"}, "speed": 2, "language": "DE", "instructions": "whisper", "user": "u"}
    response = await post(app, PATH, {"input": ONE, **given})
    await data(response)
    params = engine.asked[0][1]
    assert (params.voice, params.speed, params.language) == ("loud", 2.0, "de")
    assert warnings_of(response) == ["instructions are not supported and were ignored"]
    engine.describe(voices=[], languages=[], speed=[1.0, 1.0])  # what a model does not have is ignored with a warning
    response = await post(app, PATH, {"input": ONE, "voice": "alloy", "speed": 1.5, "language": "en-us"})
    await data(response)
    params = engine.asked[1][1]
    assert (params.voice, params.speed, params.language) == ("", 1.0, "")
    assert len(warnings_of(response)) == 3


async def test_options_are_limits(make_voice: MakeVoice) -> None:
    app, engine = await make_voice(max_speech_characters=5, speed_min=0.5, speed_max=1.5)
    for body in ({"input": "123456"}, {"input": "1", "speed": 1.6}, {"input": "1", "speed": 0.4}):
        assert (await post(app, PATH, body)).status == 400
    assert engine.asked == []


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({}, "input", "input field is missing in JSON body"),
        ({"input": " \n"}, "input", "input is empty"),
        ({"input": "\u200b\ufeff"}, "", ""),
        ({"input": "x" * 4097}, "input", "input has 4097 characters, more than this server's limit of 4096"),
        ({"input": ONE, "voice": "alloy"}, "voice", "Requested voice 'alloy' not found in available voices: low, loud"),
        ({"input": ONE, "voice": 5}, "voice", "voice is not a string or an object with an id"),
        ({"input": ONE, "speed": 0.2}, "speed", "speed must be between speed_min (0.25) and speed_max (4)"),
        ({"input": ONE, "response_format": "aac"}, "response_format", "aac is not supported; it must be one of: wav,"),
        ({"input": ONE, "response_format": "x"}, "response_format", "response_format 'x' is unknown; it must be one"),
        ({"input": ONE, "stream_format": "x"}, "stream_format", "stream_format must be audio or sse"),
        ({"input": ONE, "language": "xx"}, "language", "language must be one of: en-us, de"),
    ],
)
async def test_refusals(make_voice: MakeVoice, body: dict[str, Any], param: str, message: str) -> None:
    app, _ = await make_voice()
    response = await post(app, PATH, {"model": "v", **body})
    if not param:
        await data(response)  # invisible characters are passed to the model
        return
    error = (await whole(response))["error"]
    assert (response.status, error["param"], error["type"]) == (400, param, "invalid_request_error")
    assert error["message"].startswith(message)


async def test_models_of_other_tasks(make_voice: MakeVoice) -> None:
    app, _ = await make_voice()
    chat = TextModel(Config(fake_engine=True, model_name="chat"), FakeEngine(say("hello")))  # type: ignore[arg-type]
    await chat.load()
    app.registry.install(chat)
    response = await post(app, PATH, {"model": "chat", "input": ONE})
    error = (await whole(response))["error"]
    assert (response.status, error["code"], error["param"]) == (404, "wrong_task", "model")
    assert "is for text generation, not for text to speech" in error["message"]
    response = await post(app, "/v1/chat/completions", {"model": "v", "messages": [{"role": "user", "content": "x"}]})
    assert response.status == 404
    assert "use it at /v1/audio/speech" in (await whole(response))["error"]["message"]
    await data(await post(app, PATH, {"input": ONE}))  # without a name, the model that speaks answers


async def test_a_refusal_before_the_first_sound_keeps_its_status(make_voice: MakeVoice) -> None:
    app, engine = await make_voice()
    engine.refusal = TooManyRequests("full")
    for text in (ONE, TWO):
        assert (await post(app, PATH, {"input": text})).status == 429


async def test_a_failure_after_the_first_sound(make_voice: MakeVoice) -> None:
    """An event reports it. A file ends abruptly, so that nobody takes it for complete."""
    app, engine = await make_voice()
    text = TWO + " <|raise|> is what fails here."
    *_, last = await events(await post(app, PATH, {"input": text, "stream_format": "sse"}))
    assert last["error"]["code"] == "engine_error"
    response = await post(app, PATH, {"input": text})
    with pytest.raises(EngineFailure):
        await data(response)
    assert len(engine.asked) == 6


async def test_voices_are_listed(make_voice: MakeVoice) -> None:
    app, _ = await make_voice()
    body = await whole(await get(app, "/v1/audio/voices"))
    assert body["voices"] == ["low", "loud"]
    assert body["data"][0] == {"id": "low", "name": "low", "model": "v"}
    model = await whole(await get(app, "/v1/models/v"))
    assert model["voices"] == {
        "sample_rate": 16000, "voices": ["low", "loud"], "languages": ["en-us", "de"], "speed": [0.25, 4.0]
    }  # fmt: skip
    assert model["output_modalities"] == ["audio"]
    assert "max_model_len" not in model
