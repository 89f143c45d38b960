"""python -m lean_ovms.media.audio.decoder_process <fd>: decodes audio where a crash or a hang does no harm.

As media/images/decoder_process.py: limits of memory and time, none of the server's secrets. A job on the socket pair is
a JSON line {"bytes", "format", "max_s", "max_channels", "min_rate", "max_rate"} and that number of bytes. The answer is
a sequence of blocks, each a length (4 bytes, little-endian) and that many bytes of samples, and length 0 with a JSON
line at its end: {} or {"error": text, "code": word}. While nobody reads them, no further blocks are decoded.
"""

from __future__ import annotations

import json
import math
import os
import resource
import struct
import sys
from io import BufferedRWPair
from typing import Any

from ...errors import BadRequest
from ...util.child_process import EXIT_USAGE, inherit_socket
from .decode import decode
from .limits import AudioLimits

SPARE_BYTES = 256 << 20
"""Address space for libraries and their buffers."""
CPU_S, CPU_PER_S = 10.0, 0.05
"""CPU seconds for a job, and for each second of audio: ten times what the slowest format needs."""


def main(argv: list[str]) -> int:
    """The exit status."""
    sock = inherit_socket("lean_ovms.media.audio.decoder_process", argv)
    if sock is None:
        return EXIT_USAGE
    for limit in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE):
        resource.setrlimit(limit, (0, 0))
    with sock.makefile("rwb") as stream:
        for line in stream:
            handle(json.loads(line), stream)
    return 0


def handle(job: dict[str, Any], stream: BufferedRWPair) -> None:
    """Read one job and write its answer."""
    data: bytes = stream.read(job.pop("bytes"))
    limits = AudioLimits(**{name: job[name] for name in AudioLimits.__slots__})
    set_limits(len(data), limits)
    end: dict[str, str | None] = {}
    try:
        for block in decode(data, job["format"], limits):
            stream.write(struct.pack("<I", len(block)) + block)
            stream.flush()
    except BadRequest as error:
        end = {"error": error.message, "code": error.code}
    except MemoryError:
        end = {"error": "decoding the audio takes too much memory", "code": None}
    stream.write(struct.pack("<I", 0) + json.dumps(end).encode() + b"\n")
    stream.flush()


def set_limits(size: int, limits: AudioLimits) -> None:
    """Set limits of memory and CPU time for a file of so many bytes."""
    with open("/proc/self/statm", encoding="ascii") as statm:
        used_bytes = int(statm.read().split()[0]) * resource.getpagesize()
    memory = used_bytes + 2 * size + SPARE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (memory, resource.getrlimit(resource.RLIMIT_AS)[1]))
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = math.ceil(used.ru_utime + used.ru_stime + CPU_S + CPU_PER_S * limits.max_s)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.getrlimit(resource.RLIMIT_CPU)[1]))


if __name__ == "__main__":
    try:
        code = main(sys.argv[1:])
    except BrokenPipeError:  # the request was given up
        code = 0
    os._exit(code)
