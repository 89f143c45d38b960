"""Speaking as a task of the worker: order, errors, cancellation. No model."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from lean_ovms.config import Config
from lean_ovms.engine.protocol import Cancel, Encode, Record, Refused
from lean_ovms.errors import BadRequest
from lean_ovms.features.voice.child.fake_synthesizer import BROKEN, RAISE, RATE, FakeSynthesizer
from lean_ovms.features.voice.child.task import VoiceTask, check_rate, resampled, to_bytes
from lean_ovms.features.voice.records import Speak, Spoken
from lean_ovms.types.audio import SpeakParams
from tests.engine.rig import WorkerRig


class Rig(WorkerRig):
    """A worker with the fake model. `spoken` has the texts of each step."""

    def __init__(self, queued: int = 8, of_client: int = 8, **options: Any) -> None:
        self.synthesizer = FakeSynthesizer(Config(fake_engine=True, task="text2speech", **options))
        super().__init__(VoiceTask(self.synthesizer, queued, of_client))
        self.spoken: list[list[str]] = []
        speak = self.synthesizer.speak

        def noted(jobs: Sequence[tuple[str, SpeakParams]]) -> Any:
            self.spoken.append([text for text, _ in jobs])
            return speak(jobs)

        self.synthesizer.speak = noted  # type: ignore[method-assign]


def speak(number: int, text: str, *, begun: bool = False, client: str = "", **params: Any) -> Speak:
    return Speak(number, text, asdict(SpeakParams(**params)), begun, client)


def test_texts_are_spoken_in_the_order_of_arrival_one_a_step() -> None:
    rig = Rig()
    rig.put(speak(1, "one"), speak(2, "two"))
    [first] = rig.turn()
    [second] = rig.turn()
    assert [type(first), type(second)] == [Spoken, Spoken]
    assert rig.spoken == [["one"], ["two"]]
    assert len(first.data) == 3 * RATE // 100 * 2  # type: ignore[attr-defined]
    assert rig.task.idle


def test_clients_take_turns_and_none_fills_the_queue() -> None:
    rig = Rig(of_client=2)
    rig.put(*(speak(n, f"a{n}", client="a") for n in range(4)), speak(4, "b", client="b"), Cancel(1))
    assert [record.error[0] for record in rig.turn() if isinstance(record, Refused)] == ["TooManyRequests"] * 2
    rig.put(speak(5, "a5", client="a", begun=True))
    rig.run()
    assert rig.spoken == [["a0"], ["b"], ["a5"]]


def test_any_error_of_the_library_fails_its_text_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    monkeypatch.setattr(rig.synthesizer, "_speak", lambda text, params: IndexError("vector::_M_range_check"))
    rig.put(speak(1, "a"))
    [refused] = rig.turn()
    assert isinstance(refused, Refused)
    assert refused.error[1] == "The engine could not speak this text."


def test_several_streams_speak_several_texts_a_step() -> None:
    rig = Rig(num_streams=2)
    rig.put(*(speak(n, str(n)) for n in range(1, 4)))
    assert [record.id for record in rig.turn()] == [1, 2]  # type: ignore[attr-defined]
    assert [record.id for record in rig.turn()] == [3]  # type: ignore[attr-defined]


def test_a_cancelled_text_is_not_spoken() -> None:
    rig = Rig()
    rig.put(speak(1, "one"), speak(2, "two"), Cancel(2), Cancel(99))
    assert [record.id for record in rig.turn()] == [1]  # type: ignore[attr-defined]
    assert rig.task.idle
    assert rig.spoken == [["one"]]


def test_what_waits_is_limited_but_a_request_that_has_begun_goes_on() -> None:
    rig = Rig(queued=1)
    rig.put(speak(1, "a"), speak(2, "b"), speak(3, "c", begun=True))
    refused, first = rig.turn()
    assert isinstance(refused, Refused)
    assert (refused.id, refused.error[0]) == (2, "TooManyRequests")
    assert isinstance(first, Spoken)
    assert [record.id for record in rig.turn()] == [3]  # type: ignore[attr-defined]


@pytest.mark.parametrize("command", [Encode(1, ["x"], True), speak(1, RAISE), speak(1, BROKEN)])
def test_what_cannot_be_spoken_is_refused_and_the_next_text_is_spoken(command: Record) -> None:
    rig = Rig()
    rig.put(command)
    [refused] = rig.turn() or rig.turn()
    assert isinstance(refused, Refused)
    rig.put(speak(2, "x"))
    [spoken] = rig.turn()
    assert isinstance(spoken, Spoken)


def test_speed_voice_and_rate_change_the_samples() -> None:
    rig = Rig()
    rig.put(speak(1, "a"), speak(2, "a", speed=2.0), speak(3, "a", voice="loud"), speak(4, "a", sample_rate=24_000))
    plain, fast, loud, other = (np.frombuffer(rig.turn()[0].data, "<i2") for _ in range(4))  # type: ignore[attr-defined]
    assert len(fast) == len(plain) // 2
    assert abs(loud.astype(int)).max() > 2 * abs(plain.astype(int)).max()
    assert len(other) == len(plain) * 3 // 2


# --- samples at another rate, and as bytes


def tone(rate: int, hertz: float, seconds: float = 0.5) -> np.ndarray:
    return np.sin(2 * np.pi * hertz * np.arange(round(rate * seconds)) / rate).astype(np.float32)


@pytest.mark.parametrize(("rate", "wanted"), [(16_000, 24_000), (24_000, 16_000), (22_050, 24_000), (16_000, 48_000)])
@pytest.mark.parametrize("hertz", [100, 3_000])
def test_a_tone_stays_the_same_tone(rate: int, wanted: int, hertz: float) -> None:
    made = resampled(tone(rate, hertz), rate, wanted)
    right = tone(wanted, hertz)
    assert len(made) == len(right)
    middle = slice(200, -200)
    assert np.abs(made[middle] - right[middle]).max() < 0.01


def test_samples_of_the_right_rate_stay_and_loud_ones_are_clipped() -> None:
    samples = tone(16_000, 440)
    assert resampled(samples, 16_000, 16_000) is samples
    assert resampled(np.zeros(0, np.float32), 16_000, 24_000).size == 0
    assert np.abs(resampled(tone(24_000, 11_000), 24_000, 16_000)[200:-200]).max() < 0.02  # beyond the lower rate
    clipped = np.frombuffer(to_bytes(np.array([0.0, 1.0, -1.0, 2.0, -9.0], np.float32)), "<i2")
    assert clipped.tolist() == [0, 32767, -32767, 32767, -32767]


def test_without_soxr_another_rate_is_refused_and_the_install_named(monkeypatch: pytest.MonkeyPatch) -> None:
    check_rate(16_000, 24_000)
    monkeypatch.setitem(sys.modules, "soxr", None)
    check_rate(16_000, 16_000)
    with pytest.raises(BadRequest, match=r"needs soxr.*pip install"):
        check_rate(16_000, 24_000)
