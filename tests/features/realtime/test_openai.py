"""OpenAI's transcription session with the scripted recognizer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from lean_ovms.errors import EngineFailure
from lean_ovms.features.realtime.api.dialect import Said
from lean_ovms.features.realtime.api.openai import SilenceTimer
from tests.features.realtime.fakes import APPEND, CLEAR, COMMIT, session, silence, speech_app, tone

URL = "/v1/realtime?intent=transcription"
ITEM = "conversation.item.input_audio_transcription"
COMPLETED, DELTA, FAILED = f"{ITEM}.completed", f"{ITEM}.delta", f"{ITEM}.failed"
RATE = 24000


def update(**given: Any) -> dict[str, Any]:
    return {"session": {"type": "transcription", "audio": {"input": given}}}


def kinds(events: list[Any]) -> list[str]:
    return [event["type"].removeprefix("input_audio_buffer.").removeprefix(f"{ITEM}.") for event in events]


async def test_an_utterance_is_found_and_becomes_an_item() -> None:
    app, engine = await speech_app(realtime_partials=False)
    async with session(app, URL) as client:
        wanted = {"include": ["item.input_audio_transcription.logprobs"]}
        await client.send("session.update", session={"type": "transcription", **wanted})
        await client.next()
        await client.append(silence(0.5, RATE), tone(1, 0.45, RATE), silence(1, RATE))
        first = await client.until(COMPLETED)
        await client.append(tone(0.5, 0.65, RATE), silence(1, RATE))
        second = await client.until(COMPLETED)
    assert kinds(first) == ["speech_started", "speech_stopped", "committed", "delta", "delta", "completed"]
    assert {event["item_id"] for event in first} == {first[0]["item_id"]}
    assert 100 <= first[0]["audio_start_ms"] <= 500
    assert 1900 <= first[1]["audio_end_ms"] <= 2100
    assert first[2]["previous_item_id"] is None
    assert second[2]["previous_item_id"] == first[0]["item_id"]
    assert (
        first[-1]["transcript"] == "".join(event["delta"] for event in first if event["type"] == DELTA) == "four four"
    )
    logprobs = [one for event in first if event["type"] == DELTA for one in event["logprobs"]]
    assert [one["token"] for one in logprobs] == [" four", " four"]
    assert first[-1]["logprobs"] == logprobs
    assert first[-1]["usage"]["type"] == "duration"
    assert 1.4 < first[-1]["usage"]["seconds"] < 1.95
    assert second[-1]["transcript"] == "six"
    assert len({event["event_id"] for event in first + second}) == len(first + second)
    assert len(engine.asked) == 1


@pytest.mark.parametrize(
    ("kind", "rate", "quiet"),
    [("audio/pcm", 24000, b"\0\0"), ("audio/pcmu", 8000, b"\xff"), ("audio/pcma", 8000, b"\xd5")],
)
async def test_without_turn_detection_the_client_says_where_it_ends(kind: str, rate: int, quiet: bytes) -> None:
    app, engine = await speech_app()
    loud = {
        "audio/pcm": tone(0.4, 0.55, rate),
        "audio/pcmu": b"\x8f\x0f" * (rate // 5),
        "audio/pcma": b"\xa5\x25" * (rate // 5),
    }
    async with session(app, URL) as client:
        await client.send("session.update", **update(turn_detection=None, format={"type": kind}))
        assert (await client.next())["session"]["audio"]["input"]["turn_detection"] is None
        await client.append(loud[kind], quiet * int(0.6 * rate))
        await client.send(COMMIT)
        events = await client.until(COMPLETED)
    assert kinds(events) == ["committed", "delta", "completed"]
    assert events[-1]["transcript"]
    assert events[-1]["usage"] == {"type": "duration", "seconds": 1.0}
    assert engine.asked[0].turns is None


async def test_a_commit_in_the_middle_of_speech_ends_it() -> None:
    app, _ = await speech_app(realtime_partials=False)
    async with session(app, URL) as client:
        await client.append(tone(1, 0.35, RATE))
        await client.send(COMMIT)
        assert (await client.until(COMPLETED))[-1]["transcript"] == "three three"
        await client.append(tone(0.5, 0.65, RATE), silence(1, RATE))
        events = await client.until(COMPLETED)
        assert events[-1]["transcript"] == "six"
        assert events[0]["audio_start_ms"] >= 1000
        await client.append(silence(0.5, RATE))
        await client.send(COMMIT)
        events = await client.until(COMPLETED)
        assert (kinds(events), events[-1]["transcript"]) == (["committed", "completed"], "")
        await client.send(COMMIT, event_id="e7")
        error = (await client.next())["error"]
        assert (error["code"], error["event_id"]) == ("input_audio_buffer_commit_empty", "e7")


@pytest.mark.parametrize("turns", [None, {"type": "server_vad"}])
async def test_what_is_cleared_becomes_no_item(turns: object) -> None:
    app, _ = await speech_app(realtime_partials=False)
    async with session(app, URL) as client:
        await client.send("session.update", **update(turn_detection=turns))
        await client.append(tone(0.5, 0.35, RATE))
        await client.send(CLEAR)
        await client.until("input_audio_buffer.cleared")
        await client.append(tone(0.5, 0.65, RATE), silence(1, RATE))
        if turns is None:
            await client.send(COMMIT)
        events = await client.until(COMPLETED)
        assert events[-1]["transcript"] == "six"
        assert kinds(events).count("committed") == 1


async def test_each_commit_has_an_item_although_nobody_speaks() -> None:
    app, engine = await speech_app(realtime_partials=False)
    async with session(app, URL) as client:
        engine.gate.clear()
        for _ in range(2):
            await client.append(silence(0.5, RATE))
            await client.send(COMMIT)
        await engine.caught_up()
        engine.let_go()
        events = [event for _ in range(2) for event in await client.until(COMPLETED)]
    assert kinds(events) == ["committed", "completed"] * 2
    assert len({event["item_id"] for event in events}) == 2


async def test_clear_drops_what_is_not_committed_and_nothing_else() -> None:
    app, engine = await speech_app(realtime_partials=False)
    async with session(app, URL) as client:
        await client.append(tone(0.6, 0.35, RATE))
        await client.until("input_audio_buffer.speech_started")
        engine.gate.clear()
        await client.send(COMMIT)
        for _ in range(2):
            await client.append(tone(0.5, 0.65, RATE))
            await client.send(CLEAR)
            await client.until("input_audio_buffer.cleared")
        engine.let_go()
        assert (await client.until(COMPLETED))[-1]["transcript"] == "three"
        await client.append(tone(0.5, 0.85, RATE))
        await client.send(COMMIT)
        events = await client.until(COMPLETED)
    assert events[-1]["transcript"] == "eight"
    assert kinds(events)[0] == "speech_started"


async def test_without_turn_detection_a_commit_has_all_audio_since_the_last_one() -> None:
    """Neither a session.update nor audio that cannot be read ends it, and it may be short."""
    app, _ = await speech_app()
    async with session(app, URL) as client:
        await client.send("session.update", **update(turn_detection=None))
        await client.send(APPEND, audio="%")
        await client.append(tone(0.5, 0.35, RATE))
        await client.send("session.update", **update(transcription={"language": "en"}))
        await client.append(tone(0.5, 0.65, RATE))
        await client.send(COMMIT)
        events = await client.until(COMPLETED)
        assert kinds(events) == [
            "session.updated",
            "error",
            "session.updated",
            "committed",
            *["delta"] * 2,
            "completed",
        ]
        assert events[-1]["transcript"] == "three six"
        await client.append(tone(0.01, 0.35, RATE))  # the resampler holds it back
        await client.send(COMMIT)
        assert kinds(await client.until(COMPLETED)) == ["committed", "completed"]
        await client.append(tone(0.5, 0.85, RATE))
        await client.send("session.update", **update(turn_detection={"type": "server_vad"}))  # this ends the item
        events = await client.until(COMPLETED)
        assert kinds(events) == ["session.updated", "committed", "delta", "completed"]


async def test_text_belongs_to_the_item_of_its_stream() -> None:
    """Although the engine finds an utterance when the client has begun the next item."""
    app, engine = await speech_app(realtime_partials=False)
    async with session(app, URL) as client:
        engine.gate.clear()
        await client.append(tone(0.6, 0.35, RATE))
        await client.send("session.update", **update(turn_detection=None))
        await client.append(tone(0.5, 0.65, RATE))
        await client.send(COMMIT)
        await client.until("input_audio_buffer.committed")
        engine.let_go()
        assert [(await client.until(COMPLETED))[-1]["transcript"] for _ in range(2)] == ["three", "six"]


@pytest.mark.parametrize(
    ("texts", "whole"),
    [
        ((" Hello", "world", " again"), "Hello world again"),
        (("\u4f60\u597d", "\u4e16\u754c"), "\u4f60\u597d\u4e16\u754c"),
    ],
)
def test_utterances_are_joined_as_their_script_is_written(texts: tuple[str, ...], whole: str) -> None:
    """Also if the language is detected, or given by its name."""
    said = Said()
    for text in texts:
        said.add(text)
        said.window = ""
    assert said.text == whole


async def test_session_update_changes_what_it_names_only() -> None:
    app, engine = await speech_app()
    async with session(app, URL) as client:
        await client.send(
            "session.update",
            **update(
                transcription={"model": "w", "language": "<|de|>", "prompt": "p", "keywords": ["a", "b"]},
                turn_detection={"type": "server_vad", "threshold": 0.4, "silence_duration_ms": 200},
                noise_reduction={"type": "near_field"},
            ),
        )
        await client.send("session.update", **update(format={"type": "audio/pcm", "rate": 24000}))
        await client.next()
        shown = (await client.next())["session"]
        await client.append(tone(0.5, 0.35, RATE), silence(1, RATE))
        await client.until(COMPLETED)
    assert shown["audio"]["input"] == {
        "format": {"type": "audio/pcm", "rate": 24000},
        "noise_reduction": None,
        "transcription": {"model": "w", "language": "<|de|>", "prompt": "p"},
        "turn_detection": {
            "type": "server_vad",
            "threshold": 0.4,
            "prefix_padding_ms": 300,
            "silence_duration_ms": 200,
        },
    }
    assert shown["object"] == "realtime.transcription_session"
    nothing = {"format": None, "transcription": {"keywords": None}, "turn_detection": {"type": None}}
    async with session(app, URL) as client:  # null is what is absent
        for given in ({"type": None, "audio": None}, {"audio": {"input": None}}, {"audio": {"input": nothing}}):
            await client.send("session.update", session={**given, "include": None})
            assert (await client.next())["session"]["audio"] == client.created["session"]["audio"]
    [params] = engine.asked
    assert (params.language, params.prompt, params.hotwords) == ("de", "p", "a, b")
    assert params.turns is not None
    assert (params.turns.threshold, params.turns.silence_duration_ms) == (0.4, 200)


@pytest.mark.parametrize(
    ("session_object", "param"),
    [
        (7, "session"),
        ({"type": "realtime"}, "session.type"),
        ({"audio": 7}, "session.audio"),
        ({"audio": {"input": [1]}}, "session.audio.input"),
        ({"audio": {"input": {"format": {"type": "audio/opus"}}}}, "session.audio.input.format.type"),
        ({"audio": {"input": {"format": {"type": "audio/pcm", "rate": 16000}}}}, "session.audio.input.format.rate"),
        ({"audio": {"input": {"transcription": {"model": 1}}}}, "session.audio.input.transcription.model"),
        ({"audio": {"input": {"transcription": {"model": "x"}}}}, "model"),
        ({"audio": {"input": {"transcription": {"language": "xx"}}}}, "language"),
        ({"audio": {"input": {"transcription": {"prompt": "x" * 10001}}}}, "session.audio.input.transcription.prompt"),
        ({"audio": {"input": {"transcription": {"keywords": [1]}}}}, "session.audio.input.transcription.keywords"),
        ({"audio": {"input": {"turn_detection": {"type": "semantic_vad"}}}}, "session.audio.input.turn_detection.type"),
        ({"audio": {"input": {"turn_detection": {"threshold": 2}}}}, "session.audio.input.turn_detection.threshold"),
        ({"audio": {"input": {"turn_detection": {"silence_duration_ms": -1}}}},
         "session.audio.input.turn_detection.silence_duration_ms"),
        ({"audio": {"input": {"turn_detection": {"idle_timeout_ms": 100}}}},
         "session.audio.input.turn_detection.idle_timeout_ms"),
        ({"include": ["x"]}, "session.include"),
        ({"include": [[1] * 9999]}, "session.include"),
        ({"include": "item.input_audio_transcription.logprobs"}, "session.include"),
        ("", "session"),
        ({"audio": ""}, "session.audio"),
        ({"audio": {"input": []}}, "session.audio.input"),
        ({"audio": {"input": {"transcription": False}}}, "session.audio.input.transcription"),
        ({"audio": {"input": {"transcription": {"keywords": ""}}}}, "session.audio.input.transcription.keywords"),
        ({"audio": {"input": {"transcription": {"languages": 0}}}}, "session.audio.input.transcription.languages"),
        ({"audio": {"input": {"turn_detection": False}}}, "session.audio.input.turn_detection"),
    ],
)  # fmt: skip
async def test_a_wrong_session_object_changes_nothing(session_object: object, param: str) -> None:
    app, _ = await speech_app()
    async with session(app, URL) as client:
        await client.send("session.update", event_id="e1", session=session_object)
        event = await client.next()
        assert event["type"] == "error"
        assert event["error"]["param"] == param
        assert event["error"]["event_id"] == "e1"
        assert len(event["error"]["message"]) < 300
        await client.send("session.update", session={"type": "transcription"})
        assert (await client.next())["session"]["audio"] == client.created["session"]["audio"]


async def test_a_failed_transcription_fails_its_item_and_the_session_goes_on() -> None:
    app, engine = await speech_app()
    async with session(app, URL) as client:
        await client.send("session.update", **update(turn_detection=None))
        await client.next()
        engine.refusal = EngineFailure("it broke")
        await client.append(tone(0.5, 0.35, RATE))
        failed = await client.next()
        assert failed["type"] == FAILED
        assert failed["error"]["message"] == "it broke"
        await client.send(COMMIT)
        assert (await client.next())["error"]["code"] == "input_audio_buffer_commit_empty"
        engine.refusal = None
        await client.append(tone(0.5, 0.65, RATE))
        await client.send(COMMIT)
        assert (await client.until(COMPLETED))[-1]["transcript"] == "six"
        await client.send("session.update", **update(turn_detection={"type": "server_vad"}))
        engine.refusal = EngineFailure("it broke")
        await client.append(silence(0.1, RATE))
        assert (await client.until("error"))[-1]["error"]["message"] == "it broke"
        engine.refusal = None  # voice detection begins anew
        await client.append(tone(0.5, 0.65, RATE), silence(1, RATE))
        assert (await client.until(COMPLETED))[-1]["transcript"] == "six"


async def test_audio_from_before_the_first_session_update_is_answered_in_its_own_dialect() -> None:
    app, engine = await speech_app()
    engine.gate.clear()
    async with session(app) as client:  # the URL selects vLLM's dialect
        for peak in (0.25, 0.35):
            await client.append(tone(0.5, peak), silence(1))
            await client.send(COMMIT, final=True)
        await client.send("session.update", session={"type": "transcription"})
        assert (await client.next())["type"] == "session.updated"
        engine.let_go()
        found = [(await client.until("transcription.done"))[-1]["text"] for _ in range(2)]
    assert found == ["two", "three"]


async def test_the_first_session_update_shows_the_dialect() -> None:
    app, _ = await speech_app()
    async with session(app) as client:  # the URL selects vLLM's dialect
        await client.send("session.update", session={"type": "transcription"})
        assert "session" in await client.next()
        await client.send(APPEND, audio="")
        assert (await client.next())["error"]["code"] == "invalid_audio"
        for kind in ("response.create", "transcription_session.update"):  # of other sessions, and of the beta
            await client.send(kind, session={"input_audio_format": "pcm16"})
            error = (await client.next())["error"]
            assert (error["code"], "input_audio_buffer.append" in error["message"]) == ("unknown_event", True)
    async with session(app) as client:
        await client.send("session.update", session="transcription")
        assert (await client.next())["error"]["param"] == "session"
    async with session(app, "/v1/realtime?model=w") as client:  # the URL selects OpenAI's dialect
        await client.send("session.update", model="w")
        assert "session" not in await client.next()


async def test_partials_are_part_of_the_text() -> None:
    """Text of an unfinished utterance is never taken back once it is sent, and all tokens have log probabilities."""
    app, engine = await speech_app()
    async with session(app, URL) as client:
        wanted = {"include": ["item.input_audio_transcription.logprobs"]}
        await client.send("session.update", session={"type": "transcription", **wanted})
        await client.next()
        for count in range(1, 9):
            await client.append(tone(0.5, 0.35, RATE))
            while engine.heard < count:  # the first block is converted in a thread
                await asyncio.sleep(0)
            await engine.caught_up()
        events = await client.until(DELTA)
        assert kinds(events) == ["speech_started", "delta"]
        await client.append(silence(1, RATE))
        events += await client.until(COMPLETED)
    deltas = [event["delta"] for event in events if event["type"] == DELTA]
    assert "".join(deltas) == events[-1]["transcript"] == " ".join(["three"] * 8)
    assert [one["token"] for one in events[-1]["logprobs"]] == [" three"] * 8


class Soon(SilenceTimer):
    """Waits 10 ms, whatever the timeout is."""

    def __init__(self, seconds: Callable[[], float], ended: Callable[[], Awaitable[None]]) -> None:
        super().__init__(lambda: 0.01 if seconds() else 0.0, ended)


async def test_a_long_silence_becomes_an_empty_item(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lean_ovms.features.realtime.api.openai.SilenceTimer", Soon)
    app, _ = await speech_app(realtime_partials=False)
    turns = {"type": "server_vad", "idle_timeout_ms": 5000}
    async with session(app, URL) as client:
        await client.send("session.update", **update(turn_detection=turns))
        assert (await client.next())["session"]["audio"]["input"]["turn_detection"]["idle_timeout_ms"] == 5000
        for start in (0, 1000):
            await client.append(silence(1, RATE))
            events = await client.until(COMPLETED)
            assert kinds(events) == ["timeout_triggered", "committed", "completed"]
            assert len({event["item_id"] for event in events}) == 1
            # The resampler keeps up to 0.1 s for the next item.
            assert (events[0]["audio_start_ms"], events[0]["audio_end_ms"]) == pytest.approx(
                (start, start + 1000), abs=100
            )
            assert events[-1]["transcript"] == ""
            assert events[-1]["usage"]["seconds"] == pytest.approx(1.0, abs=0.1)
        await client.send("session.update", **update(turn_detection={"type": "server_vad"}))
        await client.append(tone(0.5, 0.65, RATE), silence(1, RATE))
        spoken = await client.until(COMPLETED)
    assert kinds(spoken)[:4] == ["session.updated", "speech_started", "speech_stopped", "committed"]
    assert spoken[3]["previous_item_id"] == events[0]["item_id"]
    assert spoken[-1]["transcript"] == "six"
