"""Samples at another rate, and as bytes."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from lean_ovms.errors import BadRequest
from lean_ovms.features.voice.child.task import check_rate, resampled, to_bytes


def tone(rate: int, hertz: float, seconds: float = 0.5) -> np.ndarray:
    return np.sin(2 * np.pi * hertz * np.arange(round(rate * seconds)) / rate).astype(np.float32)


@pytest.mark.parametrize(("rate", "wanted"), [(16_000, 24_000), (24_000, 16_000), (22_050, 24_000), (16_000, 48_000)])
@pytest.mark.parametrize("hertz", [100, 440, 3_000])
def test_a_tone_stays_the_same_tone(rate: int, wanted: int, hertz: float) -> None:
    made = resampled(tone(rate, hertz), rate, wanted)
    right = tone(wanted, hertz)
    assert len(made) == len(right)
    middle = slice(200, -200)
    assert np.abs(made[middle] - right[middle]).max() < 0.01


def test_what_the_lower_rate_cannot_hold_is_filtered_out() -> None:
    made = resampled(tone(24_000, 11_000), 24_000, 16_000)
    assert np.abs(made[200:-200]).max() < 0.02


def test_nothing_to_do() -> None:
    samples = tone(16_000, 440)
    assert resampled(samples, 16_000, 16_000) is samples
    assert resampled(np.zeros(0, np.float32), 16_000, 24_000).size == 0


def test_loud_samples_are_clipped() -> None:
    assert np.frombuffer(to_bytes(np.array([0.0, 1.0, -1.0, 2.0, -9.0], np.float32)), "<i2").tolist() == [
        0, 32767, -32767, 32767, -32767
    ]  # fmt: skip


def test_without_soxr_another_rate_is_refused_and_the_install_named(monkeypatch: pytest.MonkeyPatch) -> None:
    check_rate(16_000, 24_000)
    monkeypatch.setitem(sys.modules, "soxr", None)
    check_rate(16_000, 16_000)
    with pytest.raises(BadRequest, match=r"needs soxr.*pip install"):
        check_rate(16_000, 24_000)
