"""Audio files to samples, in this process: all formats, odd headers, hostile files. test_decoder.py tests the
processes."""

from __future__ import annotations

import builtins
import struct
from typing import Any

import numpy as np
import pytest

from lean_ovms.errors import BadRequest
from lean_ovms.features.media_files.audio.decode import SHORTEST, decode
from lean_ovms.features.media_files.audio.formats import AudioLimits, Found, recognise
from lean_ovms.features.media_files.audio.wav import block_frames
from lean_ovms.types.audio import SAMPLE_RATE
from tests.recordings import film, pcm, plain_wav, sound, tone, wav

LIMITS = AudioLimits(max_s=20.0, max_channels=8, min_rate=4000, max_rate=192_000)
SECOND = tone(1.0)
CD = tone(1.0, rate=44_100, channels=2)


def samples(data: bytes, limits: AudioLimits = LIMITS) -> np.ndarray:
    """Returns a file's samples, between -1 and 1."""
    found = recognise(data)
    assert found is not None
    return np.frombuffer(b"".join(decode(data[found.offset :], found.format, limits)), "<i2") / 32768


def refusal(data: bytes, limits: AudioLimits = LIMITS) -> str:
    with pytest.raises(BadRequest) as caught:
        samples(data, limits)
    assert "0x" not in caught.value.message
    return caught.value.message


def ints(bits: int) -> bytes:
    whole = np.rint(SECOND[:, 0].astype(float) * (2 ** (bits - 1) - 1)).astype("<i8")
    if bits == 8:
        whole += 128
    return whole.view(np.uint8).reshape(-1, 8)[:, : bits // 8].tobytes()


EXTENSION = struct.pack("<HHI", 22, 16, 4) + struct.pack("<H", 1) + bytes(14)
WAVS = {
    "pcm8": wav(ints(8), bits=8),
    "pcm16": wav(ints(16)),
    "pcm24": wav(ints(24), bits=24),
    "pcm32": wav(ints(32), bits=32),
    "float": wav(SECOND.astype("<f4").tobytes(), tag=3, bits=32),
    "double": wav(SECOND.astype("<f8").tobytes(), tag=3, bits=64),
    "extensible": wav(ints(16), tag=0xFFFE, extra=EXTENSION),
    "with other chunks": wav(ints(16), before=b"LIST" + struct.pack("<I", 3) + b"abc\0", after=b"junk" * 9),
    "written to a pipe": wav(ints(16), size=0xFFFFFFFF),
    "of 4 GB, it says": wav(ints(16), size=0xFFFFFFF0),
    "of nothing, it says": wav(ints(16), size=0),
    "a-law": sound(SECOND, "WAV", subtype="ALAW"),
    "mu-law": sound(SECOND, "WAV", subtype="ULAW"),
}


@pytest.mark.parametrize("kind", WAVS)
def test_a_wav_file_of_every_kind(kind: str) -> None:
    found = samples(WAVS[kind])
    assert len(found) == SAMPLE_RATE
    assert np.abs(found - SECOND[:, 0]).max() < (0.02 if "law" in kind else 0.01 if kind == "pcm8" else 1e-4)


def test_16_bit_samples_stay_as_they_are() -> None:
    data = np.arange(-(1 << 15), 1 << 15, dtype="<i2").tobytes()
    assert (samples(wav(data)) * 32768).astype("<i2").tobytes() == data
    assert (samples(wav(data * 2, channels=1)) * 32768).astype("<i2").tobytes() == data * 2


OTHERS = {
    "flac": lambda: sound(CD, "FLAC", 44_100),
    "ogg vorbis": lambda: sound(CD, "OGG", 44_100, "VORBIS"),
    "ogg opus": lambda: sound(tone(1.0, rate=48_000), "OGG", 48_000, "OPUS"),
    "mp3": lambda: sound(CD, "MP3", 44_100),
    "mp3 behind tags": lambda: b"ID3\4\0\0\0\0\1\0" + bytes(128) + bytes(77) + sound(CD, "MP3", 44_100),
    "aiff": lambda: sound(CD, "AIFF", 44_100),
    "wav": lambda: wav(pcm(CD), rate=44_100, channels=2),
    "wav of 8 kHz": lambda: wav(pcm(tone(1.0, rate=8000)), rate=8000),
    "m4a": lambda: film(tone(1.0, rate=48_000), "mp4", "aac", 48_000),
    "webm": lambda: film(tone(1.0, rate=48_000), "webm", "libopus", 48_000),
    "aac": lambda: film(tone(1.0, rate=48_000), "adts", "aac", 48_000),
    "aac behind a tag": lambda: b"ID3\4\0\0\0\0\0\12" + bytes(10) + film(tone(1.0, rate=48_000), "adts", "aac", 48_000),
}


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.slow
def test_other_formats_and_rates(name: str) -> None:
    """The tone has the right pitch and duration."""
    found = samples(OTHERS[name]())
    assert abs(len(found) - SAMPLE_RATE) < 1400
    middle = found[4000:12000]
    spectrum = np.abs(np.fft.rfft(middle * np.hanning(len(middle))))
    assert abs(spectrum.argmax() * SAMPLE_RATE / len(middle) - 440) < 5
    assert 0.2 < middle.std() < 0.5


def test_channels_are_averaged_loud_values_clipped_and_what_is_no_number_refused() -> None:
    both = np.concatenate([tone(1.0), -tone(1.0)], axis=1)
    assert np.abs(samples(wav(pcm(both), channels=2))).max() < 1e-4
    loud = wav((SECOND * 1e6).astype("<f4").tobytes(), tag=3, bits=32)
    assert np.abs(samples(loud)).max() <= 1
    assert "not numbers" in refusal(wav((SECOND.astype("<f8") * 1e300).tobytes(), tag=3, bits=64))
    stereo = (np.sign(np.repeat(SECOND, 2, axis=1)) * 3e38).astype("<f4")
    assert refusal(wav(stereo.tobytes(), tag=3, bits=32, channels=2))
    for value in (np.nan, -np.inf):
        data = SECOND.copy()
        data[5000] = value
        assert "not numbers" in refusal(wav(data.astype("<f4").tobytes(), tag=3, bits=32))


def test_a_short_file_is_filled_with_silence_and_an_empty_one_refused() -> None:
    assert len(samples(wav(b"\1\0"))) == SHORTEST
    assert refusal(wav(b"")) == "audio is empty"
    assert refusal(wav(b"\1")) == "audio is empty"
    assert refusal(sound(np.zeros((0, 1), np.float32), "AIFF")) == "audio is empty"


def test_a_cut_file_gives_what_is_there() -> None:
    assert len(samples(plain_wav(2.0)[:-SAMPLE_RATE])) == SAMPLE_RATE * 3 // 2
    noise = np.random.default_rng(0).uniform(-0.5, 0.5, (8 * SAMPLE_RATE, 1)).astype(np.float32)
    for kind in ("OGG", "MP3"):
        data = sound(noise, kind)
        assert 3 * SAMPLE_RATE < len(samples(data[: len(data) // 2])) < 5 * SAMPLE_RATE
    for container, codec in (("adts", "aac"), ("webm", "libopus")):
        data = film(noise[:SAMPLE_RATE], container, codec, SAMPLE_RATE)
        for cut in (5, 95):
            assert 0.8 * SAMPLE_RATE < len(samples(data[:-cut])) < 1.1 * SAMPLE_RATE


def test_a_damaged_packet_is_left_out_and_many_are_an_error() -> None:
    noise = np.random.default_rng(0).uniform(-0.5, 0.5, (2 * SAMPLE_RATE, 1)).astype(np.float32)
    for container in ("adts", "mp4"):
        damaged = bytearray(film(noise, container, "aac", SAMPLE_RATE))
        middle = len(damaged) // 2
        damaged[middle : middle + 200] = bytes(200)
        assert 1.7 * SAMPLE_RATE < len(samples(bytes(damaged))) < 2.1 * SAMPLE_RATE
    damaged[middle : middle + middle // 2] = bytes(middle // 2)
    assert "Invalid data found" in refusal(bytes(damaged))


HEADERS = {
    "no channels": (wav(ints(16), channels=0), "header is wrong"),
    "a thousand channels": (wav(bytes(4000), channels=1000), "1000 channels are not supported, only 1 to 8"),
    "no rate": (wav(ints(16), rate=0), "0 Hz is not supported"),
    "1 Hz": (wav(ints(16), rate=1), "1 Hz is not supported, only 4000 to 192000"),
    "4 GHz": (wav(ints(16), rate=4_000_000_000), "4000000000 Hz is not supported"),
    "12 bits": (wav(ints(16), bits=12), "12 bits is not supported"),
    "ima adpcm": (wav(bytes(512), tag=17, bits=4), "WAV format 17"),
    "mp3 in wav": (wav(bytes(512), tag=0x55), "WAV format 85"),
    "no samples": (b"RIFF\4\0\0\0WAVE", "no samples"),
    "samples before fmt": (b"RIFF\4\0\0\0WAVEdata\4\0\0\0abcd", "no samples"),
    "a chunk beyond the end": (b"RIFF\4\0\0\0WAVEabcd\xff\xff\xff\xff", "no samples"),
}


@pytest.mark.parametrize("name", HEADERS)
def test_wrong_headers(name: str) -> None:
    data, why = HEADERS[name]
    message = refusal(data)
    assert message.startswith("Invalid or unsupported audio file.")
    assert why in message


@pytest.mark.slow
def test_rates_and_channels_are_checked_in_every_format() -> None:
    narrow = AudioLimits(max_s=20.0, max_channels=1, min_rate=16_000, max_rate=16_000)
    for make in ("flac", "aiff", "mp3", "ogg vorbis", "m4a", "webm"):
        assert "is not supported" in refusal(OTHERS[make](), narrow)
    assert "2 channels" in refusal(sound(tone(1.0, channels=2), "FLAC"), narrow)


@pytest.mark.parametrize("name", ["wav", "flac", "m4a", "mp3"])
def test_a_long_file_is_refused_by_its_header(name: str) -> None:
    few = AudioLimits(max_s=0.5, max_channels=8, min_rate=4000, max_rate=192_000)
    message = refusal(OTHERS[name](), few)
    assert message.startswith("Audio exceeds maximum allowed duration of 0.5 s (the file has 1.")
    assert "--max_audio_s" in message


def of_unknown_length(seconds: float) -> bytes:
    """Returns a FLAC file as written to a pipe."""
    data = bytearray(sound(tone(seconds), "FLAC"))
    data[21] &= 0xF0
    data[22:26] = bytes(4)
    return bytes(data)


@pytest.mark.parametrize("seconds", [0.5, 4.0, 5.5])
def test_a_flac_file_of_unknown_length_is_read_to_its_end(seconds: float) -> None:
    assert b"".join(decode(of_unknown_length(seconds), "flac", LIMITS)) == pcm(tone(seconds))


def test_a_header_that_says_too_little_does_not_pass_the_limit() -> None:
    few = AudioLimits(max_s=5.0, max_channels=8, min_rate=4000, max_rate=192_000)
    blocks = decode(of_unknown_length(9.0), "flac", few)
    assert len(next(blocks)) == 2 * block_frames(SAMPLE_RATE)
    with pytest.raises(BadRequest, match="exceeds maximum"):
        next(blocks)


JUNK = {
    "nothing": b"",
    "text": b"hello, this is no audio at all" * 20,
    "zeros": bytes(4096),
    "a tag alone": b"ID3\4\0\0\0\0\1\0" + bytes(128),
    "tags without end": b"ID3\4\0\0\0\0\0\0" * 5 + b"\xff\xfb\x90\0",
    "a wav behind a tag": b"ID3\4\0\0\0\0\0\0" + plain_wav(),
    "an aiff behind a tag": b"ID3\4\0\0\0\0\0\0FORM\0\0\0\0AIFF",
    "au": sound(SECOND, "AU"),
    "caf": sound(SECOND, "CAF"),
    "w64": sound(SECOND, "W64"),
    "voc": sound(SECOND, "VOC"),
    "png": b"\x89PNG\r\n\x1a\n" + bytes(64),
    "json": b'{"a": 1}',
    "aifc": b"FORM\0\0\0\0AIFC" + bytes(64),
    "reserved mpeg": b"\xff\xef\xff\xff" * 9,
}


@pytest.mark.parametrize("name", JUNK)
def test_what_is_not_on_the_list_is_not_decoded(name: str) -> None:
    assert recognise(JUNK[name]) is None
    assert recognise(b"ID3\4\0\0\0\0\0\2xxfLaC") == Found("flac", 12)


BEGINNINGS = {
    "flac": b"fLaC" + bytes(range(256)),
    "ogg": b"OggS" + bytes(range(256)),
    "mp3": b"\xff\xfb\x90\0" + bytes(64),
    "aiff": b"FORM\xff\xff\xff\xffAIFF" + bytes(range(256)),
    "mp4": b"\0\0\0\x18ftypM4A " + bytes(range(256)),
    "webm": b"\x1a\x45\xdf\xa3" + bytes(range(256)),
    "aac": b"\xff\xf1\x50\x80" + bytes(64),
}


@pytest.mark.parametrize("name", BEGINNINGS)
def test_a_right_beginning_with_junk_behind_it(name: str) -> None:
    found = recognise(BEGINNINGS[name])
    assert found is not None
    assert found.format == name
    assert refusal(BEGINNINGS[name])


@pytest.mark.parametrize(
    ("package", "name", "how"),
    [
        ("soundfile", "flac", "Reading flac needs soundfile, which is not installed on this server: pip install"),
        ("soxr", "wav", "Reading audio of 44100 Hz needs soxr"),
        ("av", "m4a", "Reading mp4 needs av, which is not installed on this server: pip install av"),
    ],
)
def test_without_its_library_a_format_is_refused_with_the_way_to_get_it(
    monkeypatch: pytest.MonkeyPatch, package: str, name: str, how: str
) -> None:
    real = builtins.__import__
    data = OTHERS[name]()

    def without(wanted: str, *rest: Any, **more: Any) -> Any:
        if wanted == package:
            raise ImportError(wanted)
        return real(wanted, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    assert how in refusal(data)
    assert len(samples(plain_wav())) == SAMPLE_RATE
