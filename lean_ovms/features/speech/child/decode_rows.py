"""A window in the decoder: its prompt, the tokens so far, the text and segments that are sent. Knows no openvino."""

from __future__ import annotations

import codecs
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..params import Segment, TextDelta, WindowDone
from .beams import Beam
from .logits import Rules, log_sum, penalize, probability, sample
from .recognizer import Job
from .whisper_files import TIME_STEP, WhisperFiles

LADDER = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
"""Whisper's temperatures: the next one where the text is not credible."""
DRAWS = 5
"""Texts that are drawn at each temperature of the ladder but the first, together; the likeliest one counts."""
MAX_COMPRESSION = 2.4
MIN_LOGPROB = -1.0
NO_SPEECH = 0.6
"""Whisper's thresholds."""
LOOP_TOKENS = 40
LOOP_TIMES = 4
"""A text has come into a loop when it ends with as many tokens that are a block as often."""


class Attempt:
    """One text of a window at one temperature, as far as it has come."""

    def __init__(self, files: WhisperFiles, temperature: float = 0.0, seed: Sequence[int] = (0,)) -> None:
        self.temperature = temperature
        self.rng = np.random.default_rng(seed)
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        """The log probability of each token."""
        self.ended = False
        self.total = 0.0
        """The sum of the log probabilities, that of the end included."""
        self._eot = files.eot

    def add(self, token: int, logprob: float, limit: int) -> None:
        """Adds a token, which may end the text.

        Args:
            token: The token.
            logprob: Its log probability.
            limit: The most tokens of the text.
        """
        self.total += logprob
        if token == self._eot:
            self.ended = True
            return
        self.tokens.append(token)
        self.logprobs.append(logprob)
        self.ended = len(self.tokens) >= limit

    @property
    def avg_logprob(self) -> float:
        """The average log probability, as Whisper computes it: the end counts as a token."""
        return self.total / (len(self.tokens) + 1)

    @property
    def text_tokens(self) -> list[int]:
        return [token for token in self.tokens if token < self._eot]


class DecodeRow:
    """The decoding of one job."""

    def __init__(self, job: Job, files: WhisperFiles, pieces: Sequence[bytes], prompt: list[int]) -> None:
        self.job = job
        self.prompt = prompt
        """The tokens before <|startoftranscript|>."""
        self.hidden: NDArray[np.float32] | None = None
        """The encoder's output for the window; None before the window is encoded."""
        self.language = job.language
        """The code of the language; "" until it is known."""
        self.language_probability: float | None = None
        self.no_speech = 0.0
        self._files = files
        self._pieces = pieces
        fixed = job.params.temperature
        self._ladder = LADDER if job.params.fallback and not fixed and job.params.beams == 1 else (fixed,)
        self._rung = 0
        self._tried: list[Attempt] = []
        room = files.positions - self.prompt_length - 1
        self.limit = max(1, min(job.max_tokens or room, room))
        self._half = files.positions // 2
        self._single = len(self._ladder) == 1 and job.params.beams == 1  # its first text is its last
        self._streams = job.stream and self._single
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._unsent: list[tuple[str, float]] = []
        self.attempts = self._begin()
        """The texts that are being decoded, all at one temperature."""
        self.chosen = self.attempts[0]
        """The text that counts; until all have ended, the first of them."""

    def _begin(self) -> list[Attempt]:
        """Returns the texts that are decoded at this temperature, without tokens."""
        seed = (self.job.params.seed or 0) & (1 << 63) - 1
        draws = DRAWS if self._rung else 1
        return [Attempt(self._files, self._ladder[self._rung], (seed, self._rung, draw)) for draw in range(draws)]

    @property
    def width(self) -> int:
        """The number of texts that are decoded together."""
        return max(len(self.attempts), self.job.params.beams)

    @property
    def ended(self) -> bool:
        """Whether all texts of this temperature have."""
        return all(attempt.ended for attempt in self.attempts)

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

    def choose(self, attempt: Attempt, logits: NDArray[np.float32], rules: Rules) -> int:
        """Chooses and returns the next token of a text by these logits, which may be changed."""
        params = self.job.params
        penalize(logits, attempt.tokens, params)
        rules.apply(logits, attempt.tokens, self.job.times)
        token = sample(logits, attempt.temperature, params, attempt.rng)
        logprob = float(logits[token]) - log_sum(logits)
        attempt.add(token, logprob, self.limit)
        if token < self._files.eot:
            if self._streams:
                self._stream(token, logprob)
            attempt.ended |= self._repeats_itself(attempt)
        return token

    def _repeats_itself(self, attempt: Attempt) -> bool:
        """Returns whether a text has come into a loop, or is half as long as any can be and says little.

        It is not credible then, however it goes on: with a wrong language all texts of most temperatures are such, and
        each would take as many steps as fit. OpenAI's Whisper ends every text at that half.
        """
        tokens = attempt.text_tokens
        return (len(tokens) == self._half or loops(tokens)) and not self._is_varied(attempt)

    def finish_beam_search(self, beam: Beam) -> None:
        """Takes the result of a beam search, which ends the row."""
        [attempt] = self.attempts
        attempt.tokens, attempt.logprobs = list(beam.tokens), list(beam.logprobs)
        attempt.total = beam.total
        attempt.ended = True

    def _stream(self, token: int, logprob: float) -> None:
        text = self._decoder.decode(self._pieces[token])
        self._unsent.append((self._pieces[token].decode("utf-8", "replace"), round(logprob, 4)))
        if text:
            self.job.pieces.append(TextDelta(text, self._unsent if self.job.params.logprobs else None))
            self._unsent = []

    # --- the end

    def settle(self) -> bool:
        """Chooses a text, after all of this temperature have ended: the likeliest that is credible, and after the last
        temperature the likeliest of all that do not repeat themselves. Returns whether it is chosen; else those of the
        next temperature are to be decoded."""
        best = max(self.attempts, key=self._order)
        self._tried.append(best)
        self._rung += 1
        if self._is_credible(best):
            self.chosen = best
        elif self._rung == len(self._ladder):
            self.chosen = max(self._tried, key=self._order)
        else:
            self.attempts = self._begin()
            return False
        return True

    def _order(self, attempt: Attempt) -> tuple[bool, float]:
        return self._is_varied(attempt), attempt.avg_logprob

    def _is_varied(self, attempt: Attempt) -> bool:
        """Returns False if the text repeats itself."""
        return compression_ratio(text_of(self._pieces, attempt.text_tokens)) <= MAX_COMPRESSION

    def _is_credible(self, attempt: Attempt) -> bool:
        if self._is_silence(attempt):
            return True
        return attempt.avg_logprob >= MIN_LOGPROB and self._is_varied(attempt)

    def _is_silence(self, attempt: Attempt) -> bool:
        return self.job.params.fallback and self.no_speech > NO_SPEECH and attempt.avg_logprob < MIN_LOGPROB

    @property
    def tokens(self) -> list[int]:
        """The tokens of the text that counts: none where there is no speech."""
        return [] if self._is_silence(self.chosen) and not self._streams else self.chosen.tokens

    @property
    def text_tokens(self) -> list[int]:
        return [token for token in self.tokens if token < self._files.eot]

    @property
    def read_to(self) -> float | None:
        """Returns where the text ends, in seconds of the request's audio; None if the whole window counts as read.

        What follows in the window is read again, with the audio behind it.
        """
        read = read_to(self.tokens, self._files) if self.job.times else None
        return None if read is None else min(self.job.start + read, self.job.end)

    def finish(self, words: Any = None) -> None:
        """Sets the result of the job.

        Args:
            words: The times of its words; None: they are not wanted.
        """
        job, files, chosen = self.job, self._files, self.chosen
        text = text_of(self._pieces, self.text_tokens)
        if job.stream:
            self._send_rest(text)
        segments = segments_of(self.tokens, files, self._pieces, job.start, job.end) if job.times else []
        for segment in segments:
            segment.avg_logprob = round(chosen.avg_logprob, 4)
            segment.no_speech_prob = round(self.no_speech, 4)
            segment.temperature = chosen.temperature
            segment.compression_ratio = round(compression_ratio(text), 4)
        job.read_to = self.read_to
        job.result = WindowDone(
            text=text,
            language=self.language or "en",
            language_probability=self.language_probability,
            segments=segments if job.params.segments else [],
            words=words or [],
            prompt_tokens=self.prompt_length + (not job.times),
            tokens=len(chosen.tokens),
            stopped="length" if len(chosen.tokens) >= self.limit else "stop",
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
            rows = zip(self.tokens, self.chosen.logprobs, strict=False)  # no tokens where there is no speech
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


def loops(tokens: Sequence[int]) -> bool:
    """Returns whether a text ends with a block of tokens again and again."""
    for length in range(1, len(tokens) // LOOP_TIMES + 1):
        count = max(LOOP_TOKENS, length * LOOP_TIMES)
        if count > len(tokens):
            return False
        if tokens[-1] == tokens[-1 - length] and tokens[-count:-length] == tokens[length - count :]:
            return True
    return False


def read_to(tokens: Sequence[int], files: WhisperFiles) -> float | None:
    """Returns where the last segment ends, in seconds, if another one begins behind it that has no text.

    Of a segment that the window cuts Whisper writes its beginning alone, a second timestamp behind the end of the last
    whole one: it wants to hear it in the next window.
    """
    if len(tokens) < 3 or min(tokens[-2:]) < files.first_time:
        return None
    return (tokens[-2] - files.first_time) * TIME_STEP


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
