"""python -m lean_ovms.features.media_files.audio.decoder_process FD: decodes audio where a crash or hang is harmless.

As images/decoder_process.py: limits of memory and time, none of the server's secrets. A job on the socket pair is
a JSON line {"bytes", "format", "max_s", "max_channels", "min_rate", "max_rate"} and that number of bytes; or it has the
member "start", and the bytes are in an open file that comes with the line, from that place on. Each block of samples is
an answer, the object {"bytes"} and that number of bytes; the last answer is {"bytes": 0} or {"error": text, "code":
word}. While nobody reads them, no further blocks are decoded.
"""

from __future__ import annotations

import mmap
import os
from typing import Any

from ....errors import BadRequest
from .. import helper_process
from ..helper_process import JobChannel
from .decode import decode
from .formats import AudioLimits

SPARE_BYTES = 256 << 20
"""Address space for libraries and their buffers."""
CPU_S, CPU_PER_S = 10.0, 0.05
"""CPU seconds for a job, and for each second of audio: ten times what the slowest format needs."""


def handle(job: dict[str, Any], stream: JobChannel) -> None:
    """Reads one job and writes its answer."""
    data = _file(stream, job["start"], job["bytes"]) if "start" in job else stream.read(job["bytes"])
    limits = AudioLimits(**{name: job[name] for name in AudioLimits.__slots__})
    helper_process.set_limits(2 * len(data) + SPARE_BYTES, CPU_S + CPU_PER_S * limits.max_s)
    end: dict[str, Any] = {"bytes": 0}
    try:
        for block in decode(data, job["format"], limits):
            helper_process.write_answer(stream, {"bytes": len(block)}, [block])
    except BadRequest as error:
        end = {"error": error.message, "code": error.code}
    except MemoryError:
        end = {"error": "decoding the audio took too much memory"}
    helper_process.write_answer(stream, end)


def _file(stream: JobChannel, start: int, size: int) -> memoryview:
    """Returns the audio of a job as a memory map of the file whose descriptor came with the job."""
    descriptor = stream.take_file()
    try:
        return memoryview(mmap.mmap(descriptor, start + size, access=mmap.ACCESS_READ))[start:]
    finally:
        os.close(descriptor)


if __name__ == "__main__":
    helper_process.run("lean_ovms.features.media_files.audio.decoder_process", handle)
