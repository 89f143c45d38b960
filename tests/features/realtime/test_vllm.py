"""vLLM's dialect, as its example clients speak it, with the scripted recognizer."""

from __future__ import annotations

import pytest

from lean_ovms.errors import EngineFailure
from tests.features.realtime.fakes import APPEND, CLEAR, COMMIT, session, silence, speech_app, tone

DONE = "transcription.done"


def text_of(events: list[dict[str, str]]) -> str:
    return "".join(event["delta"] for event in events if event["type"] == "transcription.delta")


async def test_the_example_client() -> None:
    """session.update, commit, appends, final commit, as in vLLM's openai_realtime_client.py."""
    app, engine = await speech_app()
    async with session(app) as client:
        assert client.created["type"] == "session.created"
        assert client.created["id"].startswith("sess-")
        assert isinstance(client.created["created"], int)
        assert client.created["session"]["type"] == "transcription"
        await client.send("session.update", model="w")
        await client.send(COMMIT)
        await client.append(*(tone(0.5, peak) for peak in (0.25, 0.35, 0.45)), silence(1))
        await client.append(tone(0.5, 0.75), silence(0.2))
        await client.send(COMMIT, final=True)
        assert (await client.next())["type"] == "session.updated"
        events = await client.until(DONE)
    assert events[-1] == {
        "type": DONE,
        "text": "two three four seven",
        "usage": {
            "prompt_tokens": 8,
            "total_tokens": 12,
            "completion_tokens": 4,
            "prompt_tokens_details": None,
            "completion_tokens_details": None,
        },
    }
    assert text_of(events) == events[-1]["text"]
    assert {event["logprobs"] for event in events if event["type"] == "transcription.delta"} == {None}
    [params] = engine.asked
    assert params.live
    assert params.turns is not None


async def test_audio_before_the_commit_is_kept_and_its_text_held_back() -> None:
    app, engine = await speech_app()
    async with session(app) as client:
        await client.append(tone(0.5, 0.35), silence(1))
        await client.send("nothing")
        assert (await client.next())["type"] == "error"
        await client.send(COMMIT, final=True)
        events = await client.until(DONE)
        assert events[-1]["text"] == "three"
        assert len(engine.asked) == 1
        for _ in range(2):
            await client.send(COMMIT)  # the second is ignored
        await client.append(tone(0.5, 0.85))
        await client.send(CLEAR)
        await client.append(tone(0.5, 0.65))
        await client.send(COMMIT, final=True)
        assert (await client.until(DONE))[-1]["text"] == "six"
        await client.send(COMMIT, final=True)
        assert (await client.until(DONE))[-1]["text"] == ""
    assert not engine.open


async def test_settings_reach_the_engine() -> None:
    app, engine = await speech_app(realtime_partials=False)
    async with session(app) as client:
        logprobs = ["item.input_audio_transcription.logprobs"]
        await client.send("session.update", model="w", language="DE", prompt="p", sample_rate=8000, include=logprobs)
        await client.append(tone(0.5, 0.45, 8000), silence(0.5, 8000))
        await client.send(COMMIT, final=True)
        events = await client.until(DONE)
    assert events[-1]["text"] == "four"
    [params] = engine.asked
    assert (params.language, params.prompt, params.logprobs, params.partials) == ("de", "p", True, False)
    delta = next(event for event in events if event["type"] == "transcription.delta")
    assert delta["logprobs"] == [{"token": " four", "logprob": -0.1, "bytes": list(b" four")}]


def update(**fields: object) -> dict[str, object]:
    return {"type": "session.update", "model": "b", **fields}


async def test_session_update_does_not_end_the_text() -> None:
    app, _ = await speech_app()
    async with session(app) as client:
        await client.send(COMMIT)
        await client.append(tone(0.5, 0.35), silence(1))
        await client.send("session.update", model="w", language="de")
        await client.append(tone(0.5, 0.65))
        await client.send(COMMIT, final=True)
        assert (await client.until(DONE))[-1]["text"] == "three six"


WRONG_UPDATES = [
    ({"include": ["item.input_audio_transcription.bogus"]}, "invalid_event", "include"),
    ({"include": "logprobs"}, "invalid_event", "include"),
    ({"language": "xx"}, "invalid_event", "language must be one of: en, de"),
    ({"sample_rate": 9000}, "invalid_event", "sample_rate must be"),
    ({"timestamp_granularities": ["segment"]}, "unsupported_timestamp_granularity", "timestamp"),
    ({"timestamp_granularities[]": ["segment"]}, "unsupported_timestamp_granularity", "timestamp"),
    ({"timestamp_granularities": ["word"]}, "invalid_timestamp_granularity", "timestamp"),
]


@pytest.mark.parametrize(
    ("event", "code", "said"),
    [
        ({"type": "session.update"}, "invalid_event", "Missing required field: model"),
        ({"type": "session.update", "model": "x"}, "model_not_found", "does not exist"),
        ({"type": "session.update", "model": 3}, "invalid_event", "model is not a string"),
        *((update(**fields), code, word) for fields, code, word in WRONG_UPDATES),
        ({"type": COMMIT}, "model_not_validated", "Model not validated."),
        ({"type": APPEND, "audio": "AAAA"}, "model_not_validated", "model"),
        ({"type": "foo"}, "unknown_event", "Unknown event type: foo"),
        ({"kind": "foo"}, "invalid_event", "with a type"),
        ([], "invalid_json", "must be an object"),
    ],
)
async def test_errors_leave_the_connection_open(event: object, code: str, said: str) -> None:
    import orjson

    app, _ = await speech_app("a", "b")
    async with session(app) as client:
        await client.websocket.send(orjson.dumps(event).decode())
        found = await client.next()
        assert found["type"] == "error"
        assert found["code"] == code
        assert said in found["error"]
        for message, wrong in (("{", "invalid_json"), ("[" * 5000, "invalid_json"), (b"\x00", "invalid_frame")):
            await client.websocket.send(message)
            assert (await client.next())["code"] == wrong
        await client.send("session.update", model="b", include=[], timestamp_granularities=[])
        assert (await client.next()) == {"type": "session.updated", "id": client.created["id"], "model": "b"}


@pytest.mark.parametrize("final", ["true", 1, []])
async def test_final_is_true_or_false(final: object) -> None:
    """Otherwise the client would wait for a text that never comes."""
    app, _ = await speech_app()
    async with session(app) as client:
        for audio in ("", "AAA", "%%%%", "AA==", 7, None):
            await client.send(APPEND, audio=audio)
            found = await client.next()
            assert (found["code"], found["error"].startswith("Invalid audio data")) == ("invalid_audio", True)
        await client.append(tone(0.5, 0.35))
        await client.send(COMMIT, final=final)
        error = await client.next()
        assert (error["type"], error["code"]) == ("error", "invalid_event")
        assert error["error"] == "final accepts values true or false"
        await client.send(COMMIT, final=None)
        await client.send(COMMIT, final=True)
        assert (await client.until(DONE))[-1]["text"] == "three"


async def test_a_failed_transcription_is_an_error_and_the_next_one_works() -> None:
    app, engine = await speech_app()
    async with session(app) as client:
        engine.refusal = EngineFailure("it broke")
        await client.send(COMMIT)
        await client.append(tone(0.5, 0.35))
        assert await client.next() == {"type": "error", "error": "it broke", "code": "engine_error"}
        await client.append(tone(0.5, 0.35))
        await client.send(COMMIT, final=True)
        engine.refusal = None
        await client.send(COMMIT)
        await client.append(tone(0.5, 0.65))
        await client.send(COMMIT, final=True)
        assert (await client.until(DONE))[-1]["text"] == "six"
