"""Audio in conversations: a scripted speech model transcribes the parts in order; limits and errors."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lean_ovms.api.app import App
from lean_ovms.errors import BadRequest, EngineFailure
from lean_ovms.features.media_files.audio import decoder
from lean_ovms.types import Response
from tests.api.conftest import MakeApp, events, get, post, warnings_of, whole
from tests.fakes import INFO, FakeEngine, say
from tests.features.named_keys.files import written
from tests.features.speech.scripts import InlineDecoding, ScriptedSpeech, speech_model, spoken
from tests.recordings import plain_wav
from tests.waiting import cancel

SHORT, LONG = plain_wav(0.5), plain_wav(1.5)
MakeHearing = Callable[..., Awaitable[tuple[App, FakeEngine, ScriptedSpeech]]]


def by_length(data: bytes, _: Any) -> Any:
    return spoken(" Long", " one.") if len(data) > 20_000 else spoken(" Short.")


@pytest.fixture
def make_hearing(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> MakeHearing:
    """Returns make_hearing(script, **options) -> (app, text engine, speech engine). The speech model's name is "w"."""
    monkeypatch.setattr(decoder, "_Process", InlineDecoding)

    async def make(script: Any = by_length, **options: Any) -> tuple[App, FakeEngine, ScriptedSpeech]:
        app, engine = await make_app(say("fine"), **{"audio_input_model": "w", **options})
        speech, scripted = await speech_model(script)
        app.registry.install(speech)
        return app, engine, scripted

    return make


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def heard(data: bytes) -> dict[str, Any]:
    return {"type": "input_audio", "input_audio": {"data": encoded(data), "format": "wav"}}


def link(data: bytes) -> dict[str, Any]:
    return {"type": "audio_url", "audio_url": {"url": f"data:audio/wav;base64,{encoded(data)}"}}


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


async def chat(
    app: App, *parts: Any, path: str = "/v1/chat/completions", authorization: str = "", **more: Any
) -> Response:
    body = {"model": "m", "messages": [{"role": "user", "content": list(parts)}], **more}
    return await post(app, path, body, authorization=authorization)


async def refusal(response: Response) -> tuple[int, str, str]:
    error = (await whole(response))["error"]
    return response.status, error["message"], error["param"]


async def test_transcripts_take_the_place_of_their_parts(make_hearing: MakeHearing) -> None:
    app, engine, speech = await make_hearing()
    url = link(LONG)["audio_url"]["url"].replace("data:audio/wav;base64", "Data:audio/WAV;BASE64").replace("=", "%3D")
    bare = {"type": "audio_url", "audio_url": url}
    response = await chat(app, text("a"), heard(LONG), text("b"), link(SHORT), bare)
    found = await whole(response)
    prompt = "user:a\nLong one.\nb\nShort.\nLong one.;"
    assert engine.submitted[0][0] == prompt
    assert found["usage"]["prompt_tokens"] == len(prompt)
    assert warnings_of(response) == [
        f"messages[0].content[{place}] is the transcript of {seconds} s of audio by w"
        for place, seconds in ((1, 1.5), (3, 0.5), (4, 1.5))
    ]
    assert (len(speech.asked), speech.closed) == (3, 3)
    assert app.registry.get("m").input_modalities == ("text", "audio")


async def test_streams_and_responses_and_counts(make_hearing: MakeHearing) -> None:
    app, engine, _ = await make_hearing()
    stream = await chat(app, heard(SHORT), stream=True)
    assert len(warnings_of(stream)) == 1
    assert (await events(stream))[-1] == "[DONE]"
    ask = {"model": "m", "input": [{"role": "user", "content": [heard(SHORT), {"type": "input_text", "text": "b"}]}]}
    response = await post(app, "/v1/responses", ask)
    first = await whole(response)
    assert len(warnings_of(response)) == 1
    counted = await whole(await post(app, "/v1/responses/input_tokens", ask))
    assert counted["input_tokens"] == len("user:Short.\nb;")
    await post(app, "/v1/responses", {"model": "m", "input": "again", "previous_response_id": first["id"]})
    assert [prompt for prompt, *_ in engine.submitted] == [
        "user:Short.;",
        "user:Short.\nb;",
        "user:Short.\nb;assistant:fine;user:again;",
    ]


async def test_messages(make_hearing: MakeHearing) -> None:
    app, engine, _ = await make_hearing()
    response = await chat(app, heard(SHORT), text("b"), path="/v1/messages", max_tokens=5)
    assert (response.status, len(warnings_of(response))) == (200, 1)
    assert [prompt for prompt, *_ in engine.submitted] == ["user:Short.\nb;"]
    refused = await chat(app, {"type": "input_audio"}, path="/v1/messages", max_tokens=5)
    assert refused.status == 400
    assert "input_audio does not have data field" in (await whole(refused))["error"]["message"]


async def test_without_the_option_the_part_and_the_option_are_named(make_hearing: MakeHearing) -> None:
    app, engine, _ = await make_hearing(audio_input_model="")
    status, message, param = await refusal(await chat(app, text("a"), heard(SHORT)))
    assert (status, param) == (400, "messages[0].content[1]")
    assert "--audio_input_model" in message
    ask = {"model": "m", "input": [{"role": "user", "content": [heard(SHORT)]}]}
    status, message, param = await refusal(await post(app, "/v1/responses", ask))
    assert (status, param, "--audio_input_model" in message) == (400, "input", True)
    assert engine.submitted == []


WRONG: dict[str, tuple[Any, str, str]] = {
    "no data": ({"type": "input_audio", "input_audio": {}}, "input_audio does not have data field", ".input_audio"),
    "no url": ({"type": "audio_url", "audio_url": {"url": 3}}, "audio_url does not have url field", ".audio_url"),
    "an address": ({"type": "audio_url", "audio_url": "https://a.example/a.wav"}, "audio is not fetched", ""),
    "no base64": ({"type": "input_audio", "input_audio": {"data": "@@@"}}, "Invalid base64", ""),
    "no ASCII": ({"type": "input_audio", "input_audio": {"data": "\u00e4"}}, "Invalid base64", ""),
    "no audio": (heard(b"hello world"), "Invalid or unsupported audio file", ""),
    "a broken file": (heard(SHORT[:44]), "audio is empty", ""),
}


@pytest.mark.parametrize("case", WRONG)
async def test_a_part_that_cannot_be_read_is_named(make_hearing: MakeHearing, case: str) -> None:
    app, engine, speech = await make_hearing()
    part, said, where = WRONG[case]
    status, message, param = await refusal(await chat(app, heard(SHORT), part))
    assert (status, param) == (400, f"messages[0].content[1]{where}")
    assert said in message
    assert (engine.submitted, speech.closed) == ([], len(speech.asked))


@pytest.mark.parametrize(
    ("options", "said", "status"),
    [
        ({"max_audio_parts": 1}, "2 audio parts exceed this server's limit of 1 (--max_audio_parts)", 400),
        ({"max_audio_s": 2.5}, "all audio together is longer than this server's limit of 2.5 s (--max_audio_s)", 400),
        ({"max_audio_file_bytes": 20_000}, "--max_audio_file_bytes is 20000", 413),
    ],
)
async def test_limits(make_hearing: MakeHearing, options: dict[str, Any], said: str, status: int) -> None:
    app, engine, speech = await make_hearing(**options)
    parts = [heard(SHORT), heard(LONG)] if status == 413 else [heard(LONG), heard(LONG)]
    found, message, param = await refusal(await chat(app, *parts))
    assert (found, param) == (status, "messages[0].content[1]")
    assert said in message
    assert engine.submitted == []
    assert not ("max_audio_parts" in options and speech.asked)  # the number is checked before any part is transcribed


async def test_errors_of_the_speech_model_are_those_of_the_request(make_hearing: MakeHearing) -> None:
    app, engine, speech = await make_hearing()
    speech.script = [EngineFailure("the model has failed")]
    assert await refusal(await chat(app, heard(SHORT))) == (500, "the model has failed", "messages[0].content[0]")
    app.registry.remove("w")
    status, message, _ = await refusal(await chat(app, heard(SHORT)))
    assert (status, message) == (404, "--audio_input_model: The model 'w' does not exist; served models: m")
    assert engine.submitted == []
    app, _, _ = await make_hearing(audio_input_model="m")
    status, message, _ = await refusal(await chat(app, heard(SHORT)))
    assert status == 404
    assert message.startswith("--audio_input_model: The model 'm' is for text generation, not for speech to text")


async def test_a_client_that_leaves_stops_the_transcription(make_hearing: MakeHearing) -> None:
    app, engine, speech = await make_hearing()
    started = asyncio.Event()

    begin = speech.open_lasting

    def endless(make: Any) -> Any:
        async def never() -> None:
            started.set()
            await asyncio.Event().wait()

        reply = begin(make)
        reply.next = never  # type: ignore[method-assign, assignment]
        return reply

    speech.open_lasting = endless  # type: ignore[method-assign]
    model = app.registry.models["w"]
    request = asyncio.ensure_future(chat(app, heard(SHORT)))
    await started.wait()
    assert len(model.in_flight) == 1
    await cancel(request)
    assert len(model.in_flight) == 0
    assert engine.submitted == []


async def test_where_nothing_is_generated_audio_is_refused(make_hearing: MakeHearing) -> None:
    app, _, speech = await make_hearing()
    for path in ("/tokenize", "/apply-template"):
        status, message, param = await refusal(await chat(app, heard(SHORT), path=path))
        assert (status, param) == (400, "messages[0].content[0]"), path
        assert "does not read audio" in message
    assert speech.asked == []


async def test_a_key_for_the_text_model_is_heard_and_its_tokens_count(
    make_hearing: MakeHearing, tmp_path: Path
) -> None:
    app, _, _ = await make_hearing(
        api_key_file=written(tmp_path, {"alice": {"models": ["m"]}, "ops": {"roles": ["admin"]}})
    )
    response = await chat(app, heard(SHORT), authorization="Bearer sk-alice")
    assert response.status == 200
    counts = (await whole(response))["usage"]
    [bucket] = (await whole(await get(app, "/v1/usage", authorization="Bearer sk-ops")))["data"]
    text, speech = sorted(bucket["results"], key=lambda one: -one["num_model_requests"])
    assert (text["model"], text["input_tokens"]) == ("m", counts["prompt_tokens"])
    assert (speech["num_model_requests"], speech["input_tokens"]) == (0, 4), "the speech model's own prompt"


async def test_a_model_that_hears_gets_the_samples(make_hearing: MakeHearing) -> None:
    app, engine, speech = await make_hearing(max_audio_s=2.0, max_audio_parts=2)
    engine.info = replace(INFO, vision=True, audio=True, image_tokens=["<|audio_pad|>"])
    response = await chat(app, text("a"), heard(LONG), text("b"), link(SHORT))
    assert (response.status, warnings_of(response), speech.asked) == (200, [], [])
    assert engine.submitted[0][0] == "user:a\n<ov_genai_audio_0>\nb\n<ov_genai_audio_1>;"
    assert [len(samples) for samples in engine.audio[0]] == [48_000, 16_000]
    counted = await chat(app, heard(LONG), path="/v1/chat/completions/input_tokens")
    assert counted.status == 200
    assert engine.audio[1] == engine.audio[0][:1]
    for parts, said in (
        ([heard(LONG)] * 2, "longer than"),
        ([heard(SHORT)] * 3, "3 audio parts exceed"),
        ([text("<ov_genai_audio_0>"), heard(SHORT)], "restricted"),
        ([text("<|audio_pad|>"), heard(SHORT)], "placeholder of audio"),
        ([heard(b"hello world")], "unsupported audio file"),
    ):
        status, message, _ = await refusal(await chat(app, *parts))
        assert (status, said in message) == (400, True), message


def returned(path: str, part: dict[str, Any]) -> dict[str, Any]:
    """Returns a conversation in which a tool has returned a text and a part."""
    use = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    if path == "/v1/messages":
        result = {"type": "tool_result", "tool_use_id": "c", "content": [text("heard"), part]}
        talk = [("user", "listen"), ("assistant", [use]), ("user", [result])]
        return {"model": "m", "max_tokens": 9, "messages": [{"role": r, "content": c} for r, c in talk]}
    if path == "/v1/responses":
        output = [{"type": "input_text", "text": "heard"}, part]
        called = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
        return {"model": "m", "input": [called, {"type": "function_call_output", "call_id": "c", "output": output}]}
    talk = [{"role": "user", "content": "listen"}, {"role": "assistant", "content": None, "tool_calls": [call]}]
    return {"model": "m", "messages": [*talk, {"role": "tool", "tool_call_id": "c", "content": [text("heard"), part]}]}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
async def test_audio_of_a_tool_is_read_or_left_out(make_hearing: MakeHearing, path: str) -> None:
    """It is left out if it is broken, if the server has no model for it, and if nothing reads the part."""
    app, engine, _ = await make_hearing()
    await post(app, path, returned(path, heard(SHORT)))
    assert "Short." in engine.submitted[0][0]
    response = await post(app, path, returned(path, {"type": "input_audio", "input_audio": {"data": "@@"}}))
    assert response.status == 200
    [warning] = warnings_of(response)
    assert "returned by a tool, was left out: Invalid base64 string in request" in warning
    assert "which was left out: Invalid base64 string in request]" in engine.submitted[1][0]
    assert (await post(app, path, returned(path, {"type": "hologram", "hologram": {}}))).status == 200
    assert "left out" in engine.submitted[2][0]
    app, engine, _ = await make_hearing(audio_input_model="")
    response = await post(app, path, returned(path, heard(SHORT)))
    assert warnings_of(response) == ["audio returned by tools was left out: this model reads text only"]
    [(prompt, _)] = engine.submitted
    assert "heard" in prompt
    assert prompt.count("[The tool returned audio, which was left out: this model reads text only]") == 1


async def test_the_length_of_all_audio_of_tools_is_limited(make_hearing: MakeHearing) -> None:
    """Also that of files which could not be read to their end: nothing is transcribed beyond it."""
    app, _, speech = await make_hearing(max_audio_s=2.0)
    talk = returned("/v1/chat/completions", heard(LONG))
    talk["messages"][-1]["content"] = [heard(LONG)] * 5
    response = await post(app, "/v1/chat/completions", talk)
    assert (response.status, len(speech.asked)) == (200, 2)
    assert sum("all audio together is longer" in one for one in warnings_of(response)) == 4
    speech.script = [BadRequest("it broke")]
    speech.asked.clear()
    response = await post(app, "/v1/chat/completions", talk)
    assert (response.status, len(speech.asked)) == (200, 2)
