"""A recognizer with openvino_genai's ASRPipeline: for Qwen3-ASR and Fun-ASR, and for Whisper if --pipeline_type is ASR.

GenAI 2026.4 was found to behave as follows. A pipeline has one infer request, so windows are computed one by one. The
GIL is released meanwhile. The streamer is called for each token, with timestamps once for a window, and with beam
search at the end. A window of Whisper with timestamps and few tokens may never end, and word times may crash the
process. So windows are computed in a thread, and the engine is given up if one shows no progress for engine_watchdog_s
seconds.
"""

from __future__ import annotations

import threading
import time
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

from ....engine.loading import quiet_imports  # noqa: F401 - first, for its effect

# isort: split
import numpy as np
import openvino_genai as genai

from ....config import EngineConfig
from ....engine.loading.pipeline_choice import as_start_error
from ....errors import EngineLost, RequestError
from ....types.engine import ModelInfo, Vocabulary
from ..params import SpeechInfo, TranscribeParams
from .pipeline_kinds import Kind, Texts
from .recognizer import Job, plain

STEP_S = 0.02
"""The longest time of a step, in seconds. Commands are read between two steps."""
RUNNING, CANCEL = genai.StreamingStatus.RUNNING, genai.StreamingStatus.CANCEL


class PipelineRecognizer:
    """A Recognizer that runs a pipeline of openvino_genai in a thread."""

    def __init__(
        self, kind: Kind, pipeline: Any, tokenizer: Any, vocabulary: Vocabulary, silence_s: float = 120.0
    ) -> None:
        """Keeps the parts of the model. `warm_up` has to be called before the first window.

        Args:
            kind: The kind of model, which knows the pipeline's parameters and results.
            pipeline: The ASRPipeline.
            tokenizer: The tokenizer, with the method `encode` and the special tokens around a text (`single`).
            vocabulary: The bytes of each token.
            silence_s: The seconds after which a window without progress means that the engine is lost.
        """
        self.vocabulary = vocabulary
        self.window = kind.window
        self.info = _describe(kind, vocabulary)
        self._kind = kind
        self._pipeline = pipeline
        self._tokenizer = tokenizer
        self._silence_s = silence_s
        self._job: Job | None = None  # the job that the thread works on, until the job has ended
        self._error: Exception | None = None
        self._ready = threading.Condition()
        self._alive_at = 0.0

    def warm_up(self) -> None:
        """Transcribes a window of silence, so that the first request is not slower. Raises RuntimeError."""
        silence = Job(np.zeros(8000, np.float32), 0.0, TranscribeParams(), max_tokens=1)
        self._pipeline.generate(silence.samples.tolist(), **self._kind.options(silence, Texts()))

    def room(self, soon: bool) -> bool:
        return self._job is None

    def start(self, jobs: list[Job]) -> None:
        [job] = jobs
        self._job, self._error = job, None
        self._alive_at = time.monotonic()
        threading.Thread(target=self._compute, args=(job,), name="asr", daemon=True).start()

    def step(self) -> None:
        """Waits until the running window has new text or has ended. Raises EngineLost if it shows no progress."""
        with self._ready:
            if self._job is not None and not self._job.pieces:
                self._ready.wait(STEP_S)
            if self._job is not None and time.monotonic() - self._alive_at > self._silence_s:
                raise EngineLost(f"the pipeline has been silent for {self._silence_s:g} s")
            error, self._error = self._error, None
        if error is not None:
            raise error

    def decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
        return str(self._pipeline.get_tokenizer().decode(tokens, skip_special_tokens=skip_special_tokens))

    def encode(self, texts: list[str], add_special_tokens: bool) -> list[list[int]]:
        before, after = self._tokenizer.single if add_special_tokens else ((), ())
        return [[*before, *ids, *after] for ids in self._tokenizer.encode(texts)]

    def _compute(self, job: Job) -> None:
        error: Exception | None = None
        try:
            texts = self._texts(job)
            found = self._pipeline.generate(
                job.samples.tolist(), streamer=lambda text: self._on_text(job, text), **self._kind.options(job, texts)
            )
            result = self._kind.result(job, texts, found)
        except Exception as caught:  # any error of the pipeline
            error = caught
        with self._ready:
            if error is None:
                job.result = result
            elif isinstance(error, RequestError):
                job.error = error
            elif not job.cancelled:
                self._error = error
            self._job = None
            self._ready.notify()

    def _texts(self, job: Job) -> Texts:
        """Returns a job's prompt and hotwords, cut to their last tokens, which the pipeline does not do itself."""
        left = self._kind.max_prompt_tokens
        found: list[str] = []
        for text in (plain(job.params.hotwords), plain(job.prompt)):
            ids = self._tokenizer.encode([text])[0] if text and left else []
            if len(ids) > left:
                text = b"".join(self.vocabulary.pieces[token] for token in ids[-left:]).decode("utf-8", "ignore")
            found.append(text if ids else "")
            left -= min(left, len(ids))
        return Texts(found[1], found[0], self._kind.max_prompt_tokens - left)

    def _on_text(self, job: Job, text: str) -> Any:
        with self._ready:
            self._alive_at = time.monotonic()
            if job.cancelled:
                return CANCEL
            if text and job.stream:
                job.pieces.append(self._kind.delta(job, text))
                self._ready.notify()
        return RUNNING


def _describe(kind: Kind, vocabulary: Vocabulary) -> ModelInfo:
    return ModelInfo(
        vocab_size=len(vocabulary.pieces),
        context_length=kind.positions,
        versions={"openvino_genai": version("openvino_genai")},
        of_task=asdict(
            SpeechInfo(
                languages=kind.languages,
                translates=kind.translates,
                max_tokens=kind.max_tokens,
                max_prompt_tokens=kind.max_prompt_tokens,
                capabilities=kind.capabilities,
                backend="asr_pipeline",
            )
        ),
    )


def load(config: EngineConfig, kind: Kind, properties: dict[str, Any]) -> Any:
    """Loads the pipeline. Raises StartError."""
    with as_start_error(config):
        return genai.ASRPipeline(config.model_dir, config.target_device, **properties, **kind.properties)
