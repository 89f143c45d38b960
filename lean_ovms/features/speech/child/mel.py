"""Computes the log-mel features of a window, on which Whisper was trained.

The reference is openai-whisper's log_mel_spectrogram: a Hann window of 400 samples every 160 samples, Slaney's mel
filters, and logarithms that are clamped to 8 below the highest. Frames of padding are not computed, so a short window
takes little time.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ....types.audio import SAMPLE_RATE
from .recognizer import Samples
from .whisper_files import HOP

N_FFT = 400
"""Samples of a frame."""
MIN_POWER = 1e-10
"""The power that stands for any lower one of a band, since 0 has no logarithm."""
RANGE = 8.0
"""How far logarithms may be below the highest one."""
LINEAR_HZ = 200.0 / 3
"""Slaney's mel scale: linear up to 1000 Hz, then logarithmic."""
LOG_FROM_HZ, LOG_STEP = 1000.0, np.log(6.4) / 27.0


def filters(mels: int) -> NDArray[np.float32]:
    """Returns the mel filters [mels, N_FFT // 2 + 1]: triangles of equal area, evenly spaced on the mel scale."""
    bins = np.linspace(0, SAMPLE_RATE / 2, N_FFT // 2 + 1)
    edges = _hz(np.linspace(0.0, _mel(SAMPLE_RATE / 2), mels + 2))
    widths = np.diff(edges)
    slopes = edges[:, None] - bins[None, :]
    rising = -slopes[:-2] / widths[:-1, None]
    falling = slopes[2:] / widths[1:, None]
    found = np.maximum(0.0, np.minimum(rising, falling)) * (2.0 / (edges[2:] - edges[:-2]))[:, None]
    return found.astype(np.float32)


def _mel(hz: float) -> float:
    linear = hz / LINEAR_HZ
    return linear if hz < LOG_FROM_HZ else float(LOG_FROM_HZ / LINEAR_HZ + np.log(hz / LOG_FROM_HZ) / LOG_STEP)


def _hz(mel: NDArray[np.float64]) -> NDArray[np.float64]:
    first = LOG_FROM_HZ / LINEAR_HZ
    return np.where(mel < first, mel * LINEAR_HZ, LOG_FROM_HZ * np.exp(LOG_STEP * (mel - first)))


class LogMel:
    """Computes the log-mel features of windows of one length."""

    def __init__(self, mels: int, frames: int) -> None:
        """Prepares the filters for so many mel bands, and frames of HOP samples in a window."""
        self._filters = filters(mels).T.copy()
        self._frames = frames
        self._window = np.hanning(N_FFT + 1)[:-1].astype(np.float32)

    def __call__(self, samples: Samples) -> NDArray[np.float32]:
        """Returns the features [1, mels, frames] of at most frames * HOP samples, which are padded with silence."""
        samples = samples[: self._frames * HOP]
        half = N_FFT // 2
        sounding = min(self._frames, (len(samples) + half) // HOP + 1)
        before = np.pad(samples, (0, max(0, half + 1 - len(samples))))
        padded = np.zeros(max((sounding - 1) * HOP + N_FFT, half + len(before)), np.float32)
        padded[half : half + len(before)] = before
        padded[:half] = before[half:0:-1]
        full = half + self._frames * HOP  # the audio is mirrored at the end of the window, too
        if len(samples) > self._frames * HOP - half and len(padded) > full:
            end = padded[full - half - 1 : full - 1][::-1]
            padded[full : full + half] = end[: len(padded) - full]
        view = np.lib.stride_tricks.sliding_window_view(padded, N_FFT)[::HOP][:sounding]
        power = np.square(np.abs(np.fft.rfft(view * self._window))).astype(np.float32)
        log = np.full((self._frames, self._filters.shape[1]), np.log10(MIN_POWER), np.float32)
        log[:sounding] = np.log10(np.maximum(power @ self._filters, MIN_POWER))
        np.maximum(log, log.max() - RANGE, out=log)
        return np.ascontiguousarray(((log + 4.0) / 4.0).T[None])
