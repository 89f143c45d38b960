"""Voice activity detection by Silero's network on OpenVINO, which takes 0.6 ms of CPU time for a frame of 32 ms."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ....engine.loading import quiet_imports  # noqa: F401 - first, for its effect

# isort: split
import numpy as np
import openvino as ov

from ....types.audio import SAMPLE_RATE
from . import silero
from .recognizer import Samples
from .vad import FRAME

FILE = Path(silero.__file__).parent / "silero_vad_openvino_16k.onnx"
CONTEXT = 64
"""Samples before a frame that are part of its input, too."""
STATE = (2, 1, 128)
"""The shape of the network's state."""
SPEECH = 0.3
"""A part of a file without a frame of this probability has no speech."""


class SileroVad:
    """The loaded network, which makes a detector for each request. Raises RuntimeError if it does not load."""

    def __init__(self) -> None:
        properties = {"INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": "f32"}
        self._request = ov.Core().compile_model(FILE, "CPU", properties).create_infer_request()

    def detector(self) -> SileroDetector:
        return SileroDetector(self._request)

    def check(self, samples: Samples) -> Iterator[bool]:
        """Checks second by second for speech, as a SpeechCheck, the loudest second first, to find speech fast."""
        seconds = [samples[at : at + SAMPLE_RATE] for at in range(0, len(samples), SAMPLE_RATE)]
        for second in sorted(seconds, key=lambda one: -float(np.square(one).sum())):
            detector = self.detector()
            whole = np.pad(second, (0, -len(second) % FRAME))
            frames = (whole[at : at + FRAME] for at in range(0, len(whole), FRAME))
            found = any(detector.probability(frame) >= SPEECH for frame in frames)
            yield found
            if found:
                return


class SileroDetector:
    """A Detector with the state of Silero's network for one request."""

    def __init__(self, request: Any) -> None:
        self._request = request
        self._state = np.zeros(STATE, np.float32)
        self._input = np.zeros((1, CONTEXT + FRAME), np.float32)

    def probability(self, frame: Samples) -> float:
        self._input[0, :CONTEXT] = self._input[0, -CONTEXT:]
        self._input[0, CONTEXT:] = frame
        self._request.infer({"input": self._input, "state": self._state})
        self._state = np.array(self._request.get_tensor("stateN").data)
        return float(self._request.get_tensor("output").data[0, 0])
