"""python -m lean_ovms.media.images.decoder_process <fd>: unpacks images where they may crash, hang or eat too much.

Decoders of image formats are the part of a server that hostile bytes reach first, so they run in a process with limits
of memory and time, without the server's secrets in its environment. It answers each job on its end of a socket pair:
a JSON line {"bytes", "base64", "most_pixels", "box", "seconds"} and so many bytes, answered by {"height", "width"} and
the pixels, or by {"error": text}. Who started it kills it when no answer comes.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import os
import resource
import sys
from io import BufferedRWPair
from typing import Any

from ...errors import BadRequest
from ...util.child_process import EXIT_USAGE, inherit_socket
from .pillow import DecodeLimits, decode

BYTES_PER_PIXEL = 18
"""Of the picture and all that is made of it on the way: a 16-bit grey one is unpacked, widened, scaled, coloured."""
SPARE_BYTES = 64 << 20


def main(argv: list[str]) -> int:
    """The exit status."""
    sock = inherit_socket("lean_ovms.media.images.decoder_process", argv)
    if sock is None:
        return EXIT_USAGE
    for limit in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE):
        resource.setrlimit(limit, (0, 0))
    with sock.makefile("rwb") as stream:
        for line in stream:
            serve(json.loads(line), stream)
    return 0


def serve(job: dict[str, Any], stream: BufferedRWPair) -> None:
    """One job."""
    data: bytes = stream.read(job["bytes"])
    confine(job)
    pixels = b""
    answer: dict[str, Any]
    try:
        height, width, pixels = decode(plain(data) if job["base64"] else data, frame(job))
        answer = {"height": height, "width": width}
    except BadRequest as error:
        answer = {"error": error.message}
    except MemoryError:
        answer = {"error": "unpacking the image takes too much memory"}
    stream.write(json.dumps(answer).encode() + b"\n")
    stream.write(pixels)
    stream.flush()


def frame(job: dict[str, Any]) -> DecodeLimits:
    return DecodeLimits(most_pixels=job["most_pixels"], box=job["box"])


def plain(data: bytes) -> bytes:
    """Base64 decoded; blanks and line breaks in it do not matter. Raises BadRequest."""
    try:
        return base64.b64decode(data.translate(None, b" \t\r\n"), validate=True)
    except binascii.Error as error:
        raise BadRequest("Invalid base64 string in request") from error


def confine(job: dict[str, Any]) -> None:
    """Limits of memory and processor time, anew for each job."""
    memory = _address_space() + BYTES_PER_PIXEL * job["most_pixels"] + 2 * job["bytes"] + SPARE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (memory, resource.getrlimit(resource.RLIMIT_AS)[1]))
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = math.ceil(used.ru_utime + used.ru_stime + job["seconds"]) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def _address_space() -> int:
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[0]) * resource.getpagesize()


if __name__ == "__main__":
    code = main(sys.argv[1:])
    os._exit(code)
