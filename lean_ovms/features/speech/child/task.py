"""The engine task that transcribes: it decides whose window is next, and has a recognizer compute it.

Live requests come before files. Then clients take turns, and so do the requests of each client, window by window: a
short file waits for a long one at most for one window, and for another client's many files no longer.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from ....config import EngineConfig
from ....engine import protocol
from ....engine.task import Task, busy
from ....errors import EngineLost, RequestError, counted, for_client
from .. import records
from .recognizer import Job, Recognizer
from .session import MIN_SAMPLES, Transcription
from .vad import Detector, EnergyDetector, SpeechCheck, amplified, unchecked

TURN_FRAMES, BUSY_FRAMES = 128, 32
"""The frames of 32 ms in which utterances are looked for between two steps, for all requests; the second during
decoding."""
TURN_SECONDS, BUSY_SECONDS = 4, 1
"""The seconds of windows checked for speech between two steps, for all requests; the second during decoding."""


def load(config: EngineConfig, _: Callable[[], None]) -> SpeechTask:
    """Loads the model that the options name, or the fake one, and returns its task. Raises StartError."""
    limits = config.max_queued_requests, config.max_queued_requests_per_client
    if config.without_model:
        from .fake_recognizer import FakeRecognizer

        return SpeechTask(FakeRecognizer(config), *limits)
    from . import model

    recognizer, detector, check = model.load(config)
    return SpeechTask(recognizer, *limits, detector, check)


class SpeechTask(Task):
    """Transcribes the audio of requests with one recognizer.

    Commands are only queued when they arrive; `admit` does a bounded part of their expensive work.
    """

    def __init__(
        self,
        recognizer: Recognizer,
        most: int,
        most_per_client: int,
        detector: Callable[[], Detector] = EnergyDetector,
        check: SpeechCheck = unchecked,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begins without any request.

        Args:
            recognizer: The loaded model.
            most: The most requests at once.
            most_per_client: The most of these of one client.
            detector: Makes the voice activity detector of a request.
            check: Checks each window of a file; windows without speech are not computed.
            clock: Returns the time in seconds.
        """
        super().__init__(recognizer.info, recognizer.vocabulary)
        self.recognizer = recognizer
        self._most, self._most_per_client = most, most_per_client
        self._detector = detector
        self._check = check
        self._clock = clock
        self._sessions: dict[int, Transcription] = {}
        self._running: dict[Job, Transcription] = {}
        self._turn = 0
        self._unchecked_s = 0  # how many seconds may still be checked for speech before the next step
        self._windows: dict[str, int] = {}
        """The windows that were started for each client with requests, more for one that has come later."""
        self._steps = 0

    @property
    def idle(self) -> bool:
        return not self._running and not any(
            one.cutter.pending or one.cutter.cuts or one.partial_due for one in self._sessions.values()
        )

    def stats(self) -> dict[str, int]:
        return {
            "running": len(self._running),
            "queued": sum(one.waiting for one in self._sessions.values()),
            "steps": self._steps,
        }

    # --- commands

    def _handle(self, command: protocol.Record) -> None:
        match command:
            case records.Transcribe():
                self._open(command)
            case records.Audio(id=number) if number in self._sessions:
                self._sessions[number].cutter.feed(command.data, command.last)
            case protocol.Cancel(id=number):
                self._close(number)
            case protocol.Encode():
                tokens = self.recognizer.encode(command.texts, command.add_special_tokens)
                self.out.append(protocol.Encoded.of(command.id, tokens))
            case protocol.Decode():
                text = self.recognizer.decode(command.tokens, command.skip_special_tokens)
                self.out.append(protocol.Decoded(command.id, text))

    def _refuse(self, command: protocol.Record, error: Exception) -> None:
        super()._refuse(command, error)
        self._close(getattr(command, "id", 0))

    def _open(self, command: records.Transcribe) -> None:
        """Opens a request, whose parameters the front end has checked. Raises TooManyRequests."""
        own = sum(one.client == command.client for one in self._sessions.values())
        if len(self._sessions) >= self._most:
            raise busy(_transcribed(self._most))
        if own >= self._most_per_client:
            raise busy(_transcribed(self._most_per_client, " of this client"))
        session = Transcription(command, self.recognizer.window, self._detector, self._clock)
        session.turn = self._turn
        self._sessions[command.id] = session
        # A client that was idle begins like the one that has got the least, so that idle time does not count.
        self._windows.setdefault(command.client, min(self._windows.values(), default=0))

    def _close(self, number: int) -> None:
        session = self._sessions.pop(number, None)
        if session is None:
            return
        if session.job is not None:
            session.job.cancelled = True
            self._running.pop(session.job, None)
        if all(one.client != session.client for one in self._sessions.values()):
            del self._windows[session.client]

    def _fail(self, session: Transcription, error: RequestError) -> None:
        self.out.append(protocol.Failed(session.id, error.to_wire()))
        self._close(session.id)

    # --- from audio to windows

    def admit(self) -> None:
        """Cuts some of the received audio into windows, and starts windows while the recognizer has room."""
        self._listen()
        self._unchecked_s = BUSY_SECONDS if self._running else TURN_SECONDS
        while (session := self._next()) is not None:
            if session.care and self._running:
                break  # it runs alone, after the windows in progress
            job = self._start(session)
            try:
                self.recognizer.start([job])
            except Exception as error:  # any error of the tokenizer
                self._failed(job, error)

    def _listen(self) -> None:
        """Cuts audio into windows, that of live requests first, then that of the requests with the fewest windows."""
        left = BUSY_FRAMES if self._running else TURN_FRAMES
        for session in sorted(self._sessions.values(), key=_hearing_order):
            if session.cutter.pending and left > 0 and not session.ahead:
                try:
                    left -= session.listen(left, self.out)
                except Exception as error:  # an error in one request must not end the loop
                    self._fail(session, for_client(error, f"request {session.id}"))
            if session.cutter.cuts:
                if session.partial:
                    self._running.pop(session.job, None)  # type: ignore[arg-type]
                session.drop_partial()
            if session.finished:
                self._finish(session)

    def _next(self) -> Transcription | None:
        """Returns the request whose window is next, or None if none can be started."""
        if any(one.care for one in self._running.values()):
            return None
        waiting = [one for one in self._sessions.values() if one.waiting]
        for session in sorted(waiting, key=self._order):
            if not self.recognizer.room(self._soon(session)):
                return None
            if self._worth_it(session):
                return session
        if self._running:
            return None
        return next((one for one in self._sessions.values() if one.partial_due), None)

    def _order(self, session: Transcription) -> tuple[bool, int, int, bool, int]:
        return not session.params.live, self._windows[session.client], session.turn, session.long, session.id

    def _soon(self, session: Transcription) -> bool:
        """Returns whether a request's window should start at once, as it is live, or short while only long ones run.

        Other short requests that arrive meanwhile wait for this one, and are then computed together.
        """
        if session.params.live:
            return True
        alone = all(one.long or one.params.live for one in self._running.values())
        return alone and not session.long and any(one.long for one in self._sessions.values())

    def _worth_it(self, session: Transcription) -> bool:
        """Returns whether the next window of a request is known to have speech; skips it if it has none."""
        if not session.exhausted:
            try:
                speaks = self._speaks(session)
            except Exception as error:  # any error of openvino must end this request, but not the loop
                self._fail(session, for_client(error, f"request {session.id}"))
                return False
            if speaks is not False:
                return bool(speaks)
            session.skip(self.out)
            self._charge(session)
        if session.exhausted:
            session.cutter.cuts.clear()
        if session.finished or session.exhausted:
            self._finish(session)
        return False

    def _speaks(self, session: Transcription) -> bool | None:
        """Returns whether the next window of a request has speech; None if the check goes on after the next step."""
        cut = session.cutter.cuts[0]
        if cut.end == cut.start or cut.sure or not session.params.vad:
            return cut.end > cut.start
        if cut.faint and self._check is unchecked:
            return False  # what is so quiet is noise, unless a check knows better
        while self._unchecked_s:
            self._unchecked_s -= 1
            if session.check is None:
                samples = session.cutter.buffer.samples(cut.start, cut.end)
                session.check = self._check(amplified(samples) if cut.faint else samples)
            speaks = next(session.check, None)
            if speaks is not False:
                session.check = None
                return bool(speaks)
        return None

    def _charge(self, session: Transcription) -> None:
        """Lets others have their turn before this request's next window."""
        self._turn = max(self._turn, session.turn)
        session.turn += 1
        self._windows[session.client] += 1

    def _start(self, session: Transcription) -> Job:
        if session.waiting:
            self._charge(session)
            soon = self._soon(session)
            job = session.start()
            job.soon = soon
            self.out.append(records.WindowStarted(session.id))
        else:
            job = session.start_partial()
            job.soon = True
        if (missing := MIN_SAMPLES - len(job.samples)) > 0:
            job.samples = np.pad(job.samples, (0, missing))
        self._running[job] = session
        return job

    # --- from windows to text

    def step(self) -> None:
        if not self._running and not any(one.waiting for one in self._sessions.values()):
            return
        self._steps += 1
        try:
            self.recognizer.step()  # needed also if windows only wait for a cancelled one to leave
        except EngineLost:
            raise
        except Exception as error:  # any error of openvino
            for job in list(self._running):
                self._failed(job, error)
            return
        for job, session in list(self._running.items()):
            session.collect(self.out)
            if job.error is not None:
                self._fail(session, job.error)
            elif job.done:
                del self._running[job]
                if session.finished or session.exhausted:
                    self._finish(session)

    def _failed(self, job: Job, error: Exception) -> None:
        job.cancelled = True
        session = self._running.pop(job, None)
        if session is not None:
            self._fail(session, for_client(error, f"request {session.id}"))

    def _finish(self, session: Transcription) -> None:
        if session.id in self._sessions:
            self.out.append(records.Transcribed(session.id))
            self._close(session.id)


def _transcribed(count: int, whose: str = "") -> str:
    return counted(
        count, f"request{whose} is already being transcribed", f"requests{whose} are already being transcribed"
    )


def _hearing_order(session: Transcription) -> tuple[bool, int, int]:
    return not session.params.live, len(session.cutter.cuts), session.turn
