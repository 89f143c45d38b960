"""Converts live audio of telephones and browsers to 16 bit samples at another rate: G.711, and soxr between rates.

It imports numpy, so the front end must import it lazily (0.1 s, 15 MB).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import BadRequest, install_command
from ..media_files.audio.wav import a_law, mu_law

PCM = np.dtype("<i2")

Array = np.ndarray[Any, np.dtype[Any]]


class LiveDecoder:
    """Decodes audio of one format to 16-bit little-endian samples at another rate.

    The output does not depend on where the input is divided between samples: soxr computes with floats here, since it
    dithers integers.
    """

    def __init__(self, encoding: str, source_rate: int, target_rate: int) -> None:
        """Begins a stream.

        Args:
            encoding: "pcm", "pcmu" or "pcma".
            source_rate: The samples per second of the input.
            target_rate: The samples per second of the output.

        Raises:
            BadRequest: The rates differ, and soxr is not installed.
        """
        self._table = None if encoding == "pcm" else (mu_law() if encoding == "pcmu" else a_law())
        self._stream = None
        if source_rate != target_rate:
            try:
                import soxr
            except ImportError:
                text = f"audio of {source_rate} Hz needs soxr, which is not installed on this server"
                raise BadRequest(f"{text}: {install_command('audio')}", code="audio_format_unsupported") from None
            self._stream = soxr.ResampleStream(source_rate, target_rate, 1, dtype="float32", quality="HQ")

    def feed(self, data: bytes) -> bytes:
        """Decodes whole samples of the format. The resampler holds back up to 0.1 s."""
        samples = np.frombuffer(data, PCM) if self._table is None else self._table[np.frombuffer(data, np.uint8)]
        if self._stream is not None:
            samples = _rounded(self._stream.resample_chunk(samples.astype(np.float32)))
        return samples.astype(PCM).tobytes()

    def flush(self) -> bytes:
        """Returns the samples that the resampler holds back, and begins a new stream."""
        if self._stream is None:
            return b""
        rest = _rounded(self._stream.resample_chunk(np.zeros(0, np.float32), last=True))
        self._stream.clear()
        return rest.astype(PCM).tobytes()


def _rounded(samples: Array) -> Array:
    rounded: Array = np.rint(np.clip(samples, -32768, 32767))
    return rounded
