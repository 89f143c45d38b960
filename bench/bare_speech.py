"""The limit of transcription by openvino-genai: a WhisperPipeline in this process, a window after the other.

python -m bench.bare_speech MODEL answers {"windows": [base64 of 16-bit audio], "timed": bool} with its texts, seconds
and seconds of CPU.
"""

from __future__ import annotations

import base64
import sys
import time

from bench.processes import answering


class Bare:
    """The pipeline."""

    def __init__(self, path: str) -> None:
        import openvino_genai

        self._pipeline = openvino_genai.WhisperPipeline(path, "CPU")

    def answer(self, question: dict) -> dict:
        """Transcribe the windows once."""
        import numpy as np

        windows = [
            np.frombuffer(base64.b64decode(one), "<i2").astype(np.float32) / 32768 for one in question["windows"]
        ]
        began, cpu = time.perf_counter(), time.process_time()
        found = [self._pipeline.generate(one.tolist(), return_timestamps=question["timed"]) for one in windows]
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
        return {"seconds": seconds, "cpu": cpu, "texts": [one.texts[0] for one in found]}


if __name__ == "__main__":
    answering(Bare(sys.argv[1]).answer)
