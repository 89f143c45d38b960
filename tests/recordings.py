"""Audio files for tests: tones as WAV of any kind, and in the formats that libraries write."""

from __future__ import annotations

import io
import struct

import numpy as np

from lean_ovms.types.audio import SAMPLE_RATE


def tone(seconds: float = 1.0, *, rate: int = SAMPLE_RATE, channels: int = 1, hertz: float = 440.0) -> np.ndarray:
    """Returns a sine of half the full scale, (frames, channels)."""
    times = np.arange(round(seconds * rate)) / rate
    return np.repeat((np.sin(2 * np.pi * hertz * times) / 2).astype(np.float32)[:, None], channels, axis=1)


def pcm(samples: np.ndarray) -> bytes:
    """Returns the samples as signed 16-bit numbers."""
    return np.clip(np.rint(samples * 32768), -32768, 32767).astype("<i2").tobytes()


def wav(data: bytes, *, rate: int = SAMPLE_RATE, channels: int = 1, tag: int = 1, bits: int = 16,
        size: int | None = None, before: bytes = b"", after: bytes = b"", extra: bytes = b"") -> bytes:  # fmt: skip
    """Returns a WAV file with these bytes. `size` is the size in its header."""
    align = channels * bits // 8
    fmt = struct.pack("<HHIIHH", tag, channels, rate, rate * align % 2**32, align % 2**16, bits) + extra
    size = len(data) if size is None else size
    chunks = b"fmt " + struct.pack("<I", len(fmt)) + fmt + before + b"data" + struct.pack("<I", size) + data + after
    return b"RIFF" + struct.pack("<I", (4 + len(chunks)) % 2**32) + b"WAVE" + chunks


def plain_wav(seconds: float = 1.0) -> bytes:
    """Returns a WAV file that a recognizer gets unchanged."""
    return wav(pcm(tone(seconds)))


def sound(samples: np.ndarray, kind: str, rate: int = SAMPLE_RATE, subtype: str | None = None) -> bytes:
    """Returns a file written by libsndfile."""
    import soundfile

    out = io.BytesIO()
    soundfile.write(out, samples, rate, format=kind, subtype=subtype)
    return out.getvalue()


def film(samples: np.ndarray, kind: str, codec: str, rate: int = SAMPLE_RATE) -> bytes:
    """Returns a mono file written by FFmpeg."""
    import av

    out = io.BytesIO()
    with av.open(out, "w", format=kind) as container:
        stream = container.add_stream(codec, rate=rate, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples[:, :1].T), format="fltp", layout="mono")
        frame.sample_rate = rate
        resampler = av.AudioResampler(
            format=stream.codec_context.format, layout="mono", rate=rate, frame_size=stream.codec_context.frame_size
        )
        for part in (*resampler.resample(frame), *resampler.resample(None)):
            container.mux(stream.encode(part))
        container.mux(stream.encode(None))
    return out.getvalue()
