"""Writes segments as subtitles in the formats SubRip and WebVTT (https://www.w3.org/TR/webvtt1/)."""

from __future__ import annotations

from collections.abc import Sequence

from ..params import Segment


def srt(segments: Sequence[Segment]) -> str:
    """Returns the segments as SubRip: numbered cues, or "" without segments."""
    cues = [f"{number}\n{_times(one, ',')}\n{_text(one)}\n" for number, one in enumerate(segments, 1)]
    return "\n".join(cues)


def vtt(segments: Sequence[Segment]) -> str:
    """Returns the segments as WebVTT: the header and the cues."""
    cues = [f"{_times(one, '.')}\n{_escaped(_text(one))}\n" for one in segments]
    return "\n".join(["WEBVTT\n", *cues])


def _text(segment: Segment) -> str:
    """Returns the text of a segment on one line, in which an arrow cannot be mistaken for the times of a cue."""
    return " ".join(segment.text.split()).replace("-->", "->")


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")


def _times(segment: Segment, mark: str) -> str:
    return f"{_time(segment.start, mark)} --> {_time(segment.end, mark)}"


def _time(seconds: float, mark: str) -> str:
    """Formats a time as hh:mm:ss, the mark, and milliseconds."""
    whole, milliseconds = divmod(round(seconds * 1000), 1000)
    return f"{whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}{mark}{milliseconds:03d}"
