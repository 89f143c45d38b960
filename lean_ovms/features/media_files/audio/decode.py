"""Decodes a file to mono samples of 16 kHz, block by block, in the decoder process.

WAV needs no library but numpy. FLAC, Ogg, MP3 and AIFF need soundfile, other rates than 16 kHz need soxr, and formats
that only FFmpeg reads need PyAV. Channels are averaged. Headers are checked before samples are decoded, and samples are
counted, as headers may be wrong.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....errors import BadRequest, install_command
from ....types.audio import SAMPLE_RATE
from .formats import AAC, MP4, PYAV, SNDFILE, WAV, WEBM, AudioLimits
from .wav import BROKEN, Samples, WavFile, block_frames

UNKNOWN_FRAMES = 1 << 40
"""A length in a header that is at least this means that the length is unknown."""
SHORTEST = SAMPLE_RATE // 10
"""Samples; a shorter file is filled up with silence, as the features of speech need some."""
EMPTY = "audio is empty"
NO_NUMBERS = f"{BROKEN} Its samples are not numbers."
_FFMPEG = {MP4: "mp4", WEBM: "matroska", AAC: "aac"}
_CODECS = frozenset(("aac", "opus", "vorbis", "mp3", "flac", "alac", "mp3float", "libopus", "libvorbis"))


def decode(data: bytes | memoryview, format: str, limits: AudioLimits) -> Iterator[bytes]:  # noqa: A002 - as in formats
    """Yields blocks of samples as in types.audio. Raises BadRequest, also after some blocks, and MemoryError."""
    try:
        count = 0
        for block in _unlimited(data, format, limits):
            count += len(block) // 2
            if count > limits.max_s * SAMPLE_RATE:
                raise too_long(limits)
            if block:
                yield block
        if not count:
            raise BadRequest(EMPTY, code="audio_empty")
        if count < SHORTEST:
            yield bytes(2 * (SHORTEST - count))
    except (BadRequest, MemoryError):
        raise
    except Exception as error:  # the libraries raise any kind of exception for damaged files
        raise BadRequest(f"{BROKEN} {_reason(error)}") from error


def too_long(limits: AudioLimits, seconds: float = 0.0) -> BadRequest:
    has = f" (the file has {seconds:.1f} s)" if seconds else ""
    return BadRequest(
        f"Audio exceeds maximum allowed duration of {limits.max_s:g} s{has}; --max_audio_s sets the limit",
        code="audio_too_long",
    )


def _unlimited(data: bytes | memoryview, format: str, limits: AudioLimits) -> Iterator[bytes]:  # noqa: A002 - as in formats
    if format in PYAV:
        yield from _ffmpeg_blocks(data, format, limits)
        return
    source = WavFile(data) if format == WAV else SoundFile(data, format)
    check_shape(source.rate, source.channels, limits)
    if limits.max_s * source.rate < source.frames < UNKNOWN_FRAMES:
        raise too_long(limits, source.frames / source.rate)
    if isinstance(source, WavFile) and source.plain and source.channels == 1 and source.rate == SAMPLE_RATE:
        yield from (bytes(block) for block in source.plain_blocks())
    else:
        yield from _resampled(source)


def check_shape(rate: int, channels: int, limits: AudioLimits) -> None:
    """Checks the sample rate and the channels of a file. Raises BadRequest."""
    if not limits.min_rate <= rate <= limits.max_rate:
        raise BadRequest(
            f"{BROKEN} A sample rate of {rate} Hz is not supported, only {limits.min_rate} to {limits.max_rate} Hz"
        )
    if not 1 <= channels <= limits.max_channels:
        raise BadRequest(f"{BROKEN} {channels} channels are not supported, only 1 to {limits.max_channels}")


class SoundFile:
    """A file that libsndfile reads. Raises BadRequest if soundfile is not installed, and soundfile's errors."""

    def __init__(self, data: bytes | memoryview, format: str) -> None:  # noqa: A002 - as in formats
        assert format in SNDFILE
        try:
            import soundfile
        except ImportError:
            raise missing(format, "soundfile", "audio") from None
        self._file = soundfile.SoundFile(io.BytesIO(data))
        self.rate, self.channels, self.frames = self._file.samplerate, self._file.channels, self._file.frames
        """The frames that the file has by its header."""
        if self.frames >= UNKNOWN_FRAMES:  # soundfile seeks after each read, which fails at the end of such a file
            self._file._info.seekable = 0

    def blocks(self) -> Iterator[Samples]:
        size = block_frames(self.rate)
        while len(block := self._file.read(size, dtype="float32", always_2d=True)):
            yield block


def missing(format: str, package: str, extra: str) -> BadRequest:  # noqa: A002 - as in formats
    """Returns the error for a format whose library is not installed."""
    how = install_command(extra) if extra else f"pip install {package}"
    return BadRequest(
        f"{BROKEN} Reading {format} needs {package}, which is not installed on this server: {how}",
        code="audio_format_unsupported",
    )


def _resampled(source: WavFile | SoundFile) -> Iterator[bytes]:
    if source.rate == SAMPLE_RATE:
        for block in source.blocks():
            yield _packed(_mono(block))
        return
    try:
        import soxr
    except ImportError:
        raise missing(f"audio of {source.rate} Hz", "soxr", "audio") from None
    stream = soxr.ResampleStream(source.rate, SAMPLE_RATE, 1, dtype="float32", quality="HQ")
    for block in source.blocks():
        yield _packed(stream.resample_chunk(_mono(block)))
    yield _packed(stream.resample_chunk(np.zeros(0, np.float32), last=True))


def _mono(block: Samples) -> Samples:
    with np.errstate(over="ignore", invalid="ignore"):  # such values are rejected or clipped
        mono: Samples = block[:, 0] if block.shape[1] == 1 else block.mean(axis=1, dtype=np.float32)
    if not np.isfinite(mono).all():
        raise BadRequest(NO_NUMBERS)
    return mono


def _packed(mono: NDArray[Any]) -> bytes:
    packed: bytes = np.clip(np.rint(np.clip(mono, -1, 1) * 32768), -32768, 32767).astype("<i2").tobytes()
    return packed


def _ffmpeg_blocks(data: bytes | memoryview, format: str, limits: AudioLimits) -> Iterator[bytes]:  # noqa: A002 - as in formats
    try:
        import av

        from ..containers import opened
    except ImportError:
        raise missing(format, "av", "") from None
    with opened(data, _FFMPEG[format]) as container:
        if not container.streams.audio:
            raise BadRequest(f"{BROKEN} The {format} file has no audio.")
        stream = container.streams.audio[0]
        context = stream.codec_context
        if context.name not in _CODECS and not context.name.startswith("pcm_"):
            raise BadRequest(f"{BROKEN} The audio codec {context.name[:40]} is not supported.")
        check_shape(stream.rate, stream.channels, limits)
        seconds = (container.duration or 0) / av.time_base
        if seconds > limits.max_s:
            raise too_long(limits, seconds)
        context.thread_count = 1
        resampler = av.AudioResampler(format="s16", layout="mono", rate=SAMPLE_RATE)
        for frame in _ffmpeg_frames(container, stream):
            check_shape(frame.sample_rate, len(frame.layout.channels), limits)
            for made in resampler.resample(frame):
                yield made.to_ndarray().tobytes()
        for made in resampler.resample(None):
            yield made.to_ndarray().tobytes()


def _ffmpeg_frames(container: Any, stream: Any) -> Iterator[Any]:
    """Yields the frames of a stream without damaged packets, which the other formats' decoders leave out as well.

    Raises FFmpeg's error if the packets beyond one that are damaged are more than a tenth, or none can be decoded.
    """
    import av

    decoded = damaged = 0
    failure: Exception | None = None
    try:
        for packet in container.demux(stream):
            try:
                frames = packet.decode()
            except av.FFmpegError as error:
                if isinstance(error, MemoryError):
                    raise
                failure = error
                damaged += 1
            else:
                decoded += bool(frames)
                yield from frames
    except av.error.InvalidDataError as error:  # the file ends within a packet
        failure = error
    if failure is not None and (not decoded or damaged > 1 + decoded // 10):
        raise failure


def _reason(error: Exception) -> str:
    """Returns the message of a library's error, without the memory addresses of objects in it."""
    text = " ".join(str(getattr(error, "error_string", error)).split())
    return re.sub("<[^>]*>", "file", text)[:200] or type(error).__name__
