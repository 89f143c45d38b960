"""A window in the decoder: its prompt, the tokens so far, the text and segments that are sent. Knows no openvino."""

from __future__ import annotations

import codecs
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...speech_types import Segment, TextDelta, WindowDone
from .beams import Beam
from .logits import Rules, log_sum, penalize, probability, sample
from .recognizer import Job
from .whisper_files import TIME_STEP, WhisperFiles

LADDER = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
"""Whisper's temperatures: the next one where the text is not credible."""
MAX_COMPRESSION = 2.4
MIN_LOGPROB = -1.0
NO_SPEECH = 0.6
"""Whisper's thresholds."""


class DecodeRow:
    """One job's decoding at one temperature. prompt: tokens before <|startoftranscript|>.

    language: "" until it is known. hidden: what the encoder made of the window.
    """

    def __init__(self, job: Job, files: WhisperFiles, pieces: Sequence[bytes], prompt: list[int]) -> None:
        self.job = job
        self.prompt = prompt
        self.hidden: NDArray[np.float32] | None = None
        self.language = job.language
        self.language_probability: float | None = None
        self.no_speech = 0.0
        self._files = files
        self._pieces = pieces
        self._seed = job.params.seed if job.params.seed is not None else 0
        fixed = job.params.temperature
        self._ladder = LADDER if job.params.fallback and not fixed and job.params.beams == 1 else (fixed,)
        self._rung = -1
        room = files.positions - self.prompt_length - 1
        self.limit = max(1, min(job.max_tokens or room, room))
        self._streams = job.stream and len(self._ladder) == 1 and job.params.beams == 1
        self.retry()

    def retry(self) -> None:
        """Begin at the next temperature."""
        self._rung += 1
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.ended = False
        self._sum = 0.0
        self._rng = np.random.default_rng([self._seed & (1 << 63) - 1, self._rung])
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._unsent: list[tuple[str, float]] = []

    @property
    def temperature(self) -> float:
        return self._ladder[self._rung]

    @property
    def prompt_length(self) -> int:
        """Tokens before the first that is generated, without <|notimestamps|>."""
        return len(self.prompt) + (3 if self._files.languages else 1)

    def opening(self) -> list[int]:
        """Returns the tokens after <|startoftranscript|>."""
        files = self._files
        if not files.languages:
            return []
        return [files.languages[self.language], files.tasks[self.job.params.task]]

    def detect_language(self, logits: NDArray[np.float32]) -> None:
        """Takes the likeliest language of the logits after <|startoftranscript|>."""
        ids = np.array(list(self._files.languages.values()), np.int64)
        scores = logits[ids]
        best = int(scores.argmax())
        self.language = list(self._files.languages)[best]
        self.language_probability = round(probability(scores, best), 4)

    # --- decoding

    def choose(self, logits: NDArray[np.float32], rules: Rules) -> int:
        """Chooses and returns the next token by these logits, which may be changed."""
        params = self.job.params
        penalize(logits, self.tokens, params)
        rules.apply(logits, self.tokens, self.job.times)
        token = sample(logits, self.temperature, params, self._rng)
        self.add(token, float(logits[token]) - log_sum(logits))
        return token

    def add(self, token: int, logprob: float) -> None:
        self._sum += logprob
        if token == self._files.eot:
            self.ended = True
            return
        self.tokens.append(token)
        self.logprobs.append(logprob)
        if self._streams and token < self._files.eot:
            self._stream(token, logprob)
        if len(self.tokens) >= self.limit:
            self.ended = True

    def finish_beam_search(self, beam: Beam) -> None:
        """Takes the result of a beam search, which ends the row."""
        self.tokens, self.logprobs = list(beam.tokens), list(beam.logprobs)
        self._sum = beam.total
        self.ended = True

    def _stream(self, token: int, logprob: float) -> None:
        text = self._decoder.decode(self._pieces[token])
        self._unsent.append((self._pieces[token].decode("utf-8", "replace"), round(logprob, 4)))
        if text:
            self.job.pieces.append(TextDelta(text, self._unsent if self.job.params.logprobs else None))
            self._unsent = []

    # --- the end

    @property
    def avg_logprob(self) -> float:
        """The average log probability, as Whisper computes it: the end counts as a token."""
        return self._sum / (len(self.tokens) + 1)

    @property
    def text_tokens(self) -> list[int]:
        return [token for token in self.tokens if token < self._files.eot]

    def credible(self) -> bool:
        """Returns False if the next temperature should be tried, and there is one."""
        if self._rung + 1 >= len(self._ladder):
            return True
        if self._is_silence:
            return True
        text = text_of(self._pieces, self.text_tokens)
        return compression_ratio(text) <= MAX_COMPRESSION and self.avg_logprob >= MIN_LOGPROB

    @property
    def _is_silence(self) -> bool:
        return self.job.params.fallback and self.no_speech > NO_SPEECH and self.avg_logprob < MIN_LOGPROB

    def finish(self, words: Any = None) -> None:
        """Set the job's result. words: the times of these tokens, if wanted."""
        job, files = self.job, self._files
        tokens = [] if self._is_silence and not self._streams else self.tokens
        texts = [token for token in tokens if token < files.eot]
        text = text_of(self._pieces, texts)
        if job.stream:
            self._send_rest(text)
        segments = segments_of(tokens, files, self._pieces, job.start, job.end) if job.times else []
        for segment in segments:
            segment.avg_logprob = round(self.avg_logprob, 4)
            segment.no_speech_prob = round(self.no_speech, 4)
            segment.temperature = self.temperature
            segment.compression_ratio = round(compression_ratio(text), 4)
        job.result = WindowDone(
            text=text,
            language=self.language or "en",
            language_probability=self.language_probability,
            segments=segments if job.params.segments else [],
            words=words or [],
            prompt_tokens=self.prompt_length + (not job.times),
            tokens=len(self.tokens),
            stopped="length" if len(self.tokens) >= self.limit else "stop",
        )

    def _send_rest(self, text: str) -> None:
        """Sends what was not sent while it was decoded."""
        if self._streams:
            rest = self._decoder.decode(b"", final=True)
            if rest:
                self.job.pieces.append(TextDelta(rest, self._unsent if self.job.params.logprobs else None))
            return
        logprobs = None
        if self.job.params.logprobs:
            rows = zip(self.tokens, self.logprobs, strict=True)
            logprobs = [
                (self._pieces[token].decode("utf-8", "replace"), round(logprob, 4))
                for token, logprob in rows
                if token < self._files.eot
            ]
        if text:
            self.job.pieces.append(TextDelta(text, logprobs))


# --- from tokens to text


def text_of(pieces: Sequence[bytes], tokens: Sequence[int]) -> str:
    """Returns the text of text tokens; what is not UTF-8 shows as U+FFFD."""
    return b"".join([pieces[token] for token in tokens]).decode("utf-8", "replace")


def compression_ratio(text: str) -> float:
    """Returns how much a text repeats itself: its bytes by those of its compressed form."""
    data = text.encode()
    return len(data) / len(zlib.compress(data)) if data else 1.0


def segments_of(
    tokens: Sequence[int], files: WhisperFiles, pieces: Sequence[bytes], start: float, end: float
) -> list[Segment]:
    """Returns the texts between timestamps, within [start, end] of the audio. An open one ends with the window."""
    found: list[Segment] = []
    begin: float | None = None
    words: list[int] = []

    def close(until: float) -> None:
        nonlocal begin, words
        text = text_of(pieces, words)
        first = start if begin is None else begin
        if text.strip() and first < end:
            found.append(Segment(start=first, end=max(first, min(until, end)), text=text, tokens=words))
        begin, words = None, []

    for token in tokens:
        if token >= files.first_time:
            at = start + (token - files.first_time) * TIME_STEP
            if words:
                close(at)
            else:
                begin = at
        elif token < files.eot:
            words.append(token)
    if words:
        close(end)
    for segment in found:
        segment.start, segment.end = round(segment.start, 3), round(segment.end, 3)
    return found
