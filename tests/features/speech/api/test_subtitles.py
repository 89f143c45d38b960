"""Subtitles as the players read them."""

from __future__ import annotations

import pytest

from lean_ovms.features.speech.api.subtitles import srt, vtt
from lean_ovms.features.speech.params import Segment


def cue(start: float, end: float, text: str = "a") -> list[Segment]:
    return [Segment(start=start, end=end, text=text)]


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.0, "00:00:00,000"),
        (0.0004, "00:00:00,000"),
        (0.9996, "00:00:01,000"),
        (59.9999, "00:01:00,000"),
        (3599.9999, "01:00:00,000"),
        (3.1399998664855957, "00:00:03,140"),
        (360_000.0, "100:00:00,000"),
    ],
)
def test_milliseconds_are_rounded_with_their_carry(seconds: float, shown: str) -> None:
    assert srt(cue(0.0, seconds)) == f"1\n00:00:00,000 --> {shown}\na\n"
    assert f"--> {shown.replace(',', '.')}\n" in vtt(cue(0.0, seconds))


def test_text_that_looks_like_markup() -> None:
    text = " <b>a & b</b>\n\n00:00 --> 00:01 "
    assert srt(cue(0, 1, text)).splitlines()[2] == "<b>a & b</b> 00:00 -> 00:01"
    assert vtt(cue(0, 1, text)).splitlines()[3] == "&lt;b>a &amp; b&lt;/b> 00:00 -> 00:01"


def test_nothing() -> None:
    assert (srt([]), vtt([])) == ("", "WEBVTT\n")
