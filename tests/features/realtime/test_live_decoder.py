"""Formats and rates of live audio: accuracy, aliasing, any cut of the stream."""

from __future__ import annotations

import base64
import hashlib
import re
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lean_ovms.errors import BadRequest, install_command
from lean_ovms.features.realtime.api.audio import AudioFormat, AudioReader
from lean_ovms.features.realtime.live_decoder import LiveDecoder

RATES = (8000, 11025, 12000, 22050, 24000, 32000, 44100, 48000)


def sine(hertz: float, rate: int, seconds: float = 0.5) -> np.ndarray:
    return 20000 * np.sin(2 * np.pi * hertz * np.arange(int(rate * seconds)) / rate)


def resampled(samples: np.ndarray, rate: int) -> np.ndarray:
    decoder = LiveDecoder("pcm", rate, 16000)
    return np.frombuffer(decoder.feed(np.rint(samples).astype("<i2").tobytes()) + decoder.flush(), "<i2")


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("hertz", [100, 1000, 3000])
def test_a_tone_stays_where_it_was(rate: int, hertz: float) -> None:
    found = resampled(sine(hertz, rate), rate)
    expected = sine(hertz, 16000)
    assert abs(len(found) - len(expected)) <= 1
    expected = expected[: len(found)]
    inner = slice(200, -200)
    assert np.abs(found[inner] - expected[inner]).max() < 25  # -58 dB


@pytest.mark.parametrize("rate", [22050, 24000, 32000, 44100, 48000])
def test_what_the_target_cannot_hold_is_filtered_out(rate: int) -> None:
    found = resampled(sine(9500, rate), rate)
    assert np.abs(found[200:-200]).max() < 25


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(RATES), st.lists(st.integers(0, 3000), max_size=12), st.integers(0, 3000))
def test_any_cut_gives_the_same_samples(rate: int, cuts: list[int], size: int) -> None:
    samples = np.random.default_rng(size).integers(-32768, 32768, size).astype("<i2")
    decoder = LiveDecoder("pcm", rate, 16000)
    whole = decoder.feed(samples.tobytes()) + decoder.flush()
    assert abs(len(whole) / 2 - size * 16000 / rate) < 1
    pieces = [decoder.feed(piece.tobytes()) for piece in np.split(samples, sorted(min(cut, size) for cut in cuts))]
    assert b"".join([*pieces, decoder.flush()]) == whole  # flush has reset the decoder


def test_without_soxr_the_rate_is_refused_and_the_install_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "soxr", None)
    with pytest.raises(BadRequest, match="24000 Hz needs soxr.*" + re.escape(install_command("audio"))):
        LiveDecoder("pcm", 24000, 16000)
    assert LiveDecoder("pcmu", 16000, 16000).feed(b"\xff") == b"\0\0"


@pytest.mark.parametrize(
    ("encoding", "silence", "loudest", "digest"), [("pcmu", 0xFF, 0x80, "cd1db2e2"), ("pcma", 0xD5, 0xAA, "10f3da64")]
)
def test_g711(encoding: str, silence: int, loudest: int, digest: str) -> None:
    """`digest` is the hash of all 256 codes as Python 3.11's audioop decodes them."""
    decoder = LiveDecoder(encoding, 8000, 8000)
    table = np.frombuffer(decoder.feed(bytes(range(256))), "<i2")
    assert hashlib.sha1(table.tobytes()).hexdigest()[:8] == digest
    assert abs(int(table[silence])) <= 8
    assert int(table[loudest]) == max(table)
    assert decoder.flush() == b""


def test_bytes_in_bytes_out() -> None:
    decoder = LiveDecoder("pcm", 16000, 16000)
    assert decoder.feed(b"\x01\x02\x03\x04") == b"\x01\x02\x03\x04"
    decoder = LiveDecoder("pcma", 8000, 16000)
    data = decoder.feed(b"\xd5" * 800) + decoder.flush()
    assert len(data) == 2 * 1600


def test_a_decoder_is_not_used_by_two_threads() -> None:
    """A session may end while a thread decodes its last message."""
    reader = AudioReader(AudioFormat(rate=24000))
    ended: list[bytes] = []

    class Decoder:
        def feed(self, data: bytes) -> bytes:
            ended.append(reader.flush())
            return data

        def flush(self) -> bytes:
            return b"rest"

    reader._decoder = Decoder()  # type: ignore[assignment]
    assert reader.read(base64.b64encode(b"ab").decode()) == b"ab"
    assert ended == [b""]
    assert reader.flush() == b"rest"
