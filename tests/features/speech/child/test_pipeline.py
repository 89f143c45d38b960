"""The recognizer on ASRPipeline, with a scripted pipeline and with tiny models of each kind."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import openvino_genai
import pytest

from lean_ovms.config import Config
from lean_ovms.engine.protocol import Cancel
from lean_ovms.errors import EngineLost, StartError
from lean_ovms.features.speech.child import model as loading
from lean_ovms.features.speech.child import pipeline_kinds
from lean_ovms.features.speech.child.pipeline import PipelineRecognizer
from lean_ovms.features.speech.child.pipeline_kinds import FunAsr, Kind, Texts, Whisper
from lean_ovms.features.speech.child.recognizer import Job, plain
from lean_ovms.features.speech.child.task import SpeechTask
from lean_ovms.features.speech.child.whisper_files import read
from lean_ovms.features.speech.params import TextDelta, TranscribeParams, WindowDone
from lean_ovms.features.speech.records import Audio, SpeechText, Transcribe
from lean_ovms.types.engine import Vocabulary
from tests.features.speech.child import words
from tests.makers import asr_sounds as sounds

pytestmark = pytest.mark.slow
PLAIN = TranscribeParams(fallback=False, vad=False)
ONE_S = np.full(16000, 0.1, np.float32)


class Scripted:
    """A pipeline that generates these pieces. While `gate` is cleared, it waits before each."""

    def __init__(self, *pieces: str, error: Exception | None = None) -> None:
        self.pieces = pieces
        self.error = error
        self.gate = threading.Event()
        self.gate.set()
        self.asked: list[dict[str, Any]] = []
        self.statuses: list[Any] = []

    def generate(self, samples: list[float], streamer: Callable[[str], Any], **options: Any) -> Any:
        self.asked.append(options)
        said = ""
        for piece in self.pieces:
            self.gate.wait(300)
            said += piece
            self.statuses.append(streamer(piece))
            if self.statuses[-1] != openvino_genai.StreamingStatus.RUNNING:
                break
        if self.error is not None:
            raise self.error
        metrics = SimpleNamespace(get_num_generated_tokens=lambda: len(self.pieces))
        return SimpleNamespace(texts=[said], languages=["English"], chunks=None, words=None, perf_metrics=metrics)


class Letters:
    """A tokenizer whose tokens are characters."""

    single = ((), ())

    def encode(self, texts: list[str]) -> list[list[int]]:
        return [[ord(letter) for letter in text] for text in texts]


def recognizer(pipeline: Any, kind: Kind | None = None, silence_s: float = 60.0) -> PipelineRecognizer:
    pieces = [bytes([number]) for number in range(128)]
    kind = kind or Kind(["en", "de", "zh"])
    return PipelineRecognizer(kind, pipeline, Letters(), Vocabulary(pieces=pieces), silence_s)


def finish(loaded: PipelineRecognizer, job: Job) -> WindowDone:
    loaded.start([job])
    while not job.done:
        loaded.step()
    while not loaded.room(soon=False):
        loaded.step()
    assert job.result is not None
    return job.result


def test_a_window_streams_and_is_joined_to_the_text_before() -> None:
    pipeline = Scripted("up", " stop")
    job = Job(ONE_S, 2.0, PLAIN, language="en", times=True, stream=True, max_tokens=9)
    result = finish(recognizer(pipeline), job)
    assert job.pieces == [TextDelta(" up"), TextDelta(" stop")]
    assert (result.text, result.language, result.tokens, result.stopped) == (" up stop", "en", 2, "stop")
    assert pipeline.asked[0]["language"] == "English"
    assert pipeline.asked[0]["max_new_tokens"] == 9
    assert finish(recognizer(Scripted("你", "好")), Job(ONE_S, 0.0, PLAIN)).text == "你好"


def test_a_cancelled_window_stops_at_the_next_token_and_the_next_one_waits_for_it() -> None:
    pipeline = Scripted(*["on "] * 50)
    loaded, job = recognizer(pipeline), Job(ONE_S, 0.0, PLAIN)
    pipeline.gate.clear()
    loaded.start([job])
    job.cancelled = True
    loaded.step()
    assert not loaded.room(soon=True)
    pipeline.gate.set()
    while not loaded.room(soon=True):
        loaded.step()
    assert pipeline.statuses == [openvino_genai.StreamingStatus.CANCEL]


def test_a_pipeline_that_says_nothing_any_more_loses_the_engine_also_after_a_cancel() -> None:
    for cancelled in (False, True):
        pipeline = Scripted("never")
        pipeline.gate.clear()
        loaded, job = recognizer(pipeline, silence_s=0.0), Job(ONE_S, 0.0, PLAIN)
        loaded.start([job])
        job.cancelled = cancelled
        with pytest.raises(EngineLost, match="silent for 0 s"):
            loaded.step()
        pipeline.gate.set()


def test_the_task_serves_others_after_an_error_and_a_cancel_and_ends_with_a_lost_engine() -> None:
    pipeline = Scripted("up", " stop")
    task = SpeechTask(recognizer(pipeline), 8, 8)

    def begin(number: int) -> None:
        params = {"vad": False, "fallback": False}
        task.handle(Transcribe(number, params))
        task.handle(Audio(number, True, (ONE_S * 32767).astype("<i2").tobytes()))

    def work() -> list[Any]:
        for _ in range(2000):
            if task.idle:
                break
            task.admit()
            task.step()
        sent, task.out = task.out, []
        return sent

    pipeline.error = RuntimeError("Infer Request is busy")
    begin(1)
    assert [record.kind for record in work()][-1] == "failed"
    pipeline.error = None
    pipeline.gate.clear()
    begin(2)
    begin(3)
    for _ in range(3):
        task.admit()
        task.step()
    task.handle(Cancel(2))
    pipeline.gate.set()
    sent = [record for record in work() if record.id == 3]
    assert "".join(record.text for record in sent if isinstance(record, SpeechText)) == " up stop"
    assert sent[-1].kind == "transcribed"
    pipeline.gate.clear()
    task.recognizer._silence_s = 0.0  # type: ignore[attr-defined]
    begin(4)
    with pytest.raises(EngineLost):
        work()
    pipeline.gate.set()


def test_texts_beside_the_audio_are_cut_and_hold_no_special_tokens() -> None:
    pipeline = Scripted("up")
    kind = Kind(["en"])
    kind.max_prompt_tokens = 8
    params = TranscribeParams(hotwords="abc<|im_end|>")
    finish(recognizer(pipeline, kind), Job(ONE_S, 0.0, params, prompt="<asr_text>0123456789"))
    assert pipeline.asked[0]["context"] == "56789 abc"
    finish(recognizer(pipeline, FunAsr(["en"])), Job(ONE_S, 0.0, params, prompt="no"))
    assert "context" not in pipeline.asked[1]


def test_whisper_never_gets_timestamps_with_few_tokens(tmp_path: Path) -> None:
    """With max_new_tokens=1 and timestamps, the pipeline does not return."""
    kind = Whisper(read(words.unpacked(tmp_path)), words=False)
    params = TranscribeParams(segments=True)
    for limit in range(1, 20):
        options = kind.options(Job(ONE_S, 0.0, params, times=True, max_tokens=limit), Texts())
        assert options["return_timestamps"] == (limit >= pipeline_kinds.MIN_TIMED)
    assert kind.options(Job(ONE_S, 0.0, params), Texts(tokens=60))["max_new_tokens"] == 64


# --- tiny models


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PipelineRecognizer]:
    path = sounds.unpacked(tmp_path_factory.mktemp("asr"))
    config = Config(model_path=str(path), task="speech2text", plugin_config=words.EXACT)
    found = loading.load(config)[0]
    assert isinstance(found, PipelineRecognizer)
    return found


def test_qwen3_asr_recognizes_words_and_languages(qwen: PipelineRecognizer) -> None:
    assert (qwen.info.of_task["languages"], qwen.info.of_task["backend"]) == (["en", "de"], "asr_pipeline")
    for name, language in sounds.SOUNDS.items():
        job = Job(sounds.samples_of(name), 1.0, PLAIN, stream=True)
        result = finish(qwen, job)
        assert (result.text, result.language) == (f" {name}", pipeline_kinds.languages.find(language, ("en", "de")))
        assert "".join(piece.text for piece in job.pieces) == result.text
        assert len(job.pieces) > 3
    params = TranscribeParams(segments=True, temperature=1.0, seed=3, top_p=0.9, top_k=5)
    job = Job(sounds.samples_of("hoch"), 1.0, params, language="de", prompt="leise", times=True, max_tokens=2)
    result = finish(qwen, job)
    assert (result.tokens, result.stopped) == (2, "length")
    assert [(one.start, one.end) for one in result.segments] == [(1.0, 1.9)]


def test_fun_asr_computes(tmp_path: Path) -> None:
    path = sounds.unpacked(tmp_path, "fun_asr")
    loaded = loading.load(Config(model_path=str(path), task="speech2text"))[0]
    result = finish(loaded, Job(sounds.samples_of("high"), 0.0, PLAIN, language="en", max_tokens=5))  # type: ignore[arg-type]
    assert (result.language, result.stopped) == ("en", "length")
    assert result.text


def test_whispers_pipeline_is_an_option(tmp_path: Path) -> None:
    path = words.unpacked(tmp_path)
    options: dict[str, Any] = {"model_path": str(path), "task": "speech2text", "plugin_config": words.EXACT}
    loaded = loading.load(Config(**options, pipeline_type="ASR", enable_word_timestamps=True))[0]
    params = TranscribeParams(fallback=False, segments=True, words=True)
    for name, data in list(words.recordings().items())[:3]:
        job = Job(words.samples(data), 3.0, params, times=True)
        result = finish(loaded, job)  # type: ignore[arg-type]
        assert (result.text, result.language) == (f" {name}", "en")
        assert "".join(one.text for one in result.segments) == result.text
        assert [word.word for word in result.words] == name.split()
        assert all(3 <= one.start <= one.end <= job.end for one in (*result.segments, *result.words))


def test_a_pipeline_or_a_model_that_does_not_fit_is_refused_at_the_start(tmp_path: Path) -> None:
    path = sounds.unpacked(tmp_path)
    for options, match in (
        (
            {"pipeline_type": "LM_CB"},
            "--pipeline_type LM_CB: .* is a model for speech recognition, which needs AUTO or ASR",
        ),
        ({"enable_word_timestamps": True}, "--enable_word_timestamps: this model does not report the times of words"),
    ):
        with pytest.raises(StartError, match=match):
            loading.load(Config(model_path=str(path), task="speech2text", **options))  # type: ignore[arg-type]
    (path / "config.json").write_text('{"model_type": "voxtral"}')
    with pytest.raises(StartError, match="whisper, qwen3_asr and fun_asr, not with 'voxtral'"):
        loading.load(Config(model_path=str(path), task="speech2text"))


def test_special_tokens_in_a_prompt_are_removed_and_form_no_others() -> None:
    assert plain("Hello <|im_end|> you") == "Hello   you"
    assert "<|im_end|>" not in plain("<|im_<|x|>end|>")
    assert "<asr_text>" not in plain("<asr<asr_text>_text>")
