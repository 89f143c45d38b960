"""Transcriptions and translations with a scripted engine: fields, answers, errors. test_streams.py has the streams."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lean_ovms.api.app import App
from lean_ovms.features.media_files.audio.decoder import AudioDecoder
from lean_ovms.features.speech.api.answers import srt, vtt
from lean_ovms.features.speech.params import Segment, TextDelta, TurnDetection, TurnStarted, TurnStopped, WindowDone
from lean_ovms.util.spool import Spool
from tests.api.conftest import MakeApp, get, post, warnings_of, whole
from tests.features.speech.api.conftest import TRANSCRIBE, TRANSLATE, WAV, MakeSpeech, refused, said, send, text_of
from tests.features.speech.scripts import HELLO, speech_model, spoken
from tests.forms import Part, form_request
from tests.recordings import plain_wav, sound, tone, wav
from tests.waiting import cancel

TWO = [*HELLO, *spoken(" Go", " on.", start=30.0, language="de")]


# --- answers


async def test_a_recording_is_answered_as_json(make_speech: MakeSpeech) -> None:
    app, engine = await make_speech()
    assert await said(app) == {"text": "Three one four.", "language": "en", "usage": {"type": "duration", "seconds": 2}}
    [(params, data)] = engine.asked
    assert len(data) == 2 * 24_000
    assert (params.task, params.language, params.temperature, params.fallback) == ("transcribe", "", 0.0, True)
    assert engine.closed == 1


async def test_verbose_json(make_speech: MakeSpeech) -> None:
    app, engine = await make_speech(TWO)
    found = await said(app, ("response_format", "verbose_json"))
    assert [*found] == ["task", "language", "duration", "text", "segments", "usage", "language_name"]
    assert found["task"] == "transcribe"
    assert (found["language"], found["language_name"], found["duration"]) == ("en", "english", 1.5)
    assert found["text"] == "Three one four. Go on."
    assert found["segments"][1] == {
        "id": 1,
        "seek": 3000,
        "start": 30.0,
        "end": 31.5,
        "text": " Go on.",
        "tokens": [5, 6],
        "temperature": 0.0,
        "avg_logprob": -0.25,
        "compression_ratio": 1.0,
        "no_speech_prob": None,
    }
    assert engine.asked[0][0].segments
    assert not engine.asked[0][0].words


async def test_times_of_words_and_segments_are_given_if_asked_for(make_speech: MakeSpeech) -> None:
    app, engine = await make_speech()
    found = await said(app, ("timestamp_granularities[]", "word"), ("response_format", "verbose_json"))
    assert "segments" not in found
    assert found["words"][1] == {"word": "one", "start": 1.0, "end": 1.5}
    both = await said(app, ("timestamp_granularities[]", "word"), ("timestamp_granularities", "segment"))
    assert [*both] == ["text", "segments", "words", "language", "usage"]
    assert [(p.segments, p.words) for p, _ in engine.asked] == [(False, True), (True, True)]


async def test_text_and_subtitles(make_speech: MakeSpeech) -> None:
    app, engine = await make_speech(TWO)
    assert await text_of(app, ("response_format", "text")) == ("text/plain; charset=utf-8", "Three one four. Go on.")
    assert await text_of(app, ("response_format", "srt")) == (
        "text/plain; charset=utf-8",
        "1\n00:00:00,000 --> 00:00:02,500\nThree one four.\n\n2\n00:00:30,000 --> 00:00:31,500\nGo on.\n",
    )
    assert await text_of(app, ("response_format", "vtt")) == (
        "text/vtt; charset=utf-8",
        "WEBVTT\n\n00:00:00.000 --> 00:00:02.500\nThree one four.\n\n00:00:30.000 --> 00:00:31.500\nGo on.\n",
    )
    assert [p.segments for p, _ in engine.asked] == [False, True, True]


async def test_silence_gives_an_empty_text_in_every_format(make_speech: MakeSpeech) -> None:
    app, _ = await make_speech([WindowDone(start=1.5, end=1.5, text="", language="", skipped=1.5)])
    assert (await said(app))["text"] == ""
    assert (await said(app, ("response_format", "verbose_json")))["segments"] == []
    assert (await text_of(app, ("response_format", "srt")))[1] == ""
    assert (await text_of(app, ("response_format", "vtt")))[1] == "WEBVTT\n"


async def test_the_language_is_that_of_the_first_window_with_text(make_speech: MakeSpeech) -> None:
    silent = WindowDone(start=0.0, end=30.0, text=" ", language="fr")
    app, _ = await make_speech([silent, *spoken(" ja", language="de"), *spoken(" yes", start=60.0)])
    assert await said(app) == {"text": "ja yes", "language": "de", "usage": {"type": "duration", "seconds": 2}}


async def test_a_window_without_deltas_and_segments_without_text(make_speech: MakeSpeech) -> None:
    segments = [Segment(start=0.0, end=1.0, text="  "), Segment(start=0.12345, end=1.0, text=" two")]
    window = WindowDone(start=0.0, end=1.0, text=" one two", language="en", segments=segments)
    app, _ = await make_speech([TurnStarted(0.1), TextDelta(" one"), TurnStopped(0.9), window])
    found = await said(app, ("timestamp_granularities", "segment"))
    assert found["text"] == "one two"
    assert [(one["id"], one["text"], one["start"]) for one in found["segments"]] == [(0, " two", 0.123)]


async def test_log_probabilities(make_speech: MakeSpeech) -> None:
    app, engine = await make_speech()
    found = await said(app, ("include[]", "logprobs"))
    assert found["logprobs"][1] == {"token": " one", "logprob": -0.5, "bytes": list(b" one")}
    engine.describe(capabilities=[])
    assert (await said(app, ("include[]", "logprobs")))["logprobs"] == []
    assert [p.logprobs for p, _ in engine.asked] == [True, False]
    engine.describe(capabilities=["words", "logprobs"])
    detailed: list[Part] = [("timestamp_granularities[]", "word"), ("include[]", "logprobs")]
    await text_of(app, *detailed, ("response_format", "text"))
    assert (engine.asked[-1][0].words, engine.asked[-1][0].logprobs) == (False, False)


async def test_a_token_may_be_a_part_of_a_character(make_speech: MakeSpeech) -> None:
    parts = ["\u00e4".encode()[:1], "\u00e4".encode()[1:]]
    app, _ = await make_speech([TextDelta("\u00e4", [(part, -0.5) for part in parts]), WindowDone(text="\u00e4")])
    found = (await said(app, ("include[]", "logprobs")))["logprobs"]
    assert [one["token"] for one in found] == ["\ufffd"] * 2
    assert bytes(byte for one in found for byte in one["bytes"]).decode() == "\u00e4"


async def test_of_a_long_prompt_the_engine_gets_the_end(make_speech: MakeSpeech) -> None:
    """It would tokenize all of it, and hotwords before each window."""
    app, engine = await make_speech()
    engine.describe(max_prompt_tokens=223)
    await said(app, ("prompt", "x" * 500_000 + "end"), ("hotwords", "y" * 500_000), ("keywords[]", "end"))
    engine.describe(max_prompt_tokens=0)
    await said(app, ("prompt", "hello"))
    (first, _), (second, _) = engine.asked
    assert [text.endswith("end") and len(text) < 10_000 for text in (first.prompt, first.hotwords)] == [True, True]
    assert second.prompt == ""


# --- fields


async def test_every_field_reaches_the_engine(make_speech: MakeSpeech) -> None:
    app, engine = await make_speech()
    parts: list[Part] = [
        ("model", "w"),
        ("language", "German"),
        ("prompt", " Guten Tag"),
        ("hotwords", "null"),
        ("keywords[]", "eins"),
        ("keywords[]", "zwei"),
        ("temperature", "0.5"),
        ("top_p", "0.9"),
        ("top_k", "5"),
        ("seed", "7"),
        ("repetition_penalty", "1.1"),
        ("presence_penalty", "-1"),
        ("frequency_penalty", "2"),
        ("use_beam_search", "true"),
        ("n", "4"),
        ("length_penalty", "0.5"),
        ("max_completion_tokens", "50"),
        ("chunking_strategy[type]", "server_vad"),
        ("chunking_strategy[threshold]", "0.25"),
        ("chunking_strategy[silence_duration_ms]", "200"),
    ]
    await said(app, *parts)
    [(params, _)] = engine.asked
    assert (params.language, params.prompt, params.hotwords) == ("de", " Guten Tag", "null eins zwei")
    assert (params.temperature, params.fallback, params.top_p, params.top_k, params.seed) == (0.5, False, 0.9, 5, 7)
    assert (params.repetition_penalty, params.presence_penalty, params.frequency_penalty) == (1.1, -1.0, 2.0)
    assert (params.beams, params.length_penalty, params.max_tokens) == (4, 0.5, 50)
    assert params.turns == TurnDetection(threshold=0.25, prefix_padding_ms=300, silence_duration_ms=200)
    assert params.vad
    assert not params.live
    for value in ("auto", '{"type": "server_vad", "threshold": 0.75}', ""):
        await said(app, ("chunking_strategy", value))
    assert [p.turns for p, _ in engine.asked[1:]] == [None, TurnDetection(threshold=0.75), None]
    for text, code in (("EN", "en"), ("<|de|>", "de"), ("fr-CA", "fr"), ("", ""), (" German ", "de")):
        await said(app, ("language", text))
        assert engine.asked[-1][0].language == code


WRONG: list[tuple[list[Part], str, str]] = [
    ([("language", "xx")], "Unsupported language: 'xx'. Must be one of [de, en, fr]", "language"),
    ([("language", "yue")], "Unsupported language", "language"),
    ([("response_format", "xml")], "must be one of: json, text, srt, verbose_json, vtt", "response_format"),
    ([("response_format", "diarized_json")], "this server's models do not distinguish speakers", "response_format"),
    ([("known_speaker_names[]", "a")], "this server's models do not distinguish speakers", "known_speaker_names"),
    ([("timestamp_granularities[]", "line")], "Invalid timestamp_granularities type.", "timestamp_granularities"),
    ([("timestamp_granularities[]", "")], "Invalid timestamp_granularities type.", "timestamp_granularities"),
    ([("include[]", "x")], "include may only contain logprobs", "include"),
    ([("stream_include_usage", "true")], "can only be defined when `stream=True`.", "stream_include_usage"),
    ([("stream", "1"), ("response_format", "vtt")], "doesn't support streaming", "response_format"),
    ([("stream", "1"), ("use_beam_search", "1")], "not currently supported with beam search", "stream"),
    ([("top_k", "-2")], "top_k must be -1", "top_k"),
    ([("max_completion_tokens", "0")], "max_completion_tokens out of range [1,", "max_completion_tokens"),
    ([("chunking_strategy", "vad")], "chunking_strategy must be auto", "chunking_strategy"),
    ([("chunking_strategy[type]", "server_vad"), ("chunking_strategy[threshold]", "2")], "threshold out of range",
     "chunking_strategy.threshold"),
    ([("chunking_strategy[type]", "server_vad"), ("chunking_strategy[x]", "2")], "key 'x'", "chunking_strategy"),
    ([("keywords", "a")] * 50 + [("keywords[]", "b")] * 12 + [("file", "text")], "file must be a file", "file"),
    ([("model", "other")], "The model 'other' does not exist; served models: w", "model"),
]  # fmt: skip


async def test_wrong_fields(make_speech: MakeSpeech) -> None:
    app, engine = await make_speech()
    for parts, why, param in WRONG:
        file = None if parts[-1][0] == "file" else WAV
        message, named = await refused(app, *parts, file=file, status=404 if "not exist" in why else 400)
        assert why in message, parts
        assert named == param, parts
        assert engine.asked == [], parts


async def test_translations_have_fewer_fields(make_speech: MakeSpeech) -> None:
    app, engine = await make_speech()
    parts: list[Part] = [("timestamp_granularities[]", "nonsense"), ("language", "de")]
    found = await said(app, *parts, ("response_format", "verbose_json"), path=TRANSLATE)
    assert found["task"] == "translate"
    assert engine.asked[0][0].language == "de"
    message, param = await refused(app, ("to_language", "de"), path=TRANSLATE)
    assert (param, "must be en" in message) == ("to_language", True)
    engine.describe(translates=False)
    assert (await refused(app, path=TRANSLATE))[0] == "this model does not support translation"


async def test_what_the_model_cannot_do(make_speech: MakeSpeech) -> None:
    app, engine = await make_speech()
    engine.describe(capabilities=[], languages=["en"])
    message, param = await refused(app, ("timestamp_granularities[]", "word"))
    assert message == "Word timestamps not supported for this model"
    assert param == "timestamp_granularities"
    assert (await refused(app, ("use_beam_search", "1"), ("n", "2")))[1] == "use_beam_search"
    assert (await refused(app, ("language", "de")))[0] == "Unsupported language: 'de'. Must be one of [en]"
    assert (await said(app, ("language", "en"), ("use_beam_search", "1")))["text"]


async def test_what_has_no_effect_is_said(make_speech: MakeSpeech) -> None:
    app, _ = await make_speech()
    response = await send(
        app, ("min_p", "0.1"), ("languages[]", "de"), ("n", "2"), ("temprature", "1"), ("web_search_options", "x")
    )
    warnings = warnings_of(response)
    assert response.status == 200
    assert len(warnings) == 4
    assert "did you mean temperature?" in warnings[3]
    beams: list[Part] = [("use_beam_search", "1"), ("n", "2"), ("temperature", "0.5"), ("seed", "1"), ("top_k", "0")]
    warnings = warnings_of(await send(app, *beams))
    assert [name in " ".join(warnings) for name in ("temperature", "seed", "top_k", "n has")] == [
        True,
        True,
        False,
        False,
    ]
    for path, name, value, text in (
        (TRANSCRIBE, "to_language", "zz", "to_language has no effect: a transcription is in the spoken language"),
        (TRANSCRIBE, "length_penalty", "2", "length_penalty has no effect without use_beam_search"),
        (TRANSCRIBE, "timestamp_granularities[]", "word", "has no effect with response_format text"),
        (TRANSCRIBE, "include[]", "logprobs", "include has no effect with response_format text"),
        (TRANSLATE, "include[]", "logprobs", "include is not supported for translations"),
        (TRANSLATE, "chunking_strategy", "auto", "chunking_strategy is not supported for translations"),
    ):
        more = [("response_format", "text")] if "response_format" in text else []
        response = await send(app, (name, value), *more, path=path)
        assert [text in value for value in warnings_of(response)] == [True]
        await response.aclose()


# --- models


async def test_the_only_model_that_transcribes_needs_no_name(make_speech: MakeSpeech, make_app: MakeApp) -> None:
    app, _ = await make_speech()
    chat, _ = await make_app()
    both = App(app.config, [*app.registry.models.values(), *chat.registry.models.values()])
    assert (await said(both))["text"] == "Three one four."
    other, _ = await speech_model(model_name="v")
    several = App(app.config, [*app.registry.models.values(), other])
    message, param = await refused(several)
    assert (message, param) == ("the model field is missing, but more than one model is served", "model")
    for one in (both, several):
        await one.close()


async def test_a_model_of_another_kind_is_a_404_that_says_what_it_is_for(
    make_speech: MakeSpeech, make_app: MakeApp
) -> None:
    chat, _ = await make_app()
    message, param = await refused(chat, ("model", "m"), status=404)
    assert param == "model"
    assert "speech to text" in message
    assert "/v1/chat/completions" in message
    assert (await refused(chat, status=404))[1] == "model"
    app, _ = await make_speech()
    response = await post(app, "/v1/embeddings", {"model": "w", "input": "hi"})
    assert response.status == 404
    assert "/v1/audio/transcriptions" in (await whole(response))["error"]["message"]
    found = await whole(await get(app, "/v1/models/w"))
    assert found["input_modalities"] == ["audio"]
    assert found["speech"]["languages"] == ["en", "de", "fr"]


# --- bodies and files


async def test_a_request_without_a_file_is_refused(make_speech: MakeSpeech) -> None:
    app, engine = await make_speech()
    for parts in ([], [("file", "text")], [("file", ("a.wav", b""))], [("audio", ("a.wav", WAV))]):
        _, param = await refused(app, *parts, file=None)
        assert param == "file"
    assert engine.asked == []


@pytest.mark.parametrize(
    ("data", "status", "why"),
    [
        (b"this is a text, not a recording", 400, "Invalid or unsupported audio file. This server reads wav, flac"),
        (plain_wav(3.1), 400, "Audio exceeds maximum allowed duration of 3 s (the file has 3.1 s)"),
        (plain_wav(4.0), 413, "Maximum file size exceeded"),
    ],
)
async def test_files_that_are_refused(make_speech: MakeSpeech, data: bytes, status: int, why: str) -> None:
    app, engine = await make_speech(max_audio_s=3.0, max_audio_file_bytes=100_000)
    message, param = await refused(app, file=data, status=status)
    assert message.startswith(why) or why in message
    assert param == "file"
    assert engine.asked == []
    for stream in ("false", "true"):
        assert (await send(app, ("stream", stream), file=data)).status == status


async def test_rates_and_channels_are_limited(make_speech: MakeSpeech) -> None:
    app, _ = await make_speech(max_audio_channels=1, min_audio_rate=8000, max_audio_rate=16_000)
    for data, why in (
        (wav(bytes(64), rate=7999), "7999 Hz is not supported, only 8000 to 16000 Hz"),
        (wav(bytes(64), channels=2), "2 channels are not supported, only 1 to 1"),
    ):
        assert why in (await refused(app, file=data))[0]


async def test_a_file_that_breaks_off_in_the_middle(make_speech: MakeSpeech) -> None:
    import numpy as np

    data = tone(9.0).astype("<f4")
    data[-1] = np.nan
    app, engine = await make_speech()
    message, param = await refused(app, file=wav(data.tobytes(), tag=3, bits=32))
    assert (param, "not numbers" in message) == ("file", True)
    assert engine.closed == 1
    decoder = app.services.get(AudioDecoder)
    assert decoder.slots.used == 0


@pytest.mark.parametrize("in_file", [False, True])
async def test_the_memory_of_the_body_is_given_back_before_the_text(make_speech: MakeSpeech, in_file: bool) -> None:
    app, engine = await make_speech(root_path="/llm")  # the prefix is removed from the request's path
    taken: list[tuple[int, bool]] = []
    engine.script = lambda data, params: taken.append((app.services.bodies.used, spool.fileno() < 0)) or HELLO
    request = form_request(f"/llm{TRANSCRIBE}", [("model", "w"), ("file", ("a.wav", plain_wav(20.0)))])
    spool = Spool()
    if in_file:
        request.spool = spool
        spool.write(memoryview(request.body))
        request.body = b""
    assert (await app.handle(request)).status == 200
    assert taken == [(0, in_file)]
    assert request.body == b""
    [(_, data)] = engine.asked
    assert len(data) == 2 * 20 * 16_000


async def test_a_client_that_leaves_ends_everything(make_speech: MakeSpeech) -> None:
    app, engine = await make_speech()
    waiting = asyncio.Event()

    class Never:
        def __init__(self, *_: Any) -> None: ...

        id = 1
        times = None

        def begin(self, audio: Any) -> None: ...

        async def next(self) -> None:
            waiting.set()
            await asyncio.Event().wait()

        async def aclose(self) -> None:
            engine.closed += 1

    engine.open_lasting = Never  # type: ignore[method-assign,assignment]
    decoder = app.services.get(AudioDecoder)
    for parts in ([], [("stream", "true")]):
        waiting.clear()
        task = asyncio.create_task(send(app, *parts, file=sound(tone(9.0), "FLAC")))
        await waiting.wait()
        assert decoder.slots.used == 1
        await cancel(task)
        assert decoder.slots.used == 0
    assert engine.closed == 2


async def test_usage_is_in_whole_seconds(make_speech: MakeSpeech) -> None:
    app, _ = await make_speech()
    for seconds, duration, used in ((0.001, 0.1, 1), (1.0, 1.0, 1), (1.001, 1.001, 2)):
        found = await said(app, ("response_format", "verbose_json"), file=plain_wav(seconds))
        assert (found["duration"], found["usage"]["seconds"]) == (duration, used)


# --- subtitles


def cue(start: float, end: float, text: str = "a") -> list[Segment]:
    return [Segment(start=start, end=end, text=text)]


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.0, "00:00:00,000"),
        (0.0004, "00:00:00,000"),
        (0.9996, "00:00:01,000"),
        (59.9999, "00:01:00,000"),
        (3599.9999, "01:00:00,000"),
        (3.1399998664855957, "00:00:03,140"),
        (360_000.0, "100:00:00,000"),
    ],
)
def test_milliseconds_are_rounded_with_their_carry(seconds: float, shown: str) -> None:
    assert srt(cue(0.0, seconds)) == f"1\n00:00:00,000 --> {shown}\na\n"
    assert f"--> {shown.replace(',', '.')}\n" in vtt(cue(0.0, seconds))


def test_text_that_looks_like_markup() -> None:
    text = " <b>a & b</b>\n\n00:00 --> 00:01 "
    assert srt(cue(0, 1, text)).splitlines()[2] == "<b>a & b</b> 00:00 \u2192 00:01"
    assert vtt(cue(0, 1, text)).splitlines()[3] == "&lt;b>a &amp; b&lt;/b> 00:00 \u2192 00:01"
    assert "-->" not in srt(cue(0, 1, "a ----> b")).splitlines()[2]
