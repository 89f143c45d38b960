"""Transcriptions as events, in OpenAI's and vLLM's form at once."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import Any

import pytest

from lean_ovms.errors import EngineFailure
from lean_ovms.features.media_files.audio import decoder
from lean_ovms.features.media_files.audio.decoder import AudioDecoder
from lean_ovms.features.speech.api import answers
from lean_ovms.features.speech.params import TextDelta, Word
from lean_ovms.observability.records import RequestRecord
from tests.api.conftest import events, parts
from tests.features.realtime.fakes import speech_app
from tests.features.speech.api.conftest import TRANSLATE, MakeSpeech, refused, said, send
from tests.features.speech.scripts import HELLO, InlineDecoding, spoken
from tests.recordings import pcm, tone, wav
from tests.streams import pieces

TWO = [*HELLO, *spoken(" Go", " on.", start=30.0, stopped="length")]
STREAM = ("stream", "true")


async def streamed(app: Any, *parts: Any, **more: Any) -> list[Any]:
    response = await send(app, STREAM, *parts, **more)
    assert response.status == 200, response.body
    assert ("Content-Type", "text/event-stream; charset=utf-8") in response.headers
    return await events(response)


async def test_each_event_is_openais_and_vllms(make_speech: MakeSpeech) -> None:
    app, engine = await make_speech(TWO)
    *deltas, done, last = await streamed(app)
    assert last == "[DONE]"
    assert [one["type"] for one in deltas] == ["transcript.text.delta"] * 5
    assert "".join(one["delta"] for one in deltas) == "Three one four. Go on."
    assert "".join(one["choices"][0]["delta"]["content"] for one in deltas) == done["text"]
    assert deltas[0]["logprobs"] == []
    assert {one["object"] for one in (*deltas, done)} == {"transcription.chunk"}
    assert len({(one["id"], one["created"], one["model"]) for one in (*deltas, done)}) == 1
    assert done["type"] == "transcript.text.done"
    assert done["text"] == (await said(app))["text"]
    assert done["usage"] == {
        "type": "tokens",
        "input_tokens": 158,
        "output_tokens": 5,
        "total_tokens": 163,
        "input_token_details": {"text_tokens": 8, "audio_tokens": 150},
    }
    assert done["choices"] == [{"index": 0, "delta": {"content": ""}, "finish_reason": "length"}]
    assert [one["choices"][0]["finish_reason"] for one in deltas] == [None] * 5
    assert engine.closed == 2
    assert [p.fallback for p, _ in engine.asked] == [False, True]


@pytest.mark.parametrize(
    ("asked", "options"), [([("stream_include_usage", "true")], {}), ([], {"enable_force_include_usage": True})]
)
async def test_usage_on_request(make_speech: MakeSpeech, asked: list[Any], options: dict[str, Any]) -> None:
    app, _ = await make_speech(**options)
    *_, usage, last = await streamed(app, *asked)
    assert last == "[DONE]"
    assert usage["choices"] == []
    assert usage["usage"] == {"prompt_tokens": 154, "completion_tokens": 3, "total_tokens": 157}
    assert "type" not in usage


async def test_usage_in_every_event_on_request(make_speech: MakeSpeech) -> None:
    app, _ = await make_speech()
    first, *_, done, _ = await streamed(app, ("stream_continuous_usage_stats", "true"))
    assert set(first["usage"]) == {"prompt_tokens", "completion_tokens", "total_tokens"}
    assert done["usage"]["total_tokens"] == done["usage"]["prompt_tokens"] + done["usage"]["completion_tokens"] == 157
    assert done["usage"]["type"] == "tokens"
    app, _ = await make_speech([])
    done, last = await streamed(app)  # silence is a stream of its end
    assert (done["type"], done["text"], last) == ("transcript.text.done", "", "[DONE]")


async def test_translations_text_and_details(make_speech: MakeSpeech) -> None:
    app, engine = await make_speech()
    first, *_, done, _ = await streamed(app, ("response_format", "text"), path=TRANSLATE)
    assert first["object"] == "translation.chunk"
    assert "segments" not in done
    *_, done, _ = await streamed(app, ("response_format", "verbose_json"))
    assert (done["language"], done["duration"], done["segments"][0]["text"]) == ("en", 1.5, " Three one four.")
    *_, done, _ = await streamed(app, ("timestamp_granularities[]", "word"))
    assert [one["word"] for one in done["words"]] == ["Three", "one", "four."]
    *deltas, done, _ = await streamed(app, ("include[]", "logprobs"))
    assert deltas[1]["logprobs"] == [{"token": " one", "logprob": -0.5, "bytes": list(b" one")}]
    assert len(done["logprobs"]) == 3
    assert [p.task for p, _ in engine.asked] == ["translate", *["transcribe"] * 3]


async def test_an_error_before_the_first_event_has_its_status(make_speech: MakeSpeech) -> None:
    failure = EngineFailure("gave up")
    app, engine = await make_speech([TextDelta(" Three"), failure])
    first, error, last = await streamed(app)  # after the first event, an error is an event
    assert (first["delta"], last) == ("Three", "[DONE]")
    assert error == {"error": {"message": "gave up", "type": "server_error", "param": None, "code": "engine_error"}}
    engine.script = [failure]
    assert await refused(app, STREAM, status=500) == ("gave up", None)
    engine.script = [RuntimeError("a bug")]
    assert (await refused(app, STREAM, status=500))[0] == "internal error"
    assert engine.closed == 3
    assert app.services.get(AudioDecoder).slots.used == 0


async def test_a_stream_has_its_access_line(make_speech: MakeSpeech) -> None:
    app, _ = await make_speech(TWO, access_log=True)
    seen: list[RequestRecord] = []
    finish = app.services.records.finish
    app.services.records.finish = lambda record: (seen.append(record), finish(record))[1]  # type: ignore[method-assign]

    async def as_a_transport() -> None:  # runs in a task whose context has no record
        await events(response)

    response = await send(app, STREAM)
    await contextvars.Context().run(asyncio.ensure_future, as_a_transport())
    [record] = seen
    assert (record.model, record.stream, record.status, record.chunks) == ("w", True, 200, 6)
    assert [(one.prompt_tokens, one.completion_tokens) for one in record.generations] == [(8, 5)]


async def test_a_slow_window_keeps_the_connection_alive(make_speech: MakeSpeech) -> None:
    app, engine = await make_speech(sse_ping_s=0.02)
    gate = asyncio.Event()
    begin = engine.open_lasting

    def slow(make: Any) -> Any:
        reply = begin(make)
        following = reply.next

        async def late() -> Any:
            await gate.wait()
            return await following()

        reply.next = late  # type: ignore[method-assign]
        return reply

    engine.open_lasting = slow  # type: ignore[method-assign]
    response = await send(app, STREAM)
    assert response.status == 200
    pings = 0
    async for part in parts(response):
        if part == b": ping\n\n":
            pings += 1
            if pings == 2:
                gate.set()
    assert pings >= 2


async def test_a_client_that_leaves_ends_the_work(make_speech: MakeSpeech) -> None:
    app, engine = await make_speech(TWO)
    response = await send(app, STREAM)
    assert not isinstance(response.body, bytes)
    body = pieces(response.body)
    await anext(body)
    await body.aclose()
    await response.aclose()
    assert engine.closed == 1
    assert app.services.get(AudioDecoder).slots.used == 0


async def test_the_length_is_that_of_the_whole_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if nobody speaks in the rest of it, of which there are no events."""
    monkeypatch.setattr(decoder, "_Process", InlineDecoding)
    app, _ = await speech_app()
    fields = [("response_format", "verbose_json"), ("chunking_strategy[type]", "server_vad")]
    file = wav(pcm(tone(1.0)) + bytes(32_000 * 120))
    *_, done, _ = await streamed(app, *fields, file=file)
    assert (done["text"], done["duration"]) == ("five five", 121.0)
    assert done["usage"]["input_token_details"]["audio_tokens"] == 12_100
    await app.close()


async def test_a_long_answer_is_made_beside_the_event_loop(
    make_speech: MakeSpeech, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[bool] = []
    make = answers._word

    def word(one: Word) -> Any:
        threads.append(threading.current_thread() is threading.main_thread())
        return make(one)

    monkeypatch.setattr(answers, "_word", word)
    app, _ = await make_speech(spoken(*[" one"] * 300))
    detailed = [("timestamp_granularities[]", "word"), ("response_format", "verbose_json")]
    *_, done, _ = await streamed(app, *detailed)
    assert len(done["words"]) == len((await said(app, *detailed))["words"]) == 300
    assert threads == [False] * 600
