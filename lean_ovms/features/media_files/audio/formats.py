"""Recognizes the format of audio by its first bytes.

Only recognized formats reach a decoder, and each format has one decoder. The libraries read dozens of other formats,
some of which have known faults. Names and media types that a client sends are ignored.
"""

from __future__ import annotations

from dataclasses import dataclass

from ....media.file_slice import FileSlice

WAV, FLAC, OGG, MP3, AIFF, MP4, WEBM, AAC = "wav", "flac", "ogg", "mp3", "aiff", "mp4", "webm", "aac"
SNDFILE = frozenset((FLAC, OGG, MP3, AIFF))
"""Formats that libsndfile decodes; WAV needs no library."""
PYAV = frozenset((MP4, WEBM, AAC))
"""Formats that FFmpeg decodes, through PyAV."""
READ = "wav, flac, ogg, mp3, aiff, and with PyAV m4a, mp4, webm and aac"

_ID3_HEADER = 10
_MAX_TAGS = 4
_MAX_PADDING = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioLimits:
    """The limits of accepted audio files."""

    max_s: float
    """The most seconds of the decoded audio."""
    max_channels: int
    """The most channels."""
    min_rate: int
    """The lowest sample rate in Hz."""
    max_rate: int
    """The highest sample rate in Hz."""


@dataclass(frozen=True, slots=True)
class Found:
    """The format of a file."""

    format: str
    """The name of the format."""
    offset: int = 0
    """The offset of the format's own bytes, after ID3 tags and their padding."""


def recognise(data: bytes | memoryview | FileSlice) -> Found | None:
    """Returns the format of a file, or None if it is not supported."""
    offset = _behind_tags(data)
    if offset is None:
        return None
    head = bytes(data[offset : offset + 12])
    if not offset:
        for magic, at, name in _MAGIC:
            if head[at : at + len(magic)] == magic:
                return Found(name)
        if head[:4] == b"RIFF" and head[8:] == b"WAVE":
            return Found(WAV)
        if head[:4] == b"FORM" and head[8:] == b"AIFF":
            return Found(AIFF)
    if len(head) > 3 and head[0] == 0xFF and head[1] & 0xF6 == 0xF0:  # an ADTS frame
        return Found(AAC, offset)
    if head[:4] == b"fLaC":
        return Found(FLAC, offset)
    return Found(MP3, offset) if _is_mpeg(head) else None


_MAGIC = ((b"OggS", 0, OGG), (b"ftyp", 4, MP4), (b"\x1a\x45\xdf\xa3", 0, WEBM))


def _behind_tags(data: bytes | memoryview | FileSlice) -> int | None:
    """Returns the offset after ID3v2 tags (https://id3.org/id3v2.4.0-structure, 3.1); None if there are too many."""
    offset = 0
    for _ in range(_MAX_TAGS + 1):
        head = bytes(data[offset : offset + _ID3_HEADER])
        if head[:3] != b"ID3" or len(head) < _ID3_HEADER:
            break
        a, b, c, d = (byte & 0x7F for byte in head[6:])
        footer = _ID3_HEADER if head[5] & 0x10 else 0
        offset += _ID3_HEADER + (a << 21 | b << 14 | c << 7 | d) + footer
    else:
        return None
    if offset:
        after = bytes(data[offset : offset + _MAX_PADDING])
        offset += len(after) - len(after.lstrip(b"\0"))
    return offset


def _is_mpeg(head: bytes) -> bool:
    """Returns whether bytes begin with the header of an MPEG audio frame of layers 1 to 3, without reserved values."""
    if len(head) < 4 or head[0] != 0xFF or head[1] & 0xE0 != 0xE0:
        return False
    version, layer = head[1] >> 3 & 3, head[1] >> 1 & 3
    bitrate, rate = head[2] >> 4, head[2] >> 2 & 3
    return version != 1 and layer != 0 and bitrate != 15 and rate != 3
