"""Cuts the audio of a request into windows: at quiet places, leaving out long silence, or one for each utterance.

The cuts depend only on the audio itself, and not on the blocks in which it arrives.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from ....types.audio import SAMPLE_BYTES, SAMPLE_RATE
from ..params import TurnDetection
from .recognizer import Samples
from .vad import FAINT, FRAME, SILENCE, Detector, rms

PAD = int(0.3 * SAMPLE_RATE)
"""Samples of silence that stay around sound."""
GAP = 5 * SAMPLE_RATE
"""Samples of silence that end a window, and are skipped."""
MIN_SPEECH_FRAMES = 3
"""Consecutive frames of speech with which an utterance begins."""
HYSTERESIS = 0.15
"""How far the probability may fall below the threshold before speech is over."""
SEARCH, QUIET = SAMPLE_RATE, SAMPLE_RATE // 10
"""The samples at the end of a full window among which a place to cut it is searched, and those of the quietest part of
them, in whose middle it is cut."""
HOP = 160
"""Samples from one place that is tried for a cut to the next."""


@dataclass(slots=True)
class Cut:
    """A window of audio; if start == end, the end of audio without speech. Positions are counted in samples."""

    start: int
    """The first sample of the window."""
    end: int
    """The position after the last sample of the window."""
    skipped: int = 0
    """The number of samples before it that are in no window."""
    sure: bool = False
    """Whether the cutter knows that the window has speech."""
    faint: bool = False
    """Whether no frame of the audio up to its end is louder than SILENCE."""


class Buffer:
    """The samples of a request that are still needed. Positions count from the beginning of its audio."""

    def __init__(self, start: int) -> None:
        self.start = start
        self._data = bytearray()  # grows without copying all of it for every small record

    @property
    def end(self) -> int:
        return self.start + len(self._data) // SAMPLE_BYTES

    def append(self, data: bytes) -> None:
        self._data += data

    def samples(self, start: int, end: int) -> Samples:
        """Returns the samples from `start` to before `end`, which must be in the buffer."""
        found = np.frombuffer(self._data, "<i2", end - start, (start - self.start) * SAMPLE_BYTES)
        return found.astype(np.float32) / 32768.0

    def forget(self, before: int) -> None:
        """Drops the samples before a position."""
        if before > self.start:
            del self._data[: (before - self.start) * SAMPLE_BYTES]
            self.start = before


class Cutter:
    """Cuts audio into windows, frame by frame. Positions are counted in samples of the request's audio."""

    def __init__(self, start: int, window: int, context: int) -> None:
        """Begins at a position in the request's audio.

        Args:
            start: The position of the first sample.
            window: The most samples of a window.
            context: The number of samples before the first frame with speech that also belong to its window.
        """
        self.buffer = Buffer(start)
        self._context = context
        self.cuts: deque[Cut] = deque()
        """The windows that nobody has taken yet."""
        self.turns: list[tuple[bool, int]] = []
        """The beginnings (True) and the ends (False) of utterances and their places, since they were last taken."""
        self.window = window
        """The most samples of a cut."""
        self._position = start  # the beginning of the next frame
        self._cursor = start  # everything before it is in a cut, or was skipped
        self.speech_since: int | None = None
        """Where an utterance began that has not ended; None if there is none."""
        self._ended = self.finished = False
        """Whether no more audio comes, and whether all of it is in `cuts`."""

    @property
    def needed(self) -> int:
        """The position of the first sample that a later window may contain."""
        return max(self._cursor, self._position - self._context) if self.speech_since is None else self.speech_since

    @property
    def pending(self) -> bool:
        """Whether `work` has something to do."""
        if self.finished:
            return False
        return self._ended or self.buffer.end - self._position >= FRAME

    def feed(self, data: bytes, last: bool) -> None:
        """Adds the next samples, of 16 bits; `last` says that none follow."""
        if data:
            self.buffer.append(data)
        self._ended |= last

    def work(self, frames: int) -> int:
        """Works on at most `frames` frames, and returns the number of those done."""
        done = 0
        while done < frames and self.buffer.end - self._position >= FRAME:
            self._frame(self.buffer.samples(self._position, self._position + FRAME), self._position + FRAME)
            self._position += FRAME
            done += 1
        if self._ended and not self.finished and self.buffer.end - self._position < FRAME:
            self._finish()
        return done

    def forget(self, before: int) -> None:
        """Drops the samples before a position, which no later window contains."""
        self.buffer.forget(before)

    def resume(self, at: int, end: int) -> None:
        """Makes a window of the samples from `at` to `end`: the last one ended at `end`, but was read up to `at`."""
        self.cuts.appendleft(Cut(at, end))

    def _finish(self) -> None:
        rest = self.buffer.samples(self._position, self.buffer.end)
        if len(rest):
            self._frame(np.pad(rest, (0, FRAME - len(rest))), self.buffer.end)
        self._close(self.buffer.end)
        self.finished = True

    def _close(self, end: int) -> None:
        """Ends the last window, since the audio ends at this position, and skips what is in none."""
        self._close_window(end)
        if end > self._cursor:
            self.cuts.append(Cut(end, end, end - self._cursor))
            self._cursor = end

    def _cut(self, end: int, *, sure: bool = False) -> None:
        """Ends the window in progress at a position."""
        assert self.speech_since is not None
        self.cuts.append(Cut(self.speech_since, end, self.speech_since - self._cursor, sure))
        self._cursor, self.speech_since = end, None

    def _frame(self, frame: Samples, end: int) -> None:
        """Works on the next frame, after which the position is `end`."""
        raise NotImplementedError

    def _close_window(self, end: int) -> None:
        """Ends the window in progress, if there is one, at the end of the audio."""
        raise NotImplementedError

    def _quiet(self, start: int) -> int:
        """Returns the quietest position at which to cut a full window that begins at `start`."""
        end = start + self.window
        first = max(end - SEARCH, start + self.window // 2)
        energy = np.square(self.buffer.samples(first, end), dtype=np.float64)
        sums = np.concatenate(([0.0], np.cumsum(energy)))
        places = np.arange(0, len(energy) - QUIET + 1, HOP)
        best = int(places[int(np.argmin(sums[places + QUIET] - sums[places]))])
        return first + best + QUIET // 2


class FileCutter(Cutter):
    """Cuts the audio of a file into windows that are as long as possible, at quiet places and without long silence.

    Frames below SILENCE are silent. But until the first frame above it, those above FAINT have sound, so that a file
    that is quiet from its beginning to its end has windows. The first loud frame begins a new window.
    """

    def __init__(self, start: int, window: int, skip_silence: bool) -> None:
        super().__init__(start, window, PAD + FRAME)
        self._skip_silence = skip_silence
        self._gap = min(GAP, window // 3)
        self._last_sound = start
        self._heard: deque[tuple[int, bool]] = deque()  # the end of each kept frame, and whether it has sound
        self._loud: int | None = None  # the end of the first frame above SILENCE

    def forget(self, before: int) -> None:
        super().forget(before)
        while self._heard and self._heard[0][0] <= before:
            self._heard.popleft()

    def resume(self, at: int, end: int) -> None:
        """Cuts the audio from the position `at` on again, so that the next window begins there."""
        self.cuts.clear()
        self._cursor = self._last_sound = at
        self.speech_since = None
        for frame_end, sound in self._heard:
            if frame_end > at:
                self._advance(sound, frame_end)
        if self.finished:
            self._close(self.buffer.end)

    def _frame(self, frame: Samples, end: int) -> None:
        level = rms(frame) if self._skip_silence else SILENCE
        if self._loud is None and level >= SILENCE:
            self._loud = end
        sound = level >= (FAINT if self._loud is None else SILENCE)
        self._heard.append((end, sound))
        self._advance(sound, end)

    def _advance(self, sound: bool, end: int) -> None:
        """Works on a frame that ends at `end`, and has sound or not."""
        if end == self._loud:
            self.speech_since = None
        if sound:
            self._last_sound = end
        if self.speech_since is None:
            if not sound:
                return
            self.speech_since = max(self._cursor, end - FRAME - PAD)
        elif end - self._last_sound >= self._gap:
            self._cut(min(self._last_sound + PAD, end))
        if self.speech_since is not None and end - self.speech_since >= self.window:
            self._cut(self._quiet(self.speech_since))
            self.speech_since = self._cursor if self._last_sound > self._cursor else None

    def _cut(self, end: int, *, sure: bool = False) -> None:
        super()._cut(end, sure=sure)
        self.cuts[-1].faint = self._loud is None or end < self._loud

    def _close_window(self, end: int) -> None:
        if self.speech_since is not None:
            self._cut(min(self._last_sound + PAD, end) if self._skip_silence else end)


class TurnCutter(Cutter):
    """Finds utterances by voice activity. Each is a window, or several if it is too long."""

    def __init__(self, start: int, window: int, turns: TurnDetection, detector: Detector) -> None:
        self._prefix = turns.prefix_padding_ms * SAMPLE_RATE // 1000
        super().__init__(start, window, self._prefix + (MIN_SPEECH_FRAMES + 1) * FRAME)
        self._detector = detector
        self._threshold = turns.threshold
        self._silence = max(FRAME, turns.silence_duration_ms * SAMPLE_RATE // 1000)
        self._run = 0  # consecutive frames of speech before an utterance begins
        self._last_speech = start

    def _frame(self, frame: Samples, end: int) -> None:
        probability = self._detector.probability(frame)
        if self.speech_since is None:
            self._run = self._run + 1 if probability >= self._threshold else 0
            if self._run < MIN_SPEECH_FRAMES:
                return
            self.speech_since = max(self._cursor, end - self._run * FRAME - self._prefix)
            self._last_speech = end
            self.turns.append((True, self.speech_since))
        elif probability >= max(self._threshold - HYSTERESIS, self._threshold / 4):
            self._last_speech = end
        if end - self._last_speech >= self._silence:
            self._cut(end)
        elif end - self.speech_since >= self.window:
            self._cut(self._quiet(self.speech_since))
            self.speech_since = self._cursor
            self.turns.append((True, self.speech_since))

    def _cut(self, end: int, *, sure: bool = True) -> None:
        super()._cut(end, sure=sure)
        self.turns.append((False, end))
        self._run = 0

    def _close_window(self, end: int) -> None:
        if self.speech_since is not None:
            self._cut(end)
