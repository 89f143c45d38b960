"""Spoken answers in chats: OpenAI's chunks and message, formats, errors, disconnects. Both engines are fakes."""

from __future__ import annotations

import asyncio
import base64
import io
import wave
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from copy import copy
from dataclasses import replace
from typing import Any

import orjson
import pytest

from lean_ovms.api.app import App
from lean_ovms.engine.protocol import SpokenTokens
from lean_ovms.errors import BadRequest, EngineFailure
from lean_ovms.features.voice.records import Speak
from lean_ovms.observability.records import RequestRecord
from lean_ovms.types import Request, Response
from lean_ovms.types.audio import VoiceInfo
from tests.api.conftest import MakeApp, events, get, parts, post, whole
from tests.fakes import FakeEngine, say
from tests.features.voice.fakes import FakeVoiceEngine, fake_voice
from tests.waiting import cancel

SAID = ["The first sentence ", "is here. The ", "second one is there! And", " more"]
WHOLE = "".join(SAID)
TOKENS = len(WHOLE) + 1
"""The fake engine generates one token per character, and the end."""
SENTENCES = ["The first sentence is here.", "The second one is there!", "And more"]
MakeSpeaking = Callable[..., Awaitable[tuple[App, FakeEngine, FakeVoiceEngine]]]


@pytest.fixture
def make_speaking(make_app: MakeApp) -> MakeSpeaking:
    """Returns make_speaking(script, **options) -> (app, text engine, voice engine).

    The text-to-speech model's name is "v". The keyword `voice` has options for it.
    """

    async def make(script: Any = None, *, voice: Any = None, **options: Any) -> Any:
        app, engine = await make_app(script or say(*SAID), **{"audio_output_model": "v", **options})
        model, speaking = await fake_voice(**(voice or {}))
        app.registry.install(model)
        return app, engine, speaking

    return make


async def chat(app: App, form: str | None = "wav", **more: Any) -> Response:
    asked: Any = {"modalities": ["text", "audio"], "audio": {"format": form}}
    messages = [{"role": "user", "content": "hi"}]
    return await post(app, "/v1/chat/completions", {"model": "m", "messages": messages, **asked, **more})


async def respond(app: App, form: str = "wav", **more: Any) -> Response:
    asked: Any = {"modalities": ["text", "audio"], "audio": {"format": form}}
    return await post(app, "/v1/responses", {"model": "m", "input": "hi", **asked, **more})


async def refusal(response: Response) -> tuple[int, str, str]:
    error = (await whole(response))["error"]
    return response.status, error["message"], error["param"]


def frames(data: bytes) -> tuple[int, int]:
    with wave.open(io.BytesIO(data)) as file:
        return file.getframerate(), file.getnframes()


SAMPLES = sum(len(sentence) * 160 for sentence in SENTENCES)
"""The samples at 16 kHz that the fake voice generates."""


# --- answers


async def test_a_message_has_audio_and_its_transcript(make_speaking: MakeSpeaking) -> None:
    app, _, voice = await make_speaking()
    found = await whole(await chat(app, logprobs=True))
    [choice] = found["choices"]
    message = choice["message"]
    assert (message["role"], message["content"], choice["finish_reason"]) == ("assistant", None, "stop")
    audio = message["audio"]
    assert set(audio) == {"id", "data", "expires_at", "transcript"}
    assert audio["transcript"] == WHOLE
    assert audio["expires_at"] >= found["created"]
    assert frames(base64.b64decode(audio["data"], validate=True)) == (16_000, SAMPLES)
    assert [text for text, _, _ in voice.asked] == SENTENCES
    assert [begun for _, _, begun in voice.asked] == [False, True, True]
    assert len(choice["logprobs"]["content"]) == TOKENS


@pytest.mark.parametrize(
    ("form", "start"), [("flac", b"fLaC"), ("opus", b"OggS"), ("mp3", b"\xff\xf3"), ("pcm16", b"")]
)
async def test_formats(make_speaking: MakeSpeaking, form: str, start: bytes) -> None:
    app, _, _ = await make_speaking()
    [choice] = (await whole(await chat(app, form)))["choices"]
    data = base64.b64decode(choice["message"]["audio"]["data"])
    assert data.startswith(start)
    assert form != "pcm16" or len(data) == 2 * SAMPLES * 24_000 // 16_000


async def test_chunks_are_openais_and_their_fold_is_the_message(make_speaking: MakeSpeaking) -> None:
    app, _, _ = await make_speaking()
    [unary] = (await whole(await chat(app, "pcm16")))["choices"]
    *found, done = await events(await chat(app, "pcm16", stream=True, stream_options={"include_usage": True}))
    *chunks, counts = found
    assert (done, counts["usage"]["completion_tokens"]) == ("[DONE]", TOKENS)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert (deltas[0], deltas[-1]) == ({"role": "assistant", "content": None}, {})
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[-2:]] == [None, "stop"]
    audio = [delta["audio"] for delta in deltas[1:-1]]
    assert [place for place, one in enumerate(audio) if "id" in one] == [0]
    assert [place for place, one in enumerate(audio) if "expires_at" in one] == [len(audio) - 1]
    assert all(len(one.get("data", "")) <= 32_000 for one in audio)
    joined = {key: "".join(one.get(key, "") for one in audio) for key in ("transcript", "data")}
    assert joined == {key: unary["message"]["audio"][key] for key in joined}
    assert not any("content" in delta for delta in deltas[1:])


async def test_reasoning_and_calls_are_not_spoken(make_speaking: MakeSpeaking) -> None:
    app, _, voice = await make_speaking(say("<think>", "hm", "</think>", "Well."), reasoning_parser="qwen3")
    [choice] = (await whole(await chat(app)))["choices"]
    assert choice["message"]["reasoning_content"] == "hm"
    assert choice["message"]["audio"]["transcript"] == "Well."
    assert [text for text, _, _ in voice.asked] == ["Well."]


async def test_the_voice_and_its_limit(make_speaking: MakeSpeaking) -> None:
    app, _, voice = await make_speaking(voice={"max_speech_characters": 30})
    voice.describe(voices=["ada", "loud"])
    [choice] = (await whole(await chat(app, audio={"format": "wav", "voice": {"id": "loud"}})))["choices"]
    assert {params.voice for _, params, _ in voice.asked} == {"loud"}
    assert (choice["message"]["audio"]["transcript"], choice["finish_reason"]) == (WHOLE[:30], "length")


async def test_sentences_are_those_of_the_client_and_the_record_is_the_texts(
    make_speaking: MakeSpeaking, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, engine, voice = await make_speaking()
    call, clients = voice.call, []
    records: list[RequestRecord] = []
    observe = app.services.records.observe

    async def spoken(make: Callable[[int], Speak]) -> bytes:
        clients.append(make(1).client)
        return await call(make)

    monkeypatch.setattr(voice, "call", spoken)
    monkeypatch.setattr(app.services.records, "observe", lambda *given: (records.append(given[2]), observe(*given))[1])
    body = {"messages": [{"role": "user", "content": "hi"}], "modalities": ["text", "audio"], "stream": True}
    request = Request("POST", "/v1/chat/completions", body=orjson.dumps({**body, "audio": {"format": "pcm16"}}))
    request.peer = "192.0.2.7:4711"
    await events(await app.handle(request))
    assert clients == [engine.origins[0][0]] * len(SENTENCES)
    assert clients[0]
    assert [(record.model, len(record.generations)) for record in records] == [("m", 1)]


# --- errors

REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "no audio": ({"audio": None}, "Missing required parameter: 'audio'.", "audio"),
    "no format": ({"audio": {"voice": "ada"}}, "Missing required parameter: 'audio.format'.", "audio.format"),
    "aac": ({"audio": {"format": "aac"}}, "audio.format must be one of: wav, mp3, flac, opus, pcm16", "audio.format"),
    "a format in a stream": (
        {"stream": True},
        "Unsupported value: 'audio.format' does not support 'wav' when stream=true. Supported values are: 'pcm16'.",
        "audio.format",
    ),
    "two choices": ({"n": 2}, "n must be 1 for a spoken answer", "n"),
    "a modality": ({"modalities": ["text", "image"]}, 'modalities must be ["text"] or ["text", "audio"]', "modalities"),
    "a voice": ({"audio": {"format": "wav", "voice": "x"}}, "Requested voice 'x' not found in available voices: ada",
                "audio.voice"),
    "no voice": ({"audio": {"format": "wav", "voice": 3}}, "voice is not a string or an object with an id",
                 "audio.voice"),
    "an earlier answer": (
        {"messages": [{"role": "assistant", "audio": {"id": "audio_1"}}]},
        "spoken answers are not stored; send the transcript as content",
        "messages[0].audio",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
async def test_refusals(make_speaking: MakeSpeaking, case: str) -> None:
    app, engine, voice = await make_speaking()
    voice.describe(voices=["ada"])
    more, said, param = REFUSED[case]
    assert await refusal(await chat(app, **more)) == (400, said, param)
    assert engine.submitted == []


async def test_without_the_option_it_is_named_and_a_batch_or_no_text_is_not_spoken(make_speaking: MakeSpeaking) -> None:
    app, _, _ = await make_speaking(audio_output_model="")
    status, message, param = await refusal(await chat(app))
    assert (status, param) == (400, "modalities")
    assert "--audio_output_model" in message
    app, _, _ = await make_speaking(audio_output_model="nobody")
    status, message, _ = await refusal(await chat(app))
    assert (status, message.partition(";")[0]) == (404, "--audio_output_model: The model 'nobody' does not exist")
    app, _, voice = await make_speaking(say(""))
    batch = [[{"role": "user", "content": "x"}]]
    body = {"messages": batch, "modalities": ["text", "audio"], "audio": {"format": "wav"}}
    assert (await refusal(await post(app, "/v1/chat/completions/batch", body)))[2] == "modalities"
    [choice] = (await whole(await chat(app)))["choices"]
    assert "audio" not in choice["message"]
    chunks = await events(await chat(app, "pcm16", stream=True))
    assert not any("audio" in chunk["choices"][0]["delta"] for chunk in chunks[:-1])
    assert voice.asked == []


async def test_an_error_of_the_voice_is_the_requests_and_stops_the_text(make_speaking: MakeSpeaking) -> None:
    app, _, voice = await make_speaking()
    voice.refusal = EngineFailure("the voice has failed")
    assert (await refusal(await chat(app)))[:2] == (500, "the voice has failed")
    voice.refusal = BadRequest("no soxr", param="response_format")
    assert await refusal(await chat(app, "pcm16")) == (400, "no soxr", "audio.format")
    voice.refusal = EngineFailure("the voice has failed")
    *_, failed, done = await events(await chat(app, "pcm16", stream=True))
    assert (failed["error"]["message"], done) == ("the voice has failed", "[DONE]")
    assert all(not model.in_flight for model in app.registry.models.values())


async def read(response: Response, until: bytes = b"never") -> None:
    async with aclosing(parts(response)) as found:
        async for part in found:
            if until in part:
                return


async def asked_twice(voice: FakeVoiceEngine) -> None:
    while len(voice.asked) < 2:
        await asyncio.sleep(0)


@pytest.mark.parametrize(("send", "heard"), [(chat, b'"data"'), (respond, b"audio.delta")])
async def test_a_sentence_is_heard_while_the_text_goes_on_until_the_client_leaves(
    make_speaking: MakeSpeaking, send: Callable[..., Awaitable[Response]], heard: bytes
) -> None:
    app, engine, voice = await make_speaking(say("The first sentence is here. ", "The second one", reason=None))
    await asyncio.wait_for(read(await send(app, "pcm16", stream=True), heard), 300)
    assert [text for text, _, _ in voice.asked] == SENTENCES[:1]
    assert len(engine.cancelled) == 1
    assert all(not model.in_flight for model in app.registry.models.values())


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_stops_the_speech(make_speaking: MakeSpeaking, stream: bool) -> None:
    app, _, voice = await make_speaking()
    voice.gate = asyncio.Event()  # the second sentence never arrives

    async def client() -> None:
        response = await chat(app, "pcm16", stream=stream)
        await read(response)

    reading = asyncio.ensure_future(client())
    await asyncio.wait_for(asked_twice(voice), 300)
    await cancel(reading)
    assert voice.cancelled == [SENTENCES[1]]
    assert all(not model.in_flight for model in app.registry.models.values())


async def test_the_text_model_is_free_before_the_speech_has_ended(make_speaking: MakeSpeaking) -> None:
    app, _, voice = await make_speaking()
    voice.gate = asyncio.Event()
    request = asyncio.ensure_future(chat(app))
    await asyncio.wait_for(asked_twice(voice), 300)
    await asyncio.wait_for(app.registry.get("m").in_flight.drained(), 300)
    assert app.registry.get("v").in_flight
    voice.gate.set()
    assert (await request).status == 200


# --- a model that speaks itself

OWN = VoiceInfo(sample_rate=24_000, voices=["chelsie", "ethan"])
SECOND = bytes(range(200)) * 240
"""The samples of one second."""


@pytest.fixture
async def own(make_app: MakeApp) -> tuple[App, FakeEngine]:
    script = [
        SpokenTokens(0, 0, list(b"Hell"), None, None, b""),
        SpokenTokens(0, 0, [], None, None, SECOND),
        SpokenTokens(0, 0, [], None, None, SECOND[:1000]),
        SpokenTokens(0, 0, list(b"o"), None, "length", b""),
    ]
    app, engine = await make_app(lambda *_: list(map(copy, script)))
    engine.info = replace(engine.info, voices=OWN, capabilities=["speech"])
    return app, engine


async def test_a_model_speaks_itself(own: tuple[App, FakeEngine]) -> None:
    app, engine = own
    found = await whole(await chat(app, audio={"format": "wav", "voice": "Ethan"}, max_tokens=5))
    [choice] = found["choices"]
    assert choice["message"]["audio"]["transcript"] == "Hello"
    assert frames(base64.b64decode(choice["message"]["audio"]["data"])) == (24_000, (len(SECOND) + 1000) // 2)
    await chat(app)
    assert [sampling.speaker for _, sampling in engine.submitted] == ["ethan", ""]
    [listed] = (await whole(await get(app, "/v1/models")))["data"]
    assert (listed["output_modalities"], listed["voices"]["voices"]) == (["text", "audio"], OWN.voices)
    assert listed["max_model_len"]


async def test_a_stream_of_a_model_that_speaks_itself(own: tuple[App, FakeEngine]) -> None:
    app, _ = own
    chunks = (await events(await chat(app, "pcm16", stream=True)))[:-1]
    deltas = [chunk["choices"][0]["delta"].get("audio", {}) for chunk in chunks]
    assert "".join(delta.get("transcript", "") for delta in deltas) == "Hello"
    pieces = [base64.b64decode(delta["data"]) for delta in deltas if "data" in delta]
    assert b"".join(pieces) == SECOND + SECOND[:1000]
    assert max(map(len, pieces)) <= 24_000
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("more", "param", "said"),
    [
        ({"audio": {"format": "wav", "voice": "alloy"}}, "audio.voice", "available voices: chelsie, ethan"),
        ({"stop": ["."]}, "stop", "stop is not supported"),
        ({"n": 2}, "n", "n must be 1"),
    ],
)
async def test_refusals_of_a_model_that_speaks_itself(
    own: tuple[App, FakeEngine], more: Any, param: str, said: str
) -> None:
    app, engine = own
    status, message, where = await refusal(await chat(app, **more))
    assert (status, where, said in message) == (400, param, True), message
    assert engine.submitted == []


# --- responses


async def test_a_response_has_audio_that_is_not_kept(make_speaking: MakeSpeaking) -> None:
    app, _, voice = await make_speaking()
    found = await whole(await respond(app))
    [item] = found["output"]
    text, audio = item["content"]
    assert (found["status"], text["text"], audio["type"], audio["transcript"]) == (
        "completed",
        WHOLE,
        "output_audio",
        WHOLE,
    )
    assert frames(base64.b64decode(audio["data"], validate=True)) == (16_000, SAMPLES)
    assert [text for text, _, _ in voice.asked] == SENTENCES
    [kept] = (await whole(await get(app, f"/v1/responses/{found['id']}")))["output"]
    assert kept["content"] == [text]
    said = {"role": "assistant", "content": [{"type": "output_text", "text": WHOLE}, audio]}
    assert (
        await respond(app, input=[{"role": "user", "content": "hi"}, said, {"role": "user", "content": "?"}])
    ).status == 200


@pytest.mark.parametrize("of_its_own", [False, True])
async def test_events_of_audio_are_openais(
    make_speaking: MakeSpeaking, own: tuple[App, FakeEngine], of_its_own: bool
) -> None:
    app = own[0] if of_its_own else (await make_speaking())[0]
    [item] = (await whole(await respond(app, "pcm16")))["output"]
    *found, _ = await events(await respond(app, "pcm16", stream=True))
    kinds = [event["type"] for event in found]
    pieces = [base64.b64decode(event["delta"]) for event in found if event["type"] == "response.audio.delta"]
    assert b"".join(pieces) == base64.b64decode(item["content"][1]["data"])
    assert all(pieces)
    assert max(map(len, pieces)) <= 24_000
    assert kinds.count("response.audio.done") == 1
    assert kinds.index("response.audio.done") < kinds.index("response.output_text.done")
    assert found[-1]["response"]["output"][0]["content"] == item["content"][:1]
    assert [event["sequence_number"] for event in found] == list(range(len(found)))


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"background": True}, "modalities"),
        ({"audio": None}, "audio"),
        ({"stream": True}, "audio.format"),
        ({"n": 2}, "n"),
    ],
)
async def test_responses_that_are_not_spoken(make_speaking: MakeSpeaking, more: dict[str, Any], param: str) -> None:
    app, engine, _ = await make_speaking()
    assert (await refusal(await respond(app, **more)))[::2] == (400, param)
    assert engine.submitted == []
