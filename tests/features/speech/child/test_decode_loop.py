"""The decode loop with a real model, compared with openvino-genai's WhisperPipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import openvino_genai
import pytest

from lean_ovms.config import Config
from lean_ovms.errors import StartError
from lean_ovms.features.speech.child import model as loading
from lean_ovms.features.speech.child.decode_loop import DecodeLoop
from lean_ovms.features.speech.child.recognizer import Job
from lean_ovms.features.speech.params import TRANSLATE, TranscribeParams, WindowDone
from tests.features.speech.child.words import EXACT, recordings, samples, times, unpacked

pytestmark = pytest.mark.model

PLAIN = TranscribeParams(fallback=False)
TIMED = TranscribeParams(fallback=False, segments=True)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked(tmp_path_factory.mktemp("whisper"))


@pytest.fixture(scope="module")
def loaded(directory: Path) -> loading.Loaded:
    return loading.load(Config(model_path=str(directory), task="speech2text", plugin_config=EXACT))


@pytest.fixture(scope="module")
def loop(loaded: loading.Loaded) -> DecodeLoop:
    assert isinstance(loaded[0], DecodeLoop)
    return loaded[0]


@pytest.fixture(scope="module")
def oracle(directory: Path) -> Any:
    return openvino_genai.WhisperPipeline(str(directory), "CPU", INFERENCE_PRECISION_HINT="f32")


def jobs(params: TranscribeParams, **changes: Any) -> list[Job]:
    timed = params.segments or params.words
    return [
        Job(samples(data), 0.0, params, language=params.language, times=timed, **changes)
        for data in recordings().values()
    ]


def run(loop: DecodeLoop, work: list[Job], at_once: int = 8) -> list[WindowDone]:
    for at in range(0, len(work), at_once):
        group = work[at : at + at_once]
        loop.start(group)
        for _ in range(2000):
            if all(job.done for job in group):
                break
            loop.step()
    assert [job.error for job in work] == [None] * len(work)
    return [job.result for job in work if job.result is not None]


def test_texts_and_languages_are_the_pipelines(loop: DecodeLoop, oracle: Any) -> None:
    expected = [oracle.generate(samples(data).tolist()) for data in recordings().values()]
    found = run(loop, jobs(PLAIN))
    assert [one.text for one in found] == [one.texts[0] for one in expected]
    assert [one.language for one in found] == [one.language.strip("<|>") for one in expected]
    assert [one.text.strip() for one in found][:3] == list(recordings())[:3]


def test_segments_are_the_pipelines(loop: DecodeLoop, oracle: Any) -> None:
    for job, data in zip(jobs(TIMED), recordings().values(), strict=True):
        [found] = run(loop, [job])
        expected = oracle.generate(samples(data).tolist(), return_timestamps=True)
        assert found.text == expected.texts[0]
        end = len(data) / 32000
        chunks = [
            (chunk.text, round(chunk.start_ts, 2), round(min(chunk.end_ts if chunk.end_ts >= 0 else end, end), 2))
            for chunk in expected.chunks
        ]
        assert [(one.text, round(one.start, 2), round(one.end, 2)) for one in found.segments] == chunks
        assert all(one.avg_logprob is not None and -2 < one.avg_logprob <= 0 for one in found.segments)
        assert all(one.no_speech_prob is not None and 0 <= one.no_speech_prob <= 1 for one in found.segments)


def test_beams_find_the_pipelines_texts(loop: DecodeLoop, oracle: Any) -> None:
    params = TranscribeParams(fallback=False, beams=3, logprobs=True)
    work = jobs(params, stream=True)
    for job, result, data in zip(work, run(loop, work), recordings().values(), strict=True):
        expected = oracle.generate(samples(data).tolist(), num_beams=3)
        assert (result.text, result.stopped) == (expected.texts[0], "stop")
        assert "".join(piece.text for piece in job.pieces) == result.text
        assert all(-10 < logprob <= 0 for piece in job.pieces for _, logprob in piece.logprobs or ())


def test_prompts_and_tasks_are_the_pipelines(loop: DecodeLoop, oracle: Any) -> None:
    data = samples(recordings()["up stop"])
    work = Job(data, 0.0, PLAIN, prompt="one two <|de|><|translate|>")
    assert run(loop, [work])[0].text == oracle.generate(data.tolist(), initial_prompt="one two").texts[0]
    params = TranscribeParams(fallback=False, task=TRANSLATE)
    expected = oracle.generate(data.tolist(), language="<|de|>", task="translate").texts[0]
    assert run(loop, [Job(data, 0.0, params, language="de")])[0].text == expected


def test_text_streams_as_it_is_decoded_also_with_times(loop: DecodeLoop) -> None:
    name = "zero eight right off stop go stop"
    params = TranscribeParams(fallback=False, segments=True, logprobs=True)
    job = Job(samples(recordings()[name]), 0.0, params, times=True, stream=True)
    loop.start([job])
    growing = []
    while not job.done:
        loop.step()
        growing.append(len(job.pieces))
    assert len(set(growing)) > 5
    assert job.result is not None
    assert "".join(piece.text for piece in job.pieces) == job.result.text
    rows = [row for piece in job.pieces for row in piece.logprobs or ()]
    assert b"".join(token for token, _ in rows).decode() == job.result.text
    assert all(-10 < logprob <= 0 for _, logprob in rows)


def test_words_are_near_where_they_were_spoken(loop: DecodeLoop) -> None:
    found = run(loop, jobs(TranscribeParams(fallback=False, words=True)))
    compared = 0
    known = times()
    for result, name in zip(found, recordings(), strict=True):
        spans = [(word.start, word.end) for word in result.words]
        flat = [time for span in spans for time in span]
        assert flat == sorted(flat)
        assert [word.word for word in result.words] == result.text.split()
        if result.text.strip() == name:
            middles = [(start + end) / 2 for start, end in spans]
            assert middles == pytest.approx([(start + end) / 2 for _, start, end in known[name]], abs=0.45)
            compared += 1
    assert compared >= 3


def test_a_window_in_work_does_not_change_by_others_that_come_and_go(loop: DecodeLoop) -> None:
    expected = [one.text for one in run(loop, jobs(PLAIN), 1)]
    live, (first, *rest) = TranscribeParams(fallback=False, live=True), jobs(PLAIN)
    late = Job(samples(recordings()["up stop"]), 0.0, live, soon=True)
    loop.start([first, *rest])
    while loop.room(soon=False):
        loop.step()
    assert loop.room(soon=True)
    loop.start([late])
    rest[0].cancelled = True
    while not all(job.done or job.cancelled for job in (first, *rest, late)):
        loop.step()
    found = [job.result.text for job in (first, *rest[1:]) if job.result is not None]
    assert found == [expected[0], *expected[2:]]
    assert late.result is not None
    assert late.result.text == expected[list(recordings()).index("up stop")]
    assert rest[0].result is None


def test_any_audio_has_a_result_also_within_a_limit_of_tokens(loop: DecodeLoop) -> None:
    """With a limit, WhisperPipeline does not return."""
    params = TranscribeParams(segments=True, words=True, temperature=0.8, fallback=False, seed=1, top_p=0.9, top_k=50)
    for audio in (np.zeros(1), np.ones(80000), np.random.default_rng(0).standard_normal(80000)):
        first, second = run(loop, [Job(audio.astype(np.float32), 3.0, params, times=True) for _ in range(2)])
        assert first == second  # the seed is the same
        end = 3 + len(audio) / 16000
        assert all(3 <= one.start <= one.end <= end + 0.001 for one in (*first.segments, *first.words))
    for result in run(loop, jobs(TIMED, max_tokens=2)):
        assert (result.tokens, result.stopped) in [(2, "length"), (result.tokens, "stop")]


def test_a_text_that_is_not_credible_is_decoded_again_hotter(loop: DecodeLoop) -> None:
    noise = (np.random.default_rng(0).standard_normal(80000) * 0.3).astype(np.float32)
    job = Job(noise, 0.0, TranscribeParams(segments=True), times=True, language="de", prompt="eins", stream=True)
    [result] = run(loop, [job])
    assert "".join(piece.text for piece in job.pieces) == result.text
    assert all(segment.temperature in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0) for segment in result.segments)


def test_speech_is_distinguished_from_silence_noise_and_tones(loaded: loading.Loaded) -> None:
    _, detector, check = loaded
    assert all(any(check(samples(data))) for data in recordings().values())
    assert list(check(np.zeros(48000, np.float32))) == [False] * 3
    assert not any(check((np.random.default_rng(0).standard_normal(48000) * 0.05).astype(np.float32)))
    assert not any(check((np.sin(np.arange(48000) * 0.17) * 0.3).astype(np.float32)))
    one, other = detector(), detector()
    frame = samples(recordings()["up stop"])[8000:8512]
    assert [one.probability(frame) for _ in range(3)] == [other.probability(frame) for _ in range(3)]


def test_a_directory_that_is_not_complete_is_reported_in_one_line(directory: Path, tmp_path: Path) -> None:
    copy = unpacked(tmp_path)
    (copy / "generation_config.json").write_text("{}")
    config = Config(model_path=str(copy), task="speech2text")
    with pytest.raises(StartError, match=r"generation_config.json does not belong to a Whisper model"):
        loading.load(config)
    (copy / "openvino_decoder_model.xml").write_text("<net")
    (copy / "generation_config.json").write_bytes((directory / "generation_config.json").read_bytes())
    with pytest.raises(StartError, match="the model does not load"):
        loading.load(config)
