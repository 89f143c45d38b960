"""Decoder processes are kept, limited, and replaced when they hang or die."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading

import pytest

from lean_ovms.errors import BadRequest, install_command
from lean_ovms.features.media_files import helper
from lean_ovms.features.media_files.images import decoder_pool
from lean_ovms.features.media_files.images.decoder_pool import DecodeJob, DecoderPool
from lean_ovms.observability.records import RequestRecord, current_record
from tests.pictures import file, picture
from tests.waiting import cancel, is_gone, until

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
    code = (
        "import sys,socket,time,os\nstream=socket.socket(fileno=int(sys.argv[-1])).makefile('rwb')\n"
        "def answer(head, rest=b''):\n"
        "    stream.write(len(head).to_bytes(4, 'big') + head + rest); stream.flush()\n" + body
    )
    return [sys.executable, "-S", "-c", code]


@pytest.mark.slow
async def test_a_process_is_kept_for_the_next_image_and_after_a_bad_one(decoders):
    for image in await asyncio.gather(*(decoders.decode(DecodeJob(data=RED, max_pixels=MOST)) for _ in range(8))):
        assert (image.height, image.width, image.pixels) == (6, 8, bytes((220, 30, 30)) * 48)
    pids = decoders.pids
    assert len(pids) == 1
    with pytest.raises(BadRequest, match="Image parsing failed"):
        await decoders.decode(DecodeJob(data=b"no image", max_pixels=MOST))
    with pytest.raises(BadRequest, match="Invalid base64"):
        await decoders.decode(DecodeJob(data="@", max_pixels=MOST))
    with pytest.raises(BadRequest, match="than the 10 pixels that are left"):
        await decoders.decode(DecodeJob(data=RED, max_pixels=10))
    await decoders.decode(DecodeJob(data=RED, max_pixels=MOST))
    assert decoders.pids == pids


async def test_the_times_of_as_many_frames_as_an_option_allows_are_read():
    body = "stream.readline(); times = ', '.join(['0.1234567890123456'] * 4096)\n"
    body += 'answer(b\'{"height": 1, "width": 1, "times": [%s]}\' % times.encode(), bytes(3 * 4096))'
    decoders = DecoderPool(1, 20.0, command=fake(body))
    assert len((await decoders.decode(DecodeJob(data=b"", max_pixels=MOST))).times) == 4096
    decoders.stop()


async def test_clients_whose_images_wait_take_turns(monkeypatch):
    decoders = DecoderPool(1, 20.0)
    decoded, free = [], asyncio.Event()

    async def decode(self, job, timeout_s):
        await free.wait()
        decoded.append(job.data)

    monkeypatch.setattr(decoder_pool._Decoder, "decode", decode)

    async def ask(client, name):
        current_record.set(RequestRecord(name, "POST", "/", "", 0.0, client=client))
        await decoders.decode(DecodeJob(data=name, max_pixels=MOST))

    asked = [asyncio.ensure_future(ask(name[0], name)) for name in ("a1", "a2", "a3", "a4", "b1", "b2")]
    await asyncio.sleep(0)
    free.set()
    await asyncio.gather(*asked)
    assert decoded == ["a1", "a2", "b1", "a3", "b2", "a4"]
    decoders.stop()


@pytest.mark.slow
async def test_the_limit_of_one_image_does_not_hold_for_the_next(decoders, monkeypatch):
    await decoders.decode(DecodeJob(data=RED, max_pixels=MOST))
    large = RED + bytes(200 << 20)  # more than the 80 MB that the first image may take
    assert (await decoders.decode(DecodeJob(data=large, max_pixels=MOST))).width == 8


@pytest.mark.slow
async def test_a_process_that_was_ended_while_it_waited_is_no_images_fault(decoders):
    await decoders.decode(DecodeJob(data=RED, max_pixels=MOST))
    [pid] = decoders.pids
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert (await decoders.decode(DecodeJob(data=RED, max_pixels=MOST))).width == 8
    assert decoders.pids != [pid]


async def test_the_environment_has_no_secrets(monkeypatch):
    monkeypatch.setenv("API_KEY", "hush")
    body = "stream.readline(); n=repr(sorted(os.environ)).encode(); "
    body += "answer(b'{\"error\": \"%s\"}' % n.replace(b'\"', b''))"
    decoders = DecoderPool(1, 20.0, command=fake(body))
    with pytest.raises(BadRequest) as caught:
        await decoders.decode(DecodeJob(data=b"", max_pixels=MOST))
    decoders.stop()
    assert "PYTHONPATH" in caught.value.message
    assert "API_KEY" not in caught.value.message


@pytest.mark.slow
async def test_one_that_hangs_is_killed(monkeypatch):
    monkeypatch.setattr(helper, "START_S", 0.0)
    decoders = DecoderPool(1, 0.2, command=fake("time.sleep(1000)"))
    with pytest.raises(BadRequest, match=r"longer than 0\.2 s"):
        await decoders.decode(DecodeJob(data=RED, max_pixels=MOST))
    assert decoders.pids == []


@pytest.mark.slow
async def test_one_that_dies_takes_only_its_image_with_it():
    decoders = DecoderPool(1, 20.0)
    for body in (
        "os._exit(9)",
        "os.kill(os.getpid(), 11)",
        "answer(b'{\"height\": 10, \"width\": 10}', b'xx'); os._exit(0)",
        "answer(b'no JSON')",
        'answer(b\'{"height": 100000, "width": 100000}\')',
        "answer(b'[1]')",
        "answer(b'{}')",
        'answer(b\'{"height": 1, "width": "wide"}\')',
        'answer(b\'{"height": 1, "width": 1, "times": 3}\')',
        'answer(b\'{"height": -1, "width": 1}\')',
        "stream.write(b'\\x7f' * 4); stream.flush()",
    ):
        decoders.command = fake(f"stream.readline(); {body}")
        with pytest.raises(BadRequest, match="Image parsing failed"):
            await decoders.decode(DecodeJob(data=RED, max_pixels=MOST))
    decoders.command = decoder_pool.COMMAND
    assert (await decoders.decode(DecodeJob(data=RED, max_pixels=MOST))).width == 8
    decoders.stop()


async def test_a_client_that_leaves_ends_the_work(decoders):
    slow = DecoderPool(1, 20.0, command=fake("time.sleep(1000)"))
    task = asyncio.create_task(slow.decode(DecodeJob(data=RED, max_pixels=MOST)))
    while not task.done() and not slow.slots.used:
        await asyncio.sleep(0)
    await asyncio.sleep(0.05)
    await cancel(task)
    assert slow.pids == []


@pytest.mark.slow
async def test_idle_processes_end():
    decoders = DecoderPool(1, 20.0, idle_s=0.05)
    await decoders.decode(DecodeJob(data=RED, max_pixels=MOST))
    [pid] = decoders.pids
    await until(lambda: not decoders.pids and is_gone(pid))


async def test_the_event_loop_does_not_wait_for_the_end_of_a_process(monkeypatch):
    waited, wait = [], subprocess.Popen.wait
    monkeypatch.setattr(subprocess.Popen, "wait", lambda process: waited.append((threading.get_ident(), wait(process))))
    decoders = DecoderPool(1, 20.0, command=fake("stream.readline(); answer(b'no JSON')"))
    with pytest.raises(BadRequest):
        await decoders.decode(DecodeJob(data=b"", max_pixels=MOST))
    await until(lambda: waited)
    assert waited[0][0] != threading.get_ident()


async def test_without_pillow_the_answer_says_how_to_install_it(monkeypatch, decoders):
    monkeypatch.setattr(decoder_pool.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BadRequest, match=re.escape(install_command("vision"))):
        await decoders.decode(DecodeJob(data=RED, max_pixels=MOST))
