"""One transcription in the engine process: its audio, its windows, and its state from one window to the next."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from typing import Any

from ....engine.protocol import Record
from ....types.audio import SAMPLE_RATE
from ..params import TranscribeParams, TurnDetection, WindowDone
from ..records import AudioUsed, SpeechText, SpeechTurn, Transcribe, WindowTranscribed
from .recognizer import Job
from .vad import Detector
from .windows import Cut, Cutter, FileCutter, TurnCutter

LONG = 30 * SAMPLE_RATE
"""Samples from which on a request is a long one."""
AHEAD_CUTS = 2
"""Windows of a file that may wait; meanwhile no more of its audio is cut."""
MIN_SAMPLES = SAMPLE_RATE // 10
"""The least samples of a window; a shorter one is filled up with silence."""
MIN_READ = SAMPLE_RATE // 2
"""The least number of samples from one window to the next, whatever the model returns."""
MIN_REST = SAMPLE_RATE // 4
"""Samples at the end of a window that are not read again: less than a word."""
REPORT = SAMPLE_RATE
"""Samples without speech after which a record reports that they are not needed."""


class Transcription:
    """A request whose audio is transcribed window by window."""

    def __init__(
        self, command: Transcribe, window: int, detector: Callable[[], Detector], clock: Callable[[], float]
    ) -> None:
        self.id = command.id
        self.client = command.client
        params = dict(command.params)
        if (turns := params.get("turns")) is not None:
            params["turns"] = TurnDetection(**turns)
        self.params = TranscribeParams(**params)
        self.turn = 0
        """The place of the request in the queue, in virtual time."""
        self.care = command.care
        """How the next window is computed: ALONE or PLAIN of records.Transcribe, or 0 for the usual way."""
        self.job: Job | None = None
        """The window of the request that is being computed; None if there is none."""
        self.check: Iterator[bool] | None = None
        """The check for speech of the next window, as far as it has been done; None before it."""
        self.partial = False
        """Whether `job` is a partial result of an utterance that has not ended."""
        self.cutter: Cutter
        if self.params.turns is not None:
            self.cutter = TurnCutter(command.start, window, self.params.turns, detector())
        else:
            self.cutter = FileCutter(command.start, window, self.params.vad)
        self._clock = clock
        self._cut: Cut | None = None
        self._ready_at = 0.0
        self._started_at = 0.0
        self._used = command.start
        self._skipped = 0  # samples in windows without speech, which were not transcribed
        state = command.state
        self._language: str = self.params.language or state.get("language", "")
        self._prompt: str = "" if state.get("prompted") else self.params.prompt
        self._tokens: int = state.get("tokens", 0)
        # The partial results of an utterance that has not ended.
        self._sent = ""
        self._to_skip = 0
        self._logprobs: list[tuple[str, float]] = []  # of tokens whose text partial results have had
        self._hypothesis: list[str] = []
        self._partial_end = 0
        self._partial_cost_s = 0.0
        self._partial_at = 0.0

    # --- state

    @property
    def waiting(self) -> bool:
        """Whether the next window can be started."""
        return self.job is None and bool(self.cutter.cuts)

    @property
    def long(self) -> bool:
        """Whether more audio than a window has been received."""
        return self.cutter.buffer.end > LONG

    @property
    def ahead(self) -> bool:
        """Whether enough windows are waiting, so that cutting more audio can wait."""
        return not self.params.live and len(self.cutter.cuts) >= AHEAD_CUTS

    @property
    def finished(self) -> bool:
        """Whether all audio is transcribed."""
        return self.cutter.finished and not self.cutter.cuts and self.job is None

    @property
    def exhausted(self) -> bool:
        """Whether the request has used up its max_tokens."""
        return bool(self.params.max_tokens) and self._tokens >= self.params.max_tokens

    @property
    def partial_due(self) -> bool:
        """Whether a partial result of the utterance in progress should be computed now."""
        since = self.cutter.speech_since
        if not self.params.partials or since is None or self.job is not None or self.cutter.cuts:
            return False
        fresh = self.cutter.buffer.end - max(self._partial_end, since)
        return fresh >= SAMPLE_RATE // 2 and self._clock() - self._partial_at >= 2 * self._partial_cost_s

    # --- audio

    def listen(self, frames: int, out: list[Record]) -> int:
        """Cuts at most `frames` frames of audio into windows, and returns the number of those done."""
        had = bool(self.cutter.cuts)
        done = self.cutter.work(frames)
        for started, at in self.cutter.turns:
            out.append(SpeechTurn(self.id, started, at / SAMPLE_RATE))
        self.cutter.turns.clear()
        if self.cutter.cuts and not had:
            self._ready_at = self._clock()
        if self.job is None and not self.cutter.cuts and self.cutter.needed - self._used >= REPORT:
            self._free()
            out.append(AudioUsed(self.id, self._used))
        return done

    def _free(self) -> None:
        cuts = self.cutter.cuts
        self._used = min(cuts[0].start - cuts[0].skipped if cuts else self.cutter.needed, self.cutter.needed)
        self.cutter.forget(self._used)

    # --- windows

    def skip(self, out: list[Record]) -> None:
        """Skips the next window because it has no speech."""
        cut = self.cutter.cuts.popleft()
        self._skipped += cut.skipped + cut.end - cut.start
        if self.cutter.finished and not self.cutter.cuts:
            self._report(Cut(cut.end, cut.end), WindowDone(text="", language=self._language), out, 0.0)
        else:
            self._free()
            out.append(AudioUsed(self.id, self._used))

    def start(self) -> Job:
        cut = self._cut = self.cutter.cuts.popleft()
        self._started_at = self._clock()
        return self._job(cut.start, cut.end, times=self.care < Transcribe.PLAIN)

    def start_partial(self) -> Job:
        """Returns a job for the part of the utterance that has been received so far."""
        since = self.cutter.speech_since
        assert since is not None
        self.partial = True
        self._partial_end = self.cutter.buffer.end
        self._started_at = self._clock()
        return self._job(since, min(self._partial_end, since + self.cutter.window), times=False)

    def _job(self, start: int, end: int, times: bool) -> Job:
        params = self.params
        wanted = times and (params.segments or params.words)
        left = max(1, params.max_tokens - self._tokens) if params.max_tokens else 0
        self.job = Job(
            samples=self.cutter.buffer.samples(start, end),
            start=start / SAMPLE_RATE,
            params=params,
            language=self._language,
            prompt=self._prompt,
            max_tokens=left,
            times=wanted,
            stream=not self.partial,
        )
        return self.job

    # --- results

    def collect(self, out: list[Record]) -> None:
        """Appends the records of the job's new text to `out`, and that of its result when it has ended."""
        job = self.job
        assert job is not None
        if self.partial:
            if job.done:
                self._end_partial(job, out)
            return
        for piece in job.pieces:
            known = min(self._to_skip, len(piece.text))  # already sent in partial results
            self._to_skip -= known
            self._logprobs += [(token.decode("latin-1"), value) for token, value in piece.logprobs or ()]
            if text := piece.text[known:]:
                out.append(SpeechText(self.id, text, None if piece.logprobs is None else self._logprobs))
                self._logprobs = []
        job.pieces.clear()
        if job.result is not None:
            cut, self.job, self.care = self._cut, None, 0
            assert cut is not None
            if job.read_to is not None:
                cut = self._read(cut, round(job.read_to * SAMPLE_RATE))
            self._report(cut, job.result, out, self._clock() - self._started_at)

    def _read(self, cut: Cut, at: int) -> Cut:
        """Cuts the audio after the sample `at` again, as the window's text ends there. Returns the shortened window."""
        at = max(at, cut.start + MIN_READ)
        if cut.end - at < MIN_REST or self.exhausted:
            return cut
        self.cutter.resume(at, cut.end)
        return replace(cut, end=at)

    def _end_partial(self, job: Job, out: list[Record]) -> None:
        """Sends the first words, without the last one, on which this partial result and the one before agree."""
        self.job, self.partial = None, False
        now = self._clock()
        self._partial_cost_s, self._partial_at = now - self._started_at, now
        if job.result is None:
            return
        words = job.result.text.split(" ")
        agreed = 0
        for own, theirs in zip(words[:-1], self._hypothesis, strict=False):
            if own != theirs:
                break
            agreed += 1
        self._hypothesis = words
        text = " ".join(words[:agreed])
        if text.startswith(self._sent) and len(text) > len(self._sent):
            out.append(SpeechText(self.id, text[len(self._sent) :], None))
            self._sent = text
            self._to_skip = len(text)

    def drop_partial(self) -> None:
        """Cancels the partial result that is being computed, as a whole window is waiting."""
        if self.partial and self.job is not None:
            self.job.cancelled = True
            self.job, self.partial = None, False

    def _report(self, cut: Cut, window: WindowDone, out: list[Record], computed_s: float) -> None:
        if window.language and not self._language and window.text.strip():
            self._language = window.language
        window.language = window.language or self._language
        self._prompt = ""
        self._tokens += window.tokens
        window.start, window.end = cut.start / SAMPLE_RATE, cut.end / SAMPLE_RATE
        window.skipped, self._skipped = (self._skipped + cut.skipped) / SAMPLE_RATE, 0
        queued_s = max(0.0, self._started_at - self._ready_at) if computed_s else 0.0
        self._ready_at = self._clock()
        self._hypothesis, self._sent, self._to_skip, self._logprobs = [], "", 0, []
        self._free()
        state: dict[str, Any] = {"language": self._language, "prompted": True, "tokens": self._tokens}
        out.append(WindowTranscribed(self.id, asdict(window), self._used, state, queued_s, computed_s))
