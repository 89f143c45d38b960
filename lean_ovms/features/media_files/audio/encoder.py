"""Encodes samples as an audio file, block by block, in this process, as the samples are this server's own.

WAV and PCM need no library; FLAC, Opus and MP3 need soundfile (the extra `audio`). With libsndfile 1.2.2, Opus and MP3
of a constant bit rate can be sent while they are written. A FLAC file cannot: its head has the number of samples, which
readers need, so it is sent when it is complete.
"""

from __future__ import annotations

import struct
from io import BytesIO
from typing import Any

from ....errors import BadRequest, install_command

UNKNOWN = 0xFFFFFFFF
"""The sizes in the head of a WAV file whose length is not known yet, as OpenAI's server and ffmpeg write them."""
SAMPLE_BYTES = 2
NO_SOUNDFILE = (
    "the format {} needs soundfile, which is not installed on this server: {}; wav and pcm are always available"
)
MP3_LEVEL = 0.5
"""soundfile's compression level of MP3: 64 to 80 kbit/s for speech."""
FORMATS = {"wav": "audio/wav", "pcm": "audio/pcm", "flac": "audio/flac", "opus": "audio/ogg", "mp3": "audio/mpeg"}
"""The formats, with their media types."""


def open_encoder(name: str, rate: int, samples: int | None = None) -> Encoder:
    """Returns the encoder for a format.

    Args:
        name: The format, one of FORMATS.
        rate: The sample rate in Hz.
        samples: The number of all samples; None if it is not known.

    Raises:
        BadRequest: The format needs the package soundfile, which is not installed.
    """
    if name == "pcm":
        return PcmEncoder(b"")
    if name == "wav":
        return PcmEncoder(wav_head(rate, UNKNOWN if samples is None else samples * SAMPLE_BYTES))
    try:
        import soundfile
    except (ImportError, OSError):  # an OSError if the package lacks its library
        raise BadRequest(
            NO_SOUNDFILE.format(name, install_command("audio")), param="response_format", code="format_not_available"
        ) from None
    return SoundfileEncoder(soundfile, name, rate)


def wav_head(rate: int, size: int) -> bytes:
    """Returns the 44 bytes before the samples of a mono WAV file. The size is that of all samples, or UNKNOWN."""
    whole = UNKNOWN if size == UNKNOWN else size + 36
    form = struct.pack("<IHHIIHH", 16, 1, 1, rate, rate * SAMPLE_BYTES, SAMPLE_BYTES, 8 * SAMPLE_BYTES)
    return b"RIFF" + struct.pack("<I", whole) + b"WAVEfmt " + form + b"data" + struct.pack("<I", size)


class PcmEncoder:
    """Writes samples unchanged, after a head."""

    def __init__(self, head: bytes) -> None:
        self._head = head

    def encode(self, samples: bytes) -> bytes:
        """Encodes 16-bit mono samples, and returns the next bytes of the file, which may be b""."""
        head, self._head = self._head, b""
        return head + samples

    def finish(self) -> bytes:
        return self.encode(b"")


class SoundfileEncoder:
    """Encodes FLAC, Opus in Ogg, or MP3; its methods are those of PcmEncoder."""

    def __init__(self, soundfile: Any, name: str, rate: int) -> None:
        container, kind = {"flac": ("FLAC", "PCM_16"), "opus": ("OGG", "OPUS"), "mp3": ("MP3", None)}[name]
        more = {"bitrate_mode": "CONSTANT", "compression_level": MP3_LEVEL} if name == "mp3" else {}
        self._whole = name == "flac"
        self._sink = _Sink()
        self._file = soundfile.SoundFile(self._sink, "w", rate, 1, kind, format=container, **more)

    def encode(self, samples: bytes) -> bytes:
        self._file.buffer_write(samples, "int16")
        return b"" if self._whole else self._sink.take()

    def finish(self) -> bytes:
        self._file.close()
        return self._sink.take()


Encoder = PcmEncoder | SoundfileEncoder


class _Sink(BytesIO):
    """A file in memory from which bytes are taken while it is written. Later changes of taken bytes are dropped."""

    _taken = 0

    def close(self) -> None:
        """Does nothing. The garbage collector may close an abandoned file before soundfile writes its end."""

    def take(self) -> bytes:
        """Returns the bytes that were written since the last call."""
        with self.getbuffer() as written:
            data = bytes(written[self._taken :])
        self._taken += len(data)
        return data
