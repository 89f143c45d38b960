"""Audio files in decoder processes: streamed, limited, killed, replaced; and files that are made of samples."""

from __future__ import annotations

import asyncio
import gc
import io
import math
import struct
import sys
import wave
from collections.abc import AsyncIterator

import numpy as np
import pytest

from lean_ovms.config import Config
from lean_ovms.errors import BadRequest, PayloadTooLarge, RequestError, Unavailable, install_command
from lean_ovms.features.media_files import helper
from lean_ovms.features.media_files.audio import decoder
from lean_ovms.features.media_files.audio.decoder import AudioDecoder
from lean_ovms.features.media_files.audio.encoder import UNKNOWN, open_encoder
from lean_ovms.features.media_files.audio.wav import block_frames
from lean_ovms.media.file_slice import FileSlice
from lean_ovms.types.audio import SAMPLE_RATE
from lean_ovms.util.spool import Spool
from tests.recordings import pcm, plain_wav, sound, tone, wav
from tests.waiting import is_gone, until

SECOND = plain_wav()


@pytest.fixture
async def audio() -> AsyncIterator[AudioDecoder]:
    made = AudioDecoder(Config(max_audio_s=30.0, audio_timeout_s=20.0))
    yield made
    await made.close()


def fake(body: str, **options: float) -> AudioDecoder:
    """Returns a decoder whose process reads the job, and then runs `body` with `stream`."""
    code = (
        "import sys,socket,time,os,json\nstream=socket.socket(fileno=int(sys.argv[-1])).makefile('rwb')\n"
        "def answer(head, rest=b''):\n"
        "    stream.write(len(head).to_bytes(4, 'big') + head + rest); stream.flush()\n"
        f"stream.read(json.loads(stream.readline())['bytes'])\n{body}"
    )
    return AudioDecoder(Config(**{"audio_timeout_s": 20.0, **options}), (sys.executable, "-S", "-c", code))


async def all_of(audio: AudioDecoder, data: bytes) -> bytes:
    stream = await audio.decode(memoryview(data))
    found = b"".join([block async for block in stream])
    assert stream.seconds == len(found) / 2 / SAMPLE_RATE
    return found


@pytest.mark.slow
async def test_blocks_and_a_process_that_is_kept(audio: AudioDecoder) -> None:
    assert await all_of(audio, SECOND) == pcm(tone())
    pids = audio.pids
    assert len(pids) == 1
    for bad, why in (
        (b"no audio at all", "This server reads wav, flac"),
        (wav(b""), "audio is empty"),
        (wav(bytes(400), rate=5), "5 Hz is not supported"),
        (plain_wav(31.0), "exceeds maximum allowed duration of 30 s"),
        (wav(np.full(99_000, np.nan, "<f4").tobytes(), tag=3, bits=32), "not numbers"),
    ):
        with pytest.raises(BadRequest, match=why) as caught:
            await all_of(audio, bad)
        assert caught.value.param == "file"
    assert await all_of(audio, SECOND) == pcm(tone())
    assert audio.pids == pids


@pytest.mark.parametrize("tag", [b"", b"ID3\4\0\0\0\0\0\7" + bytes(27)])
@pytest.mark.slow
async def test_a_file_within_a_file_is_read_by_the_process_itself(audio: AudioDecoder, tag: bytes) -> None:
    data = tag + (SECOND if not tag else sound(tone(), "FLAC"))
    spool = Spool()
    spool.write(memoryview(b"before it" + data + b"behind it"))
    for _ in range(2):  # the process is reused
        stream = await audio.decode(FileSlice(spool, 9, len(data)))
        assert b"".join([block async for block in stream]) == pcm(tone())
    assert len(audio.pids) == 1
    spool.close()


@pytest.mark.slow
async def test_a_long_file_waits_for_its_reader(audio: AudioDecoder) -> None:
    """The file has two hours of silence in few bytes. Only what is read is decoded, and closing it ends the process."""
    long = AudioDecoder(Config())
    data = sound(np.zeros((1200 * SAMPLE_RATE, 1), np.float32), "FLAC")
    assert len(data) < 200_000
    stream = await long.decode(memoryview(data))
    pid = stream._process.pid
    for _ in range(3):
        assert len(await anext(stream)) == 2 * block_frames(SAMPLE_RATE)
    before = _cpu_ticks(pid)
    await asyncio.sleep(0.3)
    assert _cpu_ticks(pid) - before <= 10  # of 100 per second; the whole file would take 30
    await stream.aclose()
    await until(lambda: is_gone(pid))
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


def _cpu_ticks(pid: int) -> int:
    with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


@pytest.mark.slow
async def test_too_many_files_are_a_503(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "WAITING_FILES", 1)
    audio = AudioDecoder(Config(max_audio_decoders=1))
    stream = await audio.decode(memoryview(SECOND))
    waiting = asyncio.create_task(audio.decode(memoryview(SECOND)))
    await asyncio.sleep(0)
    with pytest.raises(Unavailable, match="too many audio files"):
        await audio.decode(memoryview(SECOND))
    await stream.aclose()
    await (await waiting).aclose()
    await audio.close()


@pytest.mark.slow
async def test_one_that_hangs_is_killed_and_a_file_that_is_too_large_is_a_413(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(helper, "START_S", 0.0)
    audio = fake("time.sleep(1000)", audio_timeout_s=0.2)
    with pytest.raises(BadRequest, match=r"longer than 0\.2 s"):
        await audio.decode(memoryview(SECOND))
    assert audio.pids == []
    assert audio.slots.used == 0
    small = AudioDecoder(Config(max_audio_file_bytes=100))
    with pytest.raises(PayloadTooLarge, match="Maximum file size exceeded: the file has 101 bytes"):
        await small.decode(memoryview(bytes(101)))
    with pytest.raises(BadRequest):  # the largest allowed size, but not audio
        await small.decode(memoryview(bytes(100)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "body",
    [
        "os.kill(os.getpid(), 11)",
        "answer(b'{\"bytes\": 5}', b'ab'); os._exit(0)",
        "stream.write(b'\\xff' * 4 + bytes(99)); stream.flush(); time.sleep(1000)",
        "answer(b'{\"bytes\": 5000000}', bytes(99)); time.sleep(1000)",
        "answer(b'{\"bytes\": -1}'); time.sleep(1000)",
        "answer(b'{}'); time.sleep(1000)",
        "answer(b'3'); time.sleep(1000)",
    ],
)
async def test_one_that_dies_takes_only_its_file_with_it(body: str) -> None:
    audio = fake(body)
    with pytest.raises(BadRequest, match="too much memory or time"):
        await all_of(audio, SECOND)
    assert audio.slots.used == 0
    audio.command = decoder.COMMAND
    assert await all_of(audio, SECOND) == pcm(tone())
    await audio.close()


async def test_one_that_dies_in_the_middle_fails_there() -> None:
    audio = fake("answer(b'{\"bytes\": 2}', b'ab'); os.kill(os.getpid(), 11)")
    stream = await audio.decode(memoryview(SECOND))
    assert await anext(stream) == b"ab"
    with pytest.raises(RequestError):
        await anext(stream)
    await stream.aclose()
    assert audio.slots.used == 0


async def test_one_that_does_not_start_is_no_files_fault() -> None:
    audio = AudioDecoder(Config(), ("/nowhere/python",))
    with pytest.raises(Unavailable):
        await audio.decode(memoryview(SECOND))


@pytest.mark.slow
async def test_the_process_limits_itself(audio: AudioDecoder) -> None:
    stream = await audio.decode(memoryview(SECOND))
    with open(f"/proc/{stream._process.pid}/limits", encoding="ascii") as text:
        limits = {line[:25].strip(): line[25:].split()[0] for line in text.read().splitlines()[1:]}
    await stream.aclose()
    assert int(limits["Max cpu time"]) < 30
    assert int(limits["Max address space"]) < 4 << 30
    assert limits["Max file size"] == limits["Max core file size"] == "0"


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


@pytest.mark.slow
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
