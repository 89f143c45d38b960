"""Audio files from samples, complete or sent while they are made."""

from __future__ import annotations

import gc
import io
import math
import struct
import sys
import wave

import pytest

from lean_ovms.errors import BadRequest, install_command
from lean_ovms.features.media_files.audio.encoder import UNKNOWN, open_encoder

RATE, SECONDS = 16_000, 3
SAMPLES = b"".join(struct.pack("<h", round(12_000 * math.sin(i * 0.15))) for i in range(SECONDS * RATE))


def encoded(name: str, pieces: int = 4, **options: int) -> list[bytes]:
    encoder = open_encoder(name, RATE, **options)
    size = len(SAMPLES) // pieces
    return [encoder.encode(SAMPLES[at : at + size]) for at in range(0, len(SAMPLES), size)] + [encoder.finish()]


def test_a_wav_file_of_a_known_length_has_a_right_head() -> None:
    assert b"".join(encoded("pcm")) == SAMPLES
    data = b"".join(encoded("wav", samples=SECONDS * RATE))
    with wave.open(io.BytesIO(data)) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate(), file.getnframes()) == (
            1, 2, RATE, SECONDS * RATE
        )  # fmt: skip
        assert file.readframes(SECONDS * RATE) == SAMPLES
    assert struct.unpack_from("<I", data, 4) == (len(data) - 8,)


def test_a_wav_file_of_unknown_length_is_read_to_its_end() -> None:
    parts = encoded("wav")
    data = b"".join(parts)
    assert struct.unpack_from("<I", data, 40) == (UNKNOWN,)
    assert all(parts[:-1])
    with wave.open(io.BytesIO(data)) as file:
        assert file.readframes(2 * SECONDS * RATE) == SAMPLES


@pytest.mark.parametrize("name", ["flac", "opus", "mp3"])
def test_a_compressed_file_is_read_again(name: str) -> None:
    soundfile = pytest.importorskip("soundfile")
    assert isinstance(open_encoder(name, RATE).finish(), bytes)  # without samples
    parts = encoded(name)
    read, rate = soundfile.read(io.BytesIO(b"".join(parts)), dtype="int16")
    assert rate in (RATE, 48_000)
    assert len(read) / rate == pytest.approx(SECONDS, abs=0.15)
    loud = read[len(read) // 4 : len(read) // 2]
    assert abs(loud.astype(int)).max() == pytest.approx(12_000, rel=0.1)
    if name == "flac":
        assert not any(parts[:-1])
        assert read.tobytes() == SAMPLES
    else:
        assert len(b"".join(parts[:-1])) > len(b"".join(parts)) / 2, "it is sent while it is made"


@pytest.mark.parametrize("name", ["opus", "mp3"])
def test_an_abandoned_file_prints_nothing(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    """A client that leaves, or a server that stops, leaves the file in a reference cycle."""
    pytest.importorskip("soundfile")
    encoder = open_encoder(name, RATE)
    encoder.encode(SAMPLES[:RATE])
    cycle: list[object] = [encoder]
    cycle.append(cycle)
    del encoder, cycle
    gc.collect()
    assert capfd.readouterr() == ("", "")


def test_without_soundfile_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(BadRequest) as caught:
        open_encoder("mp3", RATE)
    assert caught.value.param == "response_format"
    assert install_command("audio") in caught.value.message
    assert open_encoder("wav", RATE).finish()
