"""Decodes an image file to pixels with Pillow, in the decoder process.

It reads the first frame of JPEG, PNG, BMP, GIF and WEBP. The image is rotated by its EXIF orientation, transparent
pixels become white, and all modes (palettes, CMYK, grey, 16 bits, black and white) become 8-bit RGB. Sizes are checked
before decoding.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable

from PIL import Image, ImageOps

from ....errors import BadRequest
from .. import base64_text

FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP")
MIN_SIDE = 2
"""A smaller image is a tracking pixel; image processors of models divide by the side left after rounding."""
MAX_ASPECT = 100
"""The largest ratio of sides: some image processors refuse 200:1, others make an image of height 0 of it."""
PARSING_FAILED = "Image parsing failed"

Image.MAX_IMAGE_PIXELS = None  # max_pixels is checked instead


def decode(data: bytes, max_pixels: int, box: int = 0, *, mask: bool = False) -> tuple[int, int, bytes]:
    """Decodes an image, and returns its height, its width and its RGB bytes.

    Args:
        data: The image's file.
        max_pixels: The most pixels that the file may have.
        box: The side, in pixels, of the square that the image is shrunk into; 0 if it keeps its size.
        mask: Whether it is the mask of an edit: transparent pixels become white and others black, or if there are none,
            the image becomes grey.

    Raises:
        MemoryError: There is not enough memory.
        BadRequest: The file has another format or is broken, or the image is too large, too small or too narrow.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(data), formats=FORMATS) as image:
                _check(image.size, max_pixels)
                return _pixels(image, box, _mask if mask else _flattened)
    except (BadRequest, MemoryError):
        raise
    except Exception as error:  # Pillow's plugins raise any kind of exception for damaged files
        raise BadRequest(f"{PARSING_FAILED}: {_reason(error)}") from error


def decode_base64(data: bytes) -> bytes:
    """Decodes base64 text by the rules of base64_text. Raises BadRequest."""
    try:
        return base64_text.decode_base64(data)
    except ValueError as error:
        raise BadRequest("Invalid base64 string in request") from error


def _check(size: tuple[int, int], max_pixels: int) -> None:
    width, height = size
    if width * height > max_pixels:
        raise BadRequest(
            f"an image of {width} x {height} pixels is larger than the {max_pixels} pixels that are left of this "
            "server's limit for all images of a request"
        )
    if min(size) < MIN_SIDE or max(size) > MAX_ASPECT * min(size):
        raise BadRequest(
            f"an image of {width} x {height} pixels is too small or too narrow: "
            f"its sides must have at least {MIN_SIDE} pixels, and the longer one at most {MAX_ASPECT} times as many "
            "as the other"
        )


def _pixels(image: Image.Image, box: int, to_rgb: Callable[[Image.Image], Image.Image]) -> tuple[int, int, bytes]:
    if box and image.format == "JPEG":
        # Decodes a large photo at a half or a quarter of its size, which is many times as fast.
        image.draft(None, (box, box))
    image.load()
    with contextlib.suppress(Exception):  # broken metadata must not make the image unusable
        ImageOps.exif_transpose(image, in_place=True)
    rgb = to_rgb(image)
    if box and max(rgb.size) > box:
        rgb.thumbnail((box, box))
        rgb = rgb if min(rgb.size) >= MIN_SIDE else rgb.resize((max(MIN_SIDE, rgb.width), max(MIN_SIDE, rgb.height)))
    return rgb.height, rgb.width, rgb.tobytes()


def _flattened(image: Image.Image) -> Image.Image:
    """Converts an image to RGB, in which transparent pixels become white."""
    opaque = _grey(image) if image.mode.startswith("I") or image.mode == "F" else image
    if _transparent(image):
        layer = image.convert("RGBA")
        white = Image.new("RGB", layer.size, (255, 255, 255))
        white.paste(layer if opaque is image else opaque.convert("RGB"), mask=layer.getchannel("A"))
        return white
    return opaque if opaque.mode == "RGB" else opaque.convert("RGB")


def _transparent(image: Image.Image) -> bool:
    return image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info


def _mask(image: Image.Image) -> Image.Image:
    """Converts an image to a mask: the more transparent a pixel, the whiter; without transparency, its grey values."""
    if _transparent(image):
        alpha = image.convert("RGBA").getchannel("A")
        if alpha.getextrema() != (255, 255):
            return alpha.point(lambda value: 255 - value).convert("RGB")
    return _flattened(image).convert("L").convert("RGB")


def _grey(image: Image.Image) -> Image.Image:
    """Converts 16-bit grey to 8-bit grey, since Pillow's own conversion clips values above 255 in some versions."""
    return image.convert("I").point(lambda value: value * (1 / 256)).convert("L")


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    if "cannot identify" in text:
        return f"not one of {', '.join(FORMATS)}"
    return text[:200] or type(error).__name__
