"""A file's bytes to pixels, with Pillow. Runs in the decoder process only; knows no sockets.

JPEG, PNG, BMP, GIF and WEBP, their first frame. Turned as EXIF says; transparent pixels show white; everything else
(palettes, CMYK, grey, 16 bits, black and white) becomes 8-bit RGB. Sizes are looked at before anything is unpacked.
"""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass

from PIL import Image

from ...errors import BadRequest

FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP")
LEAST_SIDE = 2
"""Smaller than that is a tracking pixel; image processors of models divide by what is left after rounding."""
MOST_ASPECT = 100
"""Some image processors refuse 200:1, others make an image of height 0 of it."""
PARSING_FAILED = "Image parsing failed"

Image.MAX_IMAGE_PIXELS = None  # ours is the limit, and it is looked at before


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeLimits:
    """What a picture must fit: most pixels as it comes, and the sides of the box that it is shrunk into (0: none)."""

    most_pixels: int
    box: int = 0


def decode(data: bytes, frame: DecodeLimits) -> tuple[int, int, bytes]:
    """(height, width, RGB). Raises BadRequest for what is no such image, or too large, and MemoryError."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(data), formats=FORMATS) as image:
                _check(image.size, frame.most_pixels)
                return _pixels(image, frame.box)
    except (BadRequest, MemoryError):
        raise
    except Exception as error:  # the border to Pillow, whose plugins raise what they like for broken files
        raise BadRequest(f"{PARSING_FAILED}: {_reason(error)}") from error


def _check(size: tuple[int, int], most_pixels: int) -> None:
    width, height = size
    if width * height > most_pixels:
        raise BadRequest(f"an image of {width} x {height} pixels is larger than this server's limit: {most_pixels}")
    if min(size) < LEAST_SIDE or max(size) > MOST_ASPECT * min(size):
        raise BadRequest(
            f"an image of {width} x {height} pixels is too small or too narrow: "
            f"at least {LEAST_SIDE} pixels each way, and at most {MOST_ASPECT} times as long as wide"
        )


def _pixels(image: Image.Image, box: int) -> tuple[int, int, bytes]:
    if box and image.format == "JPEG":
        image.draft(None, (box, box))  # unpacks a large photograph at half its size, or a quarter, many times as fast
    turn = _orientation(image)
    rgb = _flattened(image)
    if box and max(rgb.size) > box:
        rgb.thumbnail((box, box))
        rgb = (
            rgb
            if min(rgb.size) >= LEAST_SIDE
            else rgb.resize((max(LEAST_SIDE, rgb.width), max(LEAST_SIDE, rgb.height)))
        )
    if turn is not None:
        rgb = rgb.transpose(turn)
    return rgb.height, rgb.width, rgb.tobytes()


_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_ORIENTATION = 0x0112


def _orientation(image: Image.Image) -> Image.Transpose | None:
    """How EXIF says the picture must be turned; broken EXIF says nothing."""
    try:
        return _TURNS.get(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # the border to Pillow: what hangs on an image must not spoil it
        return None


def _flattened(image: Image.Image) -> Image.Image:
    """RGB, on white where the picture is transparent."""
    image.load()
    if image.mode.startswith("I") or image.mode == "F":
        return _grey(image).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        layer = image.convert("RGBA")
        white = Image.new("RGB", layer.size, (255, 255, 255))
        white.paste(layer, mask=layer.getchannel("A"))
        return white
    return image if image.mode == "RGB" else image.convert("RGB")


def _grey(image: Image.Image) -> Image.Image:
    """16 bits of grey as 8: Pillow's own conversion cuts everything above 255 to white in some versions."""
    return image.convert("I").point(lambda value: value * (1 / 256)).convert("L")


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    if "cannot identify" in text:
        return f"not one of {', '.join(FORMATS)}"
    return text[:200] or type(error).__name__
