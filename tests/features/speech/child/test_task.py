"""The speech task with the scripted recognizer: properties of windows, turns and final results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lean_ovms.features.speech.child.fake_recognizer import FAIL
from lean_ovms.features.speech.child.recognizer import Job, Samples
from lean_ovms.features.speech.child.task import TURN_SECONDS
from lean_ovms.features.speech.params import TurnDetection
from lean_ovms.features.speech.records import Audio, AudioUsed, SpeechTurn, WindowTranscribed
from lean_ovms.types.audio import SAMPLE_RATE
from tests.features.speech.child.rig import Rig, sound

MIXED = sound((0.35, 3), (0, 7), (0.72, 33), (0, 1), (0.55, 4.2), (0, 2))
SPOKEN = sound((0, 1), (0.5, 1), (0, 1), (0.7, 1.5), (0, 0.2), (0.3, 1), (0, 2))


@pytest.fixture
def rig() -> Rig:
    return Rig()


def events(rig: Rig, number: int) -> tuple[Any, ...]:
    """Returns the turns and the windows of a request, each in order."""
    turns = [(r.started, r.at) for r in rig.of(number) if isinstance(r, SpeechTurn)]
    return turns, rig.windows(number), rig.text(number)


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(cuts=st.lists(st.integers(1, 50 * 16000), max_size=12), turns=st.booleans())
def test_any_cut_of_the_audio_gives_the_same_events(cuts: list[int], turns: bool) -> None:
    params: dict[str, Any] = {"turns": TurnDetection(), "live": True} if turns else {"words": True, "segments": True}
    audio = SPOKEN if turns else MIXED
    rig = Rig()
    whole = rig.submit(audio, **params)
    rig.run()
    parts = rig.submit(audio, cuts, **params)
    rig.run()
    assert events(rig, whole) == events(rig, parts)


def test_long_audio_is_cut_into_windows_and_long_silence_is_in_none(rig: Rig) -> None:
    number = rig.submit(MIXED, words=True)
    rig.run()
    windows = rig.windows(number)
    assert rig.text(number).split() == ["three"] * 6 + ["seven"] * 66 + ["five"] * 9
    assert max(window["end"] - window["start"] for window in windows) <= 30
    spans = [(window["start"], window["end"]) for window in windows]
    assert spans == sorted(spans)
    assert windows[0]["end"] == pytest.approx(3.3, abs=0.05)
    heard = sum(window["end"] - window["start"] + window["skipped"] for window in windows)
    assert heard == pytest.approx(len(MIXED) / 32000)
    times = [time for window in windows for word in window["words"] for time in (word["start"], word["end"])]
    assert times == sorted(times)


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(
    parts=st.lists(
        st.tuples(st.sampled_from([0.0, 0.0, 0.35, 0.55, 0.72]), st.integers(1, 70)), min_size=1, max_size=8
    ),
    turns=st.booleans(),
)
def test_the_words_with_times_are_those_without(parts: list[tuple[float, int]], turns: bool) -> None:
    """Although the model leaves the end of a window to the next one, which begins where the last segment ended."""
    audio = sound(*((level, halves / 2) for level, halves in parts))
    params: dict[str, Any] = {"turns": TurnDetection(prefix_padding_ms=500)} if turns else {}
    rig = Rig()
    plain, timed = rig.submit(audio, **params), rig.submit(audio, segments=True, words=True, **params)
    rig.run()
    text, windows = rig.text(timed), rig.windows(timed)
    assert text.split() == rig.text(plain).split()
    assert "".join(segment["text"] for window in windows for segment in window["segments"]) == text
    assert [word["word"] for window in windows for word in window["words"]] == text.split()
    bounds = [time for window in windows for time in (window["start"], window["end"])]
    assert bounds == sorted(bounds)
    heard = sum(window["end"] - window["start"] + window["skipped"] for window in windows)
    assert heard == pytest.approx(len(audio) / 32000)


def test_what_a_window_leaves_is_read_with_the_audio_after_it(rig: Rig) -> None:
    number = rig.submit(sound((0.5, 66)), segments=True)
    rig.run()
    assert rig.text(number).split() == ["five"] * 132
    assert [round(window["start"]) for window in rig.windows(number)] == [0, 26, 52]


def test_a_model_that_reads_nothing_of_a_window_still_gets_on(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lean_ovms.features.speech.child.fake_recognizer.LEFT", 30)
    number = rig.submit(sound((0.5, 20)), segments=True)
    rig.run()
    assert rig.finals(number) == ["transcribed"]
    assert rig.windows(number)[0]["end"] == 0.5


def test_a_window_is_cut_at_the_quietest_place_of_its_last_second(rig: Rig) -> None:
    number = rig.submit(sound((0.5, 29.4), (0.05, 0.2), (0.5, 5)))
    rig.run()
    assert rig.windows(number)[0]["end"] == pytest.approx(29.5, abs=0.05)


def test_silence_has_one_window_without_text(rig: Rig) -> None:
    number = rig.submit(sound((0, 12)))
    rig.run()
    [window] = rig.windows(number)
    assert (window["text"], window["skipped"], window["tokens"]) == ("", 12, 0)
    assert rig.finals(number) == ["transcribed"]
    assert rig.started() == []
    assert any(isinstance(record, AudioUsed) for record in rig.of(number))


def test_a_window_that_the_detector_finds_silent_is_skipped() -> None:
    rig = Rig(check=lambda samples: iter([float(np.abs(samples).max()) > 0.5]))
    number = rig.submit(sound((0.3, 4), (0, 6), (0.8, 2)))
    rig.run()
    assert rig.text(number).split() == ["eight"] * 4
    assert rig.windows(number)[0]["skipped"] > 9


def test_a_file_that_is_quiet_throughout_is_checked_for_speech() -> None:
    """Whisper hears it as well as a loud one, but the first loud frame shows that what was before it is noise."""
    checked: list[tuple[int, float]] = []

    def check(samples: Samples) -> Iterator[bool]:
        checked.append((round(len(samples) / SAMPLE_RATE), round(float(np.abs(samples).max()), 1)))
        yield True

    rig = Rig(check=check)
    quiet = rig.submit(sound((0.0008, 40)))
    rig.run()
    assert [round(one["end"] - one["start"]) for one in rig.windows(quiet)] == [30, 10]
    assert checked == [(30, 0.1), (10, 0.1)]
    checked.clear()
    before_speech, hum = rig.submit(sound((0.0008, 20), (0.3, 2))), rig.submit(sound((0.00005, 20)))
    rig.run()
    assert rig.text(before_speech).split() == ["three"] * 4
    assert rig.windows(before_speech)[0]["skipped"] > 19
    assert rig.text(hum) == ""
    assert checked == [(2, 0.3)]


def test_without_a_check_for_speech_a_quiet_file_has_none(rig: Rig) -> None:
    number = rig.submit(sound((0.0008, 40)))
    rig.run()
    assert rig.text(number) == ""


def test_an_error_of_the_check_for_speech_ends_only_its_request() -> None:
    def check(samples: Samples) -> Iterator[bool]:
        if np.abs(samples).max() > 0.5:
            raise RuntimeError("Exception from src/inference/src/cpp/infer_request.cpp")
        yield True

    rig = Rig(check=check)
    wrong, right = rig.submit(sound((0.8, 2))), rig.submit(sound((0.3, 2)))
    rig.run()
    assert (rig.finals(wrong), rig.finals(right)) == (["failed"], ["transcribed"])
    assert rig.text(right).split() == ["three"] * 4


@pytest.mark.slow
def test_the_check_for_speech_delays_nobody() -> None:
    """Noise of many files is checked by seconds, between the steps of others, which are not kept waiting."""
    rig = Rig()
    checked: list[int] = []

    def check(samples: Samples) -> Iterator[bool]:
        for _ in range(30):
            checked.append(len(samples))
            yield float(np.abs(samples).max()) > 0.5

    rig.task._check = check
    noise = [rig.submit(sound((0.3, 100)), client="a") for _ in range(4)]
    speech = rig.submit(sound((0.8, 5)), client="b")
    rig.worker.turn()
    most = 0
    while not rig.task.idle:
        before = len(checked)
        rig.worker.turn()
        most = max(most, len(checked) - before)
    assert most == TURN_SECONDS
    assert rig.text(speech).split() == ["eight"] * 10
    assert [rig.text(number) for number in noise] == [""] * 4
    assert checked.index(80_000) < 150  # after the first windows of the files


def test_an_utterance_that_is_too_long_becomes_several(rig: Rig) -> None:
    audio = sound(*[(0.5, 0.9), (0, 0.1)] * 40)
    number = rig.submit(audio, turns=TurnDetection(silence_duration_ms=500), live=True)
    rig.run()
    assert [w["end"] - w["start"] <= 30 for w in rig.windows(number)] == [True, True]
    assert len(rig.text(number).split()) == 80


def test_a_short_request_behind_a_long_file_waits_for_one_window(rig: Rig) -> None:
    long = rig.submit(sound((0.5, 100)))
    for _ in range(40):  # its first window is being computed
        rig.worker.turn()
    short = rig.submit(sound((0.3, 2)))
    rig.run()
    assert rig.started() == [long, short, long, long, long]


def test_two_long_files_take_turns_and_a_live_request_goes_first(rig: Rig) -> None:
    files = [rig.submit(sound((0.5, 80))) for _ in range(2)]
    for _ in range(60):
        rig.worker.turn()
    live = rig.submit(SPOKEN, turns=TurnDetection(), live=True)
    rig.run()
    order = rig.started()
    assert order[0] == files[0]
    assert [one for one in order if one != live] == files * 3
    assert max(place for place, one in enumerate(order) if one == live) <= 4


def test_clients_take_turns_however_many_requests_they_have() -> None:
    rig = Rig(of_client=5)
    many = [rig.submit(sound((0.5, 2)), client="a") for _ in range(5)]
    over = rig.open(client="a")
    for _ in range(4):
        rig.worker.turn()
    later = [rig.submit(sound((0.5, 2)), client="b") for _ in range(2)]
    rig.run()
    assert "5 requests of this client are already being transcribed" in str(rig.of(over)[0].error)
    assert rig.started()[:5] == [many[0], many[1], later[0], many[2], later[1]]
    assert not rig.task._windows


def test_tokens_are_limited_for_the_whole_request(rig: Rig) -> None:
    number = rig.submit(sound((0.5, 70)), max_tokens=65)
    rig.run()
    windows = rig.windows(number)
    assert [window["stopped"] for window in windows] == ["stop", "length"]
    assert len(rig.text(number).split()) == 65
    assert rig.finals(number) == ["transcribed"]


def test_a_cancelled_request_says_no_more_and_others_go_on(rig: Rig) -> None:
    number, other = rig.submit(sound((0.5, 60))), rig.submit(sound((0.3, 2)))
    for _ in range(10):
        rig.worker.turn()
    rig.cancel(number)
    rig.worker.turn()
    count = len(rig.of(number))
    rig.run()
    assert len(rig.of(number)) == count
    assert rig.finals(number) == []
    assert rig.finals(other) == ["transcribed"]


def test_an_error_ends_its_request_alone() -> None:
    rig = Rig(streams=2)
    bad, good = rig.submit(sound((0.5, 2)), hotwords=FAIL), rig.submit(sound((0.3, 2)))
    rig.run()
    assert rig.finals(bad) == ["failed"]
    assert rig.finals(good) in (["transcribed"], ["failed"])
    assert "could not process" in str(rig.of(bad)[-1].error[1])


def test_more_requests_than_are_allowed_are_refused() -> None:
    rig = Rig(most=1)
    rig.open()
    over = rig.open()
    rig.run()
    assert rig.of(over)[0].error[0] == "TooManyRequests"
    rig.put(Audio(99, True, b"\0\0"))  # for an unknown request
    rig.run()
    assert rig.of(99) == []


def test_a_request_goes_on_where_another_engine_stopped(rig: Rig) -> None:
    audio = sound((0.35, 40), (0.72, 20))
    whole = rig.submit(audio, words=True)
    rig.run()
    first = next(record for record in rig.of(whole) if isinstance(record, WindowTranscribed))
    rest = rig.open(words=True, start=first.samples, state=first.state)
    rig.send(rest, audio[2 * first.samples :])
    rig.run()
    assert rig.windows(rest) == rig.windows(whole)[1:]


def test_with_care_a_window_is_alone_and_then_without_times() -> None:
    rig = Rig(streams=4)
    careful = rig.open(care=2, segments=True)
    rig.send(careful, sound((0.5, 40)))
    others = [rig.submit(sound((0.3, 2))) for _ in range(2)]
    rig.run()
    windows = rig.windows(careful)
    assert (windows[0]["segments"], len(windows[1]["segments"])) == ([], 1)
    assert all(rig.finals(other) == ["transcribed"] for other in others)
    log = [(type(record).__name__, record.id) for record in rig.sent()]
    assert log.index(("WindowStarted", careful)) == min(i for i, (kind, _) in enumerate(log) if kind == "WindowStarted")
    done = log.index(("WindowTranscribed", careful))
    assert [number for kind, number in log[:done] if kind == "WindowStarted"] == [careful]


def test_partial_results_grow_and_the_final_text_continues_them() -> None:
    now = [0.0]

    def clock() -> float:
        now[0] += 0.001
        return now[0]

    rig = Rig(clock=clock)
    number = rig.open(turns=TurnDetection(), live=True, partials=True)
    audio = sound((0, 0.5), *[(level / 10 + 0.05, 0.5) for level in range(1, 9)], (0, 1))
    for at in range(0, len(audio), 9600):
        rig.send(number, audio[at : at + 9600], last=False)
        rig.run()
    before = [record.text for record in rig.of(number) if record.kind == "speech_text"]
    rig.send(number, b"")
    rig.run()
    assert rig.text(number).split() == ["one", "two", "three", "four", "five", "six", "seven", "eight"]
    assert len(before) > 2


def test_a_short_request_beside_long_ones_has_a_batch_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(streams=8)
    begun: list[tuple[str, bool]] = []
    start = rig.task.recognizer.start

    def watched(jobs: list[Job]) -> None:
        begun.extend((f"{len(job.samples) / 16000:.0f}", job.soon) for job in jobs)
        start(jobs)

    monkeypatch.setattr(rig.task.recognizer, "start", watched)
    rig.submit(sound((0.35, 50)))
    for _ in range(8):
        rig.worker.turn()
    for seconds in (3, 4):  # the second waits for the first, and would be computed with a third
        rig.submit(sound((0.55, seconds)))
    rig.submit(sound((0.55, 2)), turns=TurnDetection(), live=True)
    rig.run()
    soon = {seconds for seconds, early in begun if early}
    assert {seconds for seconds, _ in begun} - soon == {"30", "20", "4"}
    assert soon == {"3", "2"}
    begun.clear()
    rig.submit(sound((0.55, 3)))
    rig.run()
    assert begun == [("3", False)]
