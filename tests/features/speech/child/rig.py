"""For tests of the speech task: audio by level, and a worker with the scripted recognizer without a socket."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from lean_ovms.config import Config
from lean_ovms.features.speech.child.fake_recognizer import FakeRecognizer
from lean_ovms.features.speech.child.task import SpeechTask
from lean_ovms.features.speech.params import TranscribeParams
from lean_ovms.features.speech.records import Audio, SpeechText, Transcribe, WindowStarted, WindowTranscribed
from lean_ovms.types.audio import SAMPLE_RATE
from tests.engine.rig import WorkerRig

FINALS = ("transcribed", "failed", "refused")


def sound(*parts: tuple[float, float]) -> bytes:
    """Returns audio of (level, seconds) parts: a tone with this peak, or silence."""
    made = []
    for level, seconds in parts:
        time = np.arange(round(seconds * SAMPLE_RATE))
        made.append(np.sin(time * 0.3) * level * 32767)
    return np.concatenate(made).astype("<i2").tobytes()


class Rig(WorkerRig):
    """A worker and the records that it has sent."""

    def __init__(self, streams: int = 1, most: int = 64, of_client: int = 64, **options: Any) -> None:
        config = Config(fake_engine=True, task="speech2text", num_streams=streams)
        super().__init__(SpeechTask(FakeRecognizer(config), most, of_client, **options))

    def open(
        self, care: int = 0, start: int = 0, state: dict[str, Any] | None = None, client: str = "", **params: Any
    ) -> int:
        """Begins a request. Returns its id."""
        number = self.next_id()
        self.put(Transcribe(number, asdict(TranscribeParams(**params)), client, start, state or {}, care))
        return number

    def send(self, number: int, audio: bytes, cuts: Sequence[int] = (), last: bool = True) -> None:
        """Sends the audio of a request, cut at these samples."""
        edges = [0, *sorted(2 * cut for cut in cuts if 2 * cut < len(audio)), len(audio)]
        for begin, end in itertools.pairwise(edges):
            self.put(Audio(number, False, audio[begin:end]))
        if last:
            self.put(Audio(number, True, b""))

    def submit(self, audio: bytes, cuts: Sequence[int] = (), **params: Any) -> int:
        number = self.open(**params)
        self.send(number, audio, cuts)
        return number

    def of(self, number: int) -> list[Any]:
        """Returns the records of a request."""
        return [record for record in self.sent() if record.id == number]

    def windows(self, number: int) -> list[dict[str, Any]]:
        return [record.window for record in self.of(number) if isinstance(record, WindowTranscribed)]

    def text(self, number: int) -> str:
        """Returns the text of a request's windows, and checks that it equals that of the deltas."""
        windows = "".join(window["text"] for window in self.windows(number))
        assert "".join(record.text for record in self.of(number) if isinstance(record, SpeechText)) == windows
        return windows

    def started(self) -> list[int]:
        """Returns the requests of the windows in the order in which these were started."""
        return [record.id for record in self.sent() if isinstance(record, WindowStarted)]

    def finals(self, number: int) -> list[str]:
        return [record.kind for record in self.of(number) if record.kind in FINALS]
