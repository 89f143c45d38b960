"""Images for tests, as files and as the URLs that clients send."""

from __future__ import annotations

import base64
import io
from typing import Any

from PIL import Image

COLOURS = {"red": (220, 30, 30), "green": (30, 170, 50), "blue": (40, 60, 220), "yellow": (240, 220, 40)}


def picture(colour: str | tuple[int, ...] = "red", size: tuple[int, int] = (60, 40), mode: str = "RGB") -> Image.Image:
    """Returns a plain image. `size` is width and height."""
    return Image.new(mode, size, COLOURS[colour] if isinstance(colour, str) else colour)


def file(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    """Returns the bytes of an image file."""
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def data_url(colour: str = "red", size: tuple[int, int] = (60, 40), kind: str = "PNG") -> str:
    """Returns a plain image as a data URL."""
    text = base64.b64encode(file(picture(colour, size), kind)).decode()
    return f"data:image/{kind.lower()};base64,{text}"


def part(url: str, **more: Any) -> dict[str, Any]:
    """Returns the part of a chat message with an image."""
    return {"type": "image_url", "image_url": {"url": url, **more}}


def user(*content: str | dict[str, Any]) -> dict[str, Any]:
    """Returns a user's message of texts and parts."""
    return {"role": "user", "content": [{"type": "text", "text": c} if isinstance(c, str) else c for c in content]}
