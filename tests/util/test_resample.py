"""Formats and rates of live audio: accuracy, aliasing, any cut of the stream."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lean_ovms.util.resample import Decoder, Resampler

RATES = (8000, 11025, 12000, 22050, 24000, 32000, 44100, 48000)


def sine(hertz: float, rate: int, seconds: float = 0.5) -> np.ndarray:
    return 20000 * np.sin(2 * np.pi * hertz * np.arange(int(rate * seconds)) / rate)


def resampled(samples: np.ndarray, rate: int, target: int = 16000) -> np.ndarray:
    resampler = Resampler(rate, target)
    return np.concatenate([resampler.feed(np.rint(samples).astype(np.int16)), resampler.flush()])


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("hertz", [100, 1000, 3000])
def test_a_tone_stays_where_it_was(rate: int, hertz: float) -> None:
    found = resampled(sine(hertz, rate), rate)
    expected = sine(hertz, 16000)
    assert len(found) == len(expected) == 8000
    inner = slice(100, -100)
    assert np.abs(found[inner] - expected[inner]).max() < 25  # -58 dB


@pytest.mark.parametrize("rate", [22050, 24000, 32000, 44100, 48000])
def test_what_the_target_cannot_hold_is_filtered_out(rate: int) -> None:
    found = resampled(sine(9500, rate), rate)
    assert np.abs(found[200:-200]).max() < 25


def test_full_scale_is_clipped_and_not_wrapped() -> None:
    square = np.sign(sine(400, 24000)) * 32767
    found = resampled(square, 24000)
    assert found.max() == 32767
    assert (np.abs(np.diff(found.astype(int))) > 40000).sum() < 450  # only the edges of the square


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(RATES), st.lists(st.integers(0, 3000), max_size=12), st.integers(0, 3000))
def test_any_cut_gives_the_same_samples(rate: int, cuts: list[int], size: int) -> None:
    samples = np.random.default_rng(size).integers(-32768, 32768, size).astype(np.int16)
    resampler = Resampler(rate, 16000)
    whole = np.concatenate([resampler.feed(samples), resampler.flush()])
    assert len(whole) == -(-size * 16000 // rate)
    pieces = [resampler.feed(piece) for piece in np.split(samples, sorted(min(cut, size) for cut in cuts))]
    assert (np.concatenate([*pieces, resampler.flush()]) == whole).all()  # and flush began anew


@pytest.mark.parametrize(
    ("encoding", "silence", "loudest", "digest"),
    [("pcmu", 0xFF, 0x80, "cd1db2e2"), ("pcma", 0xD5, 0xAA, "10f3da64")],
)
def test_g711(encoding: str, silence: int, loudest: int, digest: str) -> None:
    """digest: of all 256 codes, as Python 3.11's audioop decodes them."""
    decoder = Decoder(encoding, 8000, 8000)
    table = np.frombuffer(decoder.feed(bytes(range(256))), "<i2")
    assert hashlib.sha1(table.tobytes()).hexdigest()[:8] == digest
    assert abs(int(table[silence])) <= 8
    assert int(table[loudest]) == max(table)
    assert decoder.flush() == b""


def test_bytes_in_bytes_out() -> None:
    decoder = Decoder("pcm", 16000, 16000)
    assert decoder.feed(b"\x01\x02\x03\x04") == b"\x01\x02\x03\x04"
    decoder = Decoder("pcma", 8000, 16000)
    data = decoder.feed(b"\xd5" * 800) + decoder.flush()
    assert len(data) == 2 * 1600
