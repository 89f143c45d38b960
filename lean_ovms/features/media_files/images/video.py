"""Decodes some frames of a video with PyAV, or a list of images as frames, in the decoder process.

It reads MP4 and QuickTime, WebM and Matroska, AVI and GIF, recognized by their first bytes. FFmpeg reads many more
formats, some of which open other files. Frames are selected as in vLLM, and scaled down until all together are within a
limit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from PIL import Image

from ....errors import BadRequest, install_command
from . import pillow
from .frame_limits import FrameLimits
from .pillow import decode_base64

PARSING_FAILED = "Video parsing failed"
_FORMATS = ((b"ftyp", 4, "mov"), (b"\x1a\x45\xdf\xa3", 0, "matroska"), (b"AVI ", 8, "avi"), (b"GIF8", 0, "gif"))
_CODECS = frozenset(("h264", "hevc", "vp8", "vp9", "av1", "libdav1d", "mpeg4", "mjpeg", "gif"))


@dataclass(frozen=True, slots=True)
class Video:
    """Decoded frames of the same size."""

    frames: list[Image.Image]
    """The frames."""
    times: list[float]
    """The time in seconds at which each frame is shown."""
    seconds: float
    """The length of the video in seconds."""


def decode(data: bytes, max_pixels: int, limits: FrameLimits) -> Video:
    """Decodes frames of a video.

    Args:
        data: The video's file.
        max_pixels: The most pixels that a frame in the file may have.
        limits: The selection of frames, and the limits of the video.

    Raises:
        MemoryError: There is not enough memory.
        BadRequest: The file has another format, is broken or is beyond the limits.
    """
    if limits.images:
        return _of_images(data.split(b","), max_pixels, limits)
    try:
        return _decoded(data, max_pixels, limits)
    except (BadRequest, MemoryError):
        raise
    except Exception as error:  # FFmpeg raises many kinds of errors for damaged files, whose messages name objects
        raise BadRequest(f"{PARSING_FAILED}: its file is broken") from error


def _check_length(seconds: float, limits: FrameLimits) -> None:
    if seconds > limits.max_s:
        raise BadRequest(f"a video of {seconds:g} s is longer than this server's limit of {limits.max_s:g} s")


def _of_images(parts: list[bytes], max_pixels: int, limits: FrameLimits) -> Video:
    frames, rate = list[Image.Image](), limits.fps or 1.0
    _check_length(len(parts) / rate, limits)
    wanted = replace(limits, fps=0.0).sampled(len(parts), 0.0)
    for number in wanted:
        height, width, pixels = pillow.decode(decode_base64(parts[number]), max_pixels)
        if frames and frames[0].size != _scaled((width, height), len(wanted), limits):
            raise BadRequest("the frames of a video have different sizes")
        frames.append(_resized(Image.frombytes("RGB", (width, height), pixels), len(wanted), limits))
    return Video(frames, [number / rate for number in wanted], len(parts) / rate)


def _decoded(data: bytes, max_pixels: int, limits: FrameLimits) -> Video:
    with _opened(data) as container:
        stream = container.streams.video[0]
        rate = float(stream.average_rate or stream.guessed_rate or 0)
        total = sum(packet.size > 0 for packet in container.demux(stream))
        if not total or not rate:
            raise BadRequest(f"{PARSING_FAILED}: its file has no frames or no frame rate")
        _check_length(total / rate, limits)
    wanted = limits.sampled(total, total / rate)
    frames = list[Image.Image]()
    with _opened(data) as container:
        for frame in _frames(container, wanted, max_pixels):
            frames.append(_resized(frame, len(wanted), limits, frames[0].size if frames else None))
    if not frames:
        raise BadRequest(f"{PARSING_FAILED}: none of its frames can be read")
    return Video(frames, [number / rate for number in wanted[: len(frames)]], total / rate)


def _opened(data: bytes) -> Any:
    """Opens a file as a container with a video stream, which the caller has to close. Raises BadRequest."""
    try:
        from ..containers import opened
    except ImportError:
        raise BadRequest(
            f"Videos need PyAV, which is not installed on this server: {install_command('video')}"
        ) from None
    name = next((name for magic, at, name in _FORMATS if data[at : at + len(magic)] == magic), "")
    if not name:
        raise BadRequest(f"{PARSING_FAILED}: not one of MP4, WebM, AVI and GIF")
    container = opened(data, name)
    streams = container.streams.video
    if not streams or streams[0].codec_context.name not in _CODECS:
        container.close()
        raise BadRequest(f"{PARSING_FAILED}: its file has no video in a format that this server reads")
    streams[0].codec_context.thread_count = 1
    return container


def _frames(container: Any, wanted: list[int], max_pixels: int) -> Iterator[Image.Image]:
    """Yields the frames with the given numbers, rotated as they are shown."""
    left, places = len(wanted), set(wanted)
    for number, frame in enumerate(container.decode(container.streams.video[0])):
        if frame.width * frame.height > max_pixels:
            raise BadRequest(f"frames of {frame.width} x {frame.height} pixels are larger than this server's limit")
        if number in places:
            image: Image.Image = frame.to_image()
            yield image.rotate(frame.rotation, expand=True) if frame.rotation else image
            left -= 1
        if not left:
            return


def _resized(frame: Image.Image, count: int, limits: FrameLimits, size: tuple[int, int] | None = None) -> Image.Image:
    size = size or _scaled(frame.size, count, limits)
    return frame if frame.size == size else frame.resize(size)


def _scaled(size: tuple[int, int], count: int, limits: FrameLimits) -> tuple[int, int]:
    """Returns the width and the height of each frame, if `count` frames must be within the limit of pixels."""
    factor = min(1.0, math.sqrt(limits.total_pixels / (count * size[0] * size[1])))
    width, height = (int(side * factor) for side in size)
    if min(width, height) < pillow.MIN_SIDE:
        raise BadRequest("the frames of a video are too small, too narrow, or too many for this server's limits")
    return width, height
