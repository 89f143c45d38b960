"""python -m lean_ovms.media.images.decoder_process <fd>: decodes images where a crash or a hang does no harm.

Decoders of image formats are the part of a server that hostile bytes reach first, so they run in a process with limits
of memory and time, without the server's secrets in its environment. A job on the socket pair is a JSON line {"bytes",
"base64", "max_pixels", "box", "seconds"} and that number of bytes; the answer is {"height", "width"} and the pixels, or
{"error": text}. The parent kills the process when no answer comes.
"""

from __future__ import annotations

import base64
import binascii
import json
from io import BufferedRWPair
from typing import Any

from ...errors import BadRequest
from .. import helper_process
from .pillow import decode

BYTES_PER_PIXEL = 18
"""Memory for the image and all intermediate copies: a 16-bit grey one is unpacked, widened, scaled, and made RGB."""
SPARE_BYTES = 64 << 20


def handle(job: dict[str, Any], stream: BufferedRWPair) -> None:
    """Read one job and write its answer."""
    data: bytes = stream.read(job["bytes"])
    memory = BYTES_PER_PIXEL * job["max_pixels"] + 2 * job["bytes"] + SPARE_BYTES
    helper_process.set_limits(memory, job["seconds"] + 1)
    pixels = b""
    answer: dict[str, Any]
    try:
        height, width, pixels = decode(decode_base64(data) if job["base64"] else data, job["max_pixels"], job["box"])
        answer = {"height": height, "width": width}
    except BadRequest as error:
        answer = {"error": error.message}
    except MemoryError:
        answer = {"error": "unpacking the image takes too much memory"}
    stream.write(json.dumps(answer).encode() + b"\n")
    stream.write(pixels)
    stream.flush()


def decode_base64(data: bytes) -> bytes:
    """Returns the bytes of base64 text; blanks and line breaks in it are ignored. Raises BadRequest."""
    try:
        return base64.b64decode(data.translate(None, b" \t\r\n"), validate=True)
    except binascii.Error as error:
        raise BadRequest("Invalid base64 string in request") from error


if __name__ == "__main__":
    helper_process.run("lean_ovms.media.images.decoder_process", handle)
