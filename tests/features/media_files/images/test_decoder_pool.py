"""Decoder processes are kept, limited, and replaced when they hang or die."""

import asyncio
import os
import re
import signal
import sys

import pytest

from lean_ovms.errors import BadRequest, install_command
from lean_ovms.features.media_files import helper
from lean_ovms.features.media_files.images import decoder_pool
from lean_ovms.features.media_files.images.decoder_pool import DecodeJob, DecoderPool
from tests.pictures import file, picture
from tests.waiting import cancel

MOST = 1 << 20
RED = file(picture("red", (8, 6)))


@pytest.fixture
async def decoders():
    """Returns a pool of at most one process, with a long timeout."""
    made = DecoderPool(1, 20.0)
    yield made
    made.stop()


def fake(body):
    """Returns a decoder that reads its first line, and then runs `body` with `stream`."""
    code = f"import sys,socket,time,os\nstream=socket.socket(fileno=int(sys.argv[-1])).makefile('rwb')\n{body}"
    return [sys.executable, "-S", "-c", code]


async def test_a_process_is_kept_for_the_next_image_and_after_a_bad_one(decoders):
    for image in await asyncio.gather(*(decoders.decode(DecodeJob(data=RED, max_pixels=MOST)) for _ in range(8))):
        assert (image.height, image.width, image.pixels) == (6, 8, bytes((220, 30, 30)) * 48)
    pids = decoders.idle.pids
    assert len(pids) == 1
    with pytest.raises(BadRequest, match="Image parsing failed"):
        await decoders.decode(DecodeJob(data=b"no image", max_pixels=MOST))
    with pytest.raises(BadRequest, match="Invalid base64"):
        await decoders.decode(DecodeJob(data="@", max_pixels=MOST))
    with pytest.raises(BadRequest, match="limit of 10"):
        await decoders.decode(DecodeJob(data=RED, max_pixels=10))
    await decoders.decode(DecodeJob(data=RED, max_pixels=MOST))
    assert decoders.idle.pids == pids


@pytest.mark.slow
async def test_a_process_that_was_ended_while_it_waited_is_no_images_fault(decoders):
    await decoders.decode(DecodeJob(data=RED, max_pixels=MOST))
    [pid] = decoders.idle.pids
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert (await decoders.decode(DecodeJob(data=RED, max_pixels=MOST))).width == 8
    assert decoders.idle.pids != [pid]


async def test_the_environment_has_no_secrets(monkeypatch):
    monkeypatch.setenv("API_KEY", "hush")
    body = "stream.readline(); n=repr(sorted(os.environ)).encode(); "
    body += "stream.write(b'{\"error\": \"%s\"}\\n' % n.replace(b'\"', b'')); stream.flush()"
    decoders = DecoderPool(1, 20.0, command=fake(body))
    with pytest.raises(BadRequest) as caught:
        await decoders.decode(DecodeJob(data=b"", max_pixels=MOST))
    decoders.stop()
    assert "PYTHONPATH" in caught.value.message
    assert "API_KEY" not in caught.value.message


async def test_one_that_hangs_is_killed(monkeypatch):
    monkeypatch.setattr(helper, "START_S", 0.0)
    decoders = DecoderPool(1, 0.2, command=fake("time.sleep(1000)"))
    with pytest.raises(BadRequest, match=r"longer than 0\.2 s"):
        await decoders.decode(DecodeJob(data=RED, max_pixels=MOST))
    assert decoders.idle.pids == []


async def test_one_that_dies_takes_only_its_image_with_it():
    decoders = DecoderPool(1, 20.0)
    for body in (
        "os._exit(9)",
        "os.kill(os.getpid(), 11)",
        'stream.write(b\'{"height": 10, "width": 10}\\nxx\'); stream.flush(); os._exit(0)',
    ):
        decoders._command = fake(f"stream.readline(); {body}")
        with pytest.raises(BadRequest, match="Image parsing failed"):
            await decoders.decode(DecodeJob(data=RED, max_pixels=MOST))
    decoders._command = decoder_pool.COMMAND
    assert (await decoders.decode(DecodeJob(data=RED, max_pixels=MOST))).width == 8
    decoders.stop()


async def test_a_client_that_leaves_ends_the_work(decoders):
    slow = DecoderPool(1, 20.0, command=fake("time.sleep(1000)"))
    task = asyncio.create_task(slow.decode(DecodeJob(data=RED, max_pixels=MOST)))
    while not task.done() and slow._slots._value:
        await asyncio.sleep(0)
    await asyncio.sleep(0.05)
    await cancel(task)
    assert slow.idle.pids == []


async def test_idle_processes_end():
    decoders = DecoderPool(1, 20.0, idle_s=0.05)
    await decoders.decode(DecodeJob(data=RED, max_pixels=MOST))
    [pid] = decoders.idle.pids
    while decoders.idle.pids:
        await asyncio.sleep(0.02)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_without_pillow_the_answer_says_how_to_install_it(monkeypatch, decoders):
    monkeypatch.setattr(decoder_pool.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BadRequest, match=re.escape(install_command("vision"))):
        await decoders.decode(DecodeJob(data=RED, max_pixels=MOST))
