"""python -m lean_ovms.features.media_files.images.decoder_process FD: decodes images where a crash or hang is harmless.

Decoders of image formats are the first part of a server that hostile bytes reach. So they run in a process with limits
of memory and time, and without the server's secrets in its environment. A job on the socket pair is a JSON line
{"bytes", "base64", "max_pixels", "box", "mask", "seconds", "video"} and that number of bytes. The answer is the object
{"height", "width", "times", "length"} and the pixels, or {"error": text}. "video" has the fields of FrameLimits, or is
null for an image. The parent kills the process if no answer comes.
"""

from __future__ import annotations

from typing import Any

from ....errors import BadRequest
from .. import helper_process
from ..helper_process import JobChannel
from . import video
from .frame_limits import FrameLimits
from .pillow import decode, decode_base64

BYTES_PER_PIXEL = 18
"""Memory for the image and all intermediate copies: a 16-bit grey one is unpacked, widened, scaled, and made RGB."""
SPARE_BYTES = 64 << 20
VIDEO_BYTES_PER_PIXEL = 6
"""The frames as images and as bytes."""
VIDEO_SPARE_BYTES = 512 << 20
"""Address space for FFmpeg's libraries and its frames that others refer to."""


def handle(job: dict[str, Any], stream: JobChannel) -> None:
    """Decodes the file of one job, and writes the answer."""
    data: bytes = stream.read(job["bytes"])
    limits = FrameLimits(**job["video"]) if job["video"] else None
    memory = BYTES_PER_PIXEL * job["max_pixels"] + 2 * job["bytes"] + SPARE_BYTES
    if limits is not None:
        memory += VIDEO_BYTES_PER_PIXEL * limits.total_pixels + VIDEO_SPARE_BYTES
    helper_process.set_limits(memory, job["seconds"] + 1)
    pixels: list[bytes] = []
    answer: dict[str, Any]
    try:
        if job["base64"] and not (limits is not None and limits.images):
            data = decode_base64(data)
        if limits is None:
            height, width, image = decode(data, job["max_pixels"], job["box"], mask=job["mask"])
            pixels, answer = [image], {"height": height, "width": width}
        else:
            found = video.decode(data, job["max_pixels"], limits)
            pixels = [frame.tobytes() for frame in found.frames]
            width, height = found.frames[0].size
            answer = {"height": height, "width": width, "times": found.times, "length": found.seconds}
    except BadRequest as error:
        answer = {"error": error.message}
    except MemoryError:
        answer = {"error": "decoding the image took too much memory"}
    helper_process.write_answer(stream, answer, pixels)


if __name__ == "__main__":
    helper_process.run("lean_ovms.features.media_files.images.decoder_process", handle)
