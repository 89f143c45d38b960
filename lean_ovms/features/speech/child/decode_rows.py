"""The decoding of a window: its prompt, the tokens so far, and its text and segments."""

from __future__ import annotations

import codecs
import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..params import Segment, TextDelta, WindowDone, Word
from .beams import Beam
from .logits import Rules, log_sum, penalize, probability, sample
from .recognizer import Job
from .whisper_files import TIME_STEP, WhisperFiles

LADDER = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
"""Whisper's temperatures. If a text is not credible, it is decoded again at the next one."""
DRAWS = 5
"""Texts that are drawn at each temperature of the ladder but the first, together; the likeliest one counts."""
MAX_COMPRESSION = 2.4
MIN_LOGPROB = -1.0
NO_SPEECH = 0.6
"""Whisper's thresholds."""
LOOP_TOKENS = 40
LOOP_TIMES = 4
"""The tokens, and the repetitions of a block of tokens, at the end of a text from which on it counts as a loop."""


class Attempt:
    """One text of a window at one temperature, as far as it is decoded."""

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
        """The average log probability of the tokens; the end counts as a token, as in OpenAI's Whisper."""
        return self.total / (len(self.tokens) + 1)

    @property
    def text_tokens(self) -> list[int]:
        return [token for token in self.tokens if token < self._eot]


class DecodeRow:
    """The decoding of one job's window."""

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
        self._single = len(self._ladder) == 1 and job.params.beams == 1  # whether its first text is also its last
        self._streams = job.stream and self._single
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._unsent: list[tuple[bytes, float]] = []
        self.attempts = self._begin()
        """The texts that are being decoded, all at one temperature."""
        self.chosen = self.attempts[0]
        """The text that counts; until all have ended, the first of them."""

    def _begin(self) -> list[Attempt]:
        """Returns new texts to decode at the current temperature."""
        seed = (self.job.params.seed or 0) & (1 << 63) - 1
        draws = DRAWS if self._rung else 1
        return [Attempt(self._files, self._ladder[self._rung], (seed, self._rung, draw)) for draw in range(draws)]

    @property
    def width(self) -> int:
        """The number of texts of this window that are decoded together."""
        return max(len(self.attempts), self.job.params.beams)

    @property
    def ended(self) -> bool:
        """Whether all texts of the current temperature have ended."""
        return all(attempt.ended for attempt in self.attempts)

    @property
    def prompt_length(self) -> int:
        """The number of tokens before the first generated one, not counting <|notimestamps|>."""
        return len(self.prompt) + (3 if self._files.languages else 1)

    def opening(self) -> list[int]:
        """Returns the tokens of language and task, which follow <|startoftranscript|>; [] for an English-only model."""
        files = self._files
        if not files.languages:
            return []
        return [files.languages[self.language], files.tasks[self.job.params.task]]

    def detect_language(self, logits: NDArray[np.float32]) -> None:
        """Sets the language to the likeliest one by the logits after <|startoftranscript|>."""
        ids = np.array(list(self._files.languages.values()), np.int64)
        scores = logits[ids]
        best = int(scores.argmax())
        self.language = list(self._files.languages)[best]
        self.language_probability = round(probability(scores, best), 4)

    # --- decoding

    def choose(self, attempt: Attempt, logits: NDArray[np.float32], rules: Rules) -> int:
        """Chooses the next token of a text, adds it, and returns it. The logits may be changed."""
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
        """Returns whether a text is repetitive and either ends in a loop or has reached half of the decoder's length.

        Such a text is not credible, however it goes on, so it is ended. With a wrong language most texts are like that,
        and each would take as many steps as the decoder allows. OpenAI's Whisper ends every text at half of the length.
        """
        tokens = attempt.text_tokens
        return (len(tokens) == self._half or loops(tokens)) and not self._is_varied(attempt)

    def finish_beam_search(self, beam: Beam) -> None:
        """Sets the result of a beam search, which ends the row."""
        [attempt] = self.attempts
        attempt.tokens, attempt.logprobs = list(beam.tokens), list(beam.logprobs)
        attempt.total = beam.total
        attempt.ended = True

    def _stream(self, token: int, logprob: float) -> None:
        text = self._decoder.decode(self._pieces[token])
        self._unsent.append((self._pieces[token], round(logprob, 4)))
        if text:
            self.job.pieces.append(TextDelta(text, self._unsent if self.job.params.logprobs else None))
            self._unsent = []

    # --- the end

    def settle(self) -> bool:
        """Chooses a text when all texts of a temperature have ended, and returns whether one was chosen.

        It is the likeliest text if that is credible. After the last temperature it is the likeliest of all texts, where
        one that does not repeat itself is preferred. If none is chosen, texts of the next temperature are to be
        decoded.
        """
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
        """Returns whether a text does not repeat itself, judged by its compression ratio."""
        return compression_ratio(text_of(self._pieces, attempt.text_tokens)) <= MAX_COMPRESSION

    def _is_credible(self, attempt: Attempt) -> bool:
        if self._is_silence(attempt):
            return True
        return attempt.avg_logprob >= MIN_LOGPROB and self._is_varied(attempt)

    def _is_silence(self, attempt: Attempt) -> bool:
        return self.job.params.fallback and self.no_speech > NO_SPEECH and attempt.avg_logprob < MIN_LOGPROB

    @property
    def tokens(self) -> list[int]:
        """The tokens of the chosen text, or none if the window has no speech."""
        return [] if self._is_silence(self.chosen) and not self._streams else self.chosen.tokens

    @property
    def text_tokens(self) -> list[int]:
        return [token for token in self.tokens if token < self._files.eot]

    @property
    def read_to(self) -> float | None:
        """The time at which the text ends, in seconds of the request's audio; None if the whole window is transcribed.

        The rest of the window is transcribed again, together with the audio after it.
        """
        read = read_to(self.tokens, self._files) if self.job.times else None
        return None if read is None else min(self.job.start + read, self.job.end)

    def segments(self) -> list[Segment]:
        """Returns the segments of the text, if the job has times."""
        job, chosen = self.job, self.chosen
        if not job.times:
            return []
        found = segments_of(self.tokens, self._files, self._pieces, job.start, job.end)
        ratio = round(compression_ratio(text_of(self._pieces, self.text_tokens)), 4)
        for segment in found:
            segment.avg_logprob = round(chosen.avg_logprob, 4)
            segment.no_speech_prob = round(self.no_speech, 4)
            segment.temperature = chosen.temperature
            segment.compression_ratio = ratio
        return found

    def finish(self, segments: list[Segment], words: list[Word] | None = None) -> None:
        """Sets the job's result: the segments, and the words with their times, or None if they are not requested."""
        job, chosen = self.job, self.chosen
        text = text_of(self._pieces, self.text_tokens)
        if job.stream:
            self._send_rest(text)
        job.read_to = self.read_to
        if words and job.read_to is not None:  # as in openai-whisper: the timestamp may cut the next word
            job.read_to = words[-1].end
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
        """Adds the part of the text to the job's deltas that was not added while it was decoded."""
        if self._streams:
            rest = self._decoder.decode(b"", final=True)
            if rest:
                self.job.pieces.append(TextDelta(rest, self._unsent if self.job.params.logprobs else None))
            return
        logprobs = None
        if self.job.params.logprobs:
            rows = zip(self.tokens, self.chosen.logprobs, strict=False)  # without speech there are no tokens
            logprobs = [(self._pieces[token], round(logprob, 4)) for token, logprob in rows if token < self._files.eot]
        if text:
            self.job.pieces.append(TextDelta(text, logprobs))


# --- from tokens to text


def text_of(pieces: Sequence[bytes], tokens: Sequence[int]) -> str:
    """Returns the text of tokens that are not special; invalid UTF-8 becomes U+FFFD."""
    return b"".join([pieces[token] for token in tokens]).decode("utf-8", "replace")


def compression_ratio(text: str) -> float:
    """Returns a stripped text's size divided by its compressed size, which is high if it repeats itself."""
    data = text.strip().encode()
    return len(data) / len(zlib.compress(data)) if data else 1.0


def loops(tokens: Sequence[int]) -> bool:
    """Returns whether a text ends with many repetitions of a block of tokens."""
    for length in range(1, len(tokens) // LOOP_TIMES + 1):
        count = max(LOOP_TOKENS, length * LOOP_TIMES)
        if count > len(tokens):
            return False
        if tokens[-1] == tokens[-1 - length] and tokens[-count:-length] == tokens[length - count :]:
            return True
    return False


def read_to(tokens: Sequence[int], files: WhisperFiles) -> float | None:
    """Returns the end of the last complete segment in seconds, if the window cuts a segment after it, else None.

    For a segment that the end of the window cuts, Whisper writes only its first timestamp, so that two timestamps are
    at the end of the text. The cut segment should be transcribed in the next window.
    """
    if len(tokens) < 3 or min(tokens[-2:]) < files.first_time:
        return None
    return (tokens[-2] - files.first_time) * TIME_STEP


def segments_of(
    tokens: Sequence[int], files: WhisperFiles, pieces: Sequence[bytes], start: float, end: float
) -> list[Segment]:
    """Returns the texts between timestamps as segments, within `start` and `end` in seconds of the request's audio.

    A segment without a second timestamp ends with the window.
    """
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
