"""A fake speech model for --fake_engine, which writes a word for each half second of audio.

The half seconds are counted from the beginning of the request's audio. A word names a tenth of the peak of its half
second as a digit ("zero" is silence), so the text does not depend on how the audio is cut into windows. With
timestamps, the text of a long window ends LEFT seconds before its end, as if the window cut a segment. Some hotwords
make the model fail, for tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

import numpy as np

from ....config import EngineConfig
from ....engine.generation import fake_tokenizer as tokenizer
from ....types.audio import SAMPLE_RATE
from ....types.engine import ModelInfo
from ..params import TRANSLATE, Segment, SpeechInfo, TextDelta, WindowDone, Word
from .recognizer import Job

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
LANGUAGES = ["en", "de"]
RATE = SAMPLE_RATE // 2
"""Samples of a word."""
WINDOW = 30 * SAMPLE_RATE
LEFT = 3
"""Seconds that a window of more than half the longest leaves to the next one, if timestamps are requested."""
FAIL, HANG, DIE = "<|raise|>", "<|hang|>", "<|die|>"


class FakeRecognizer:
    """A Recognizer without a model."""

    window = WINDOW

    def __init__(self, config: EngineConfig) -> None:
        self._slots = config.streams
        self.vocabulary = tokenizer.vocabulary()
        self.info = ModelInfo(
            vocab_size=tokenizer.VOCAB_SIZE,
            context_length=448,
            eos_token_ids=[tokenizer.EOS],
            bos_token=tokenizer.NAMES[1],
            eos_token=tokenizer.NAMES[0],
            versions={"engine": "fake"},
            of_task=asdict(
                SpeechInfo(
                    languages=list(LANGUAGES),
                    translates=True,
                    max_tokens=224,
                    max_prompt_tokens=223,
                    capabilities=["words", "timed_stream", "fallback", "logprobs"],
                    backend="fake",
                    vad="energy",
                )
            ),
        )
        self._jobs: list[tuple[Job, Iterator[None]]] = []

    def room(self, soon: bool) -> bool:
        self._jobs = [(job, work) for job, work in self._jobs if not job.cancelled]
        return len(self._jobs) < self._slots

    def start(self, jobs: list[Job]) -> None:
        self._jobs += [(job, _work(job)) for job in jobs]

    def step(self) -> None:
        """Adds a word to each job."""
        for job, work in self._jobs:
            if not job.cancelled:
                next(work, None)
        self._jobs = [(job, work) for job, work in self._jobs if not (job.done or job.cancelled)]

    def decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
        return tokenizer.decode(tokens, skip_special_tokens)

    def encode(self, texts: list[str], add_special_tokens: bool) -> list[list[int]]:
        return [tokenizer.encode(text, add_special_tokens=add_special_tokens) for text in texts]


def _work(job: Job) -> Iterator[None]:
    """Fills the result of a job, and yields after each word."""
    hotwords = job.params.hotwords
    tokenizer.fail(raises=FAIL in hotwords, hangs=HANG in hotwords, dies=DIE in hotwords)
    words: list[Word] = []
    stopped = "stop"
    if job.times and len(job.samples) > WINDOW // 2:
        job.read_to = float(int(job.end) - LEFT)
    for word in _words(job):
        if job.read_to is not None and word.start >= job.read_to:
            break
        if job.max_tokens and len(words) == job.max_tokens:
            stopped = "length"
            break
        text = f" {word.word}"
        if job.stream:
            job.pieces.append(TextDelta(text, [(text.encode(), -0.1)] if job.params.logprobs else None))
        words.append(word)
        yield
    text = "".join(f" {word.word}" for word in words)
    segments = []
    if job.times and job.params.segments and words:
        at = words[0].start, words[-1].end
        tokens = [ord(letter) for letter in text]
        segments = [Segment(start=at[0], end=at[1], text=text, tokens=tokens, avg_logprob=-0.1, no_speech_prob=0.01)]
    job.result = WindowDone(
        text=text,
        language=job.language or LANGUAGES[0],
        language_probability=None if job.language else 0.9,
        segments=segments,
        words=words if job.times and job.params.words else [],
        prompt_tokens=4 + len(job.prompt.split()),
        tokens=len(words),
        stopped=stopped,
    )


def _words(job: Job) -> Iterator[Word]:
    """Yields the words of the half seconds whose middle is in the window."""
    first = round(job.start * SAMPLE_RATE)
    language = "-en" if job.params.task == TRANSLATE else ""
    for number in range(first // RATE, (first + len(job.samples)) // RATE + 1):
        begin, end = number * RATE - first, (number + 1) * RATE - first
        if not 0 <= (begin + end) // 2 < len(job.samples):
            continue
        peak = float(np.abs(job.samples[max(begin, 0) : end]).max(initial=0.0))
        word = WORDS[min(int(peak * 10 + 1e-3), 9)]
        if word != WORDS[0]:
            yield Word(word=word + language, start=number / 2, end=min((number + 1) / 2, job.end))
