"""Files of every kind to RGB, and files that are not images."""

import io
import zlib

import pytest
from PIL import Image

from lean_ovms.errors import BadRequest
from lean_ovms.features.media_files.images.pillow import decode
from tests.pictures import file, picture

FRAME = 1 << 20


def first(data, box=0):
    """Returns height, width and the first pixel."""
    height, width, pixels = decode(data, FRAME, box)
    assert len(pixels) == 3 * height * width
    return height, width, tuple(pixels[:3])


@pytest.mark.parametrize("kind", ["PNG", "BMP", "GIF", "JPEG", "WEBP"])
def test_every_format_and_the_first_frame_of_moving_pictures(kind):
    frames = [picture((250, 0, 0), (8, 6)), *[picture((0, 0, 250), (8, 6))] * 50]
    moving = {"save_all": True, "append_images": frames[1:]} if kind in ("GIF", "WEBP", "PNG") else {}
    height, width, pixel = first(file(frames[0], kind, **moving))
    assert (height, width) == (6, 8)
    assert all(abs(a - b) <= 3 for a, b in zip(pixel, (250, 0, 0), strict=True))
    if kind in ("PNG", "BMP"):
        image = Image.effect_noise((31, 17), 90).convert("RGB")
        assert decode(file(image, kind), FRAME) == (17, 31, image.tobytes())


@pytest.mark.parametrize(
    ("mode", "value", "pixel"),
    [
        ("L", 77, (77, 77, 77)),
        ("1", 1, (255, 255, 255)),
        ("LA", (77, 255), (77, 77, 77)),
        ("RGBA", (200, 10, 30, 255), (200, 10, 30)),
        ("RGBA", (200, 10, 30, 0), (255, 255, 255)),
        ("RGBA", (0, 0, 0, 128), (127, 127, 127)),
        ("I;16", 0x80FF, (128, 128, 128)),
    ],
)
def test_every_kind_of_pixel_becomes_rgb(mode, value, pixel):
    assert first(file(picture(value, (5, 4), mode)))[2] == pixel


def test_palettes_and_their_transparency_and_cmyk():
    pixel = first(file(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "JPEG", quality=95))[2]
    assert pixel[0] > 240 > 15 > max(pixel[1:])
    image = picture((10, 200, 30), (5, 4)).convert("P", palette=Image.Palette.ADAPTIVE)
    assert first(file(image))[2] == (10, 200, 30)
    assert first(file(image, transparency=image.getpixel((0, 0))))[2] == (255, 255, 255)
    assert first(file(image, "GIF", transparency=image.getpixel((0, 0))))[2] == (255, 255, 255)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_turns_the_picture(orientation):
    """The result is compared with Pillow's own handling of the tag."""
    from PIL import ImageOps

    image = picture((0, 0, 0), (12, 8))
    image.putpixel((0, 0), (255, 255, 255))
    exif = image.getexif()
    exif[0x0112] = orientation
    data = file(image, exif=exif)
    turned = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    assert decode(data, FRAME) == (turned.height, turned.width, turned.convert("RGB").tobytes())
    broken = file(picture((9, 9, 9), (8, 8)), "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\xff")
    assert first(broken)[:2] == (8, 8)


def test_a_box_shrinks_and_never_enlarges():
    for size in ((2, 2), (2, 200), (300, 3)):  # as small and as narrow as may be
        assert first(file(picture((1, 2, 3), size)))[:2] == (size[1], size[0])
    assert first(file(picture((1, 2, 3), (640, 320))), 64)[:2] == (32, 64)
    assert first(file(picture((1, 2, 3), (640, 320)), "JPEG"), 64)[:2] == (32, 64)
    assert first(file(picture((1, 2, 3), (40, 30))), 64)[:2] == (30, 40)
    assert first(file(picture((1, 2, 3), (1000, 10))), 64)[:2] == (2, 64)


@pytest.mark.parametrize("size", [(1, 1), (1, 50), (50, 1), (1, 5000), (3, 400), (400, 3)])
def test_sizes_that_image_processors_do_not_bear_are_refused(size):
    with pytest.raises(BadRequest, match="too small or too narrow"):
        decode(file(picture((1, 2, 3), size)), FRAME)


@pytest.mark.slow
def test_a_bomb_is_refused_by_what_it_says_of_itself():
    with pytest.raises(BadRequest, match="larger than this server's limit"):
        decode(file(Image.new("1", (30000, 30000))), FRAME)


def png(*chunks):
    out = b"\x89PNG\r\n\x1a\n"
    for kind, data in chunks:
        out += len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")
    return out


HEADER = (b"IHDR", (8).to_bytes(4, "big") * 2 + bytes([8, 2, 0, 0, 0]))


@pytest.mark.slow
def test_more_pixels_than_the_header_says_do_no_harm():
    pixels, text = zlib.compress(bytes(8 * 25)), b"key\0\0" + zlib.compress(bytes(80 << 20), 9)
    with pytest.raises(BadRequest):  # a text that unpacks to much
        decode(png(HEADER, (b"zTXt", text), (b"IDAT", pixels), (b"IEND", b"")), FRAME)
    bomb = zlib.compress(bytes(50 << 20), 9)
    assert first(png(HEADER, (b"IDAT", bomb), (b"IEND", b"")))[:2] == (8, 8)


BROKEN = [
    b"",
    b"hello",
    b"\x89PNG\r\n\x1a\n",
    b"GIF89a",
    b"BM",
    b"\xff\xd8\xff",
    b"RIFF\0\0\0\0WEBP",
    b"<svg xmlns='http://www.w3.org/2000/svg'/>",
    b"%PDF-1.7",
    b"%!PS-Adobe-3.0 EPSF-3.0",
    file(picture((1, 2, 3), (64, 64)), "TIFF"),
    file(picture((1, 2, 3), (64, 64)), "ICO"),
    file(picture((1, 2, 3), (64, 64)), "TGA"),
]


@pytest.mark.parametrize("data", BROKEN)
def test_what_is_no_image_is_refused(data):
    with pytest.raises(BadRequest, match="Image parsing failed"):
        decode(data, FRAME)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP", "BMP"])
def test_a_truncated_file_is_refused_wherever_it_ends(kind):
    """If only an irrelevant end is missing, it may be read. Nothing else happens."""
    data = file(Image.effect_noise((40, 30), 90).convert("RGB"), kind)
    refused = 0
    for end in range(0, len(data) - 16, max(1, len(data) // 25)):
        try:
            decode(data[:end], FRAME)
        except BadRequest:
            refused += 1
    assert refused >= 20


@pytest.mark.parametrize(("mode", "color", "other", "first", "last"), [
    ("RGBA", (0, 0, 0, 0), (255, 255, 255, 255), 255, 0),  # transparent pixels, whatever their color
    ("LA", (255, 255), (0, 0), 0, 255),
    ("RGBA", (0, 0, 0, 255), (255, 255, 255, 255), 0, 255),  # without transparent pixels, white ones
    ("L", 0, 255, 0, 255),
    ("1", 1, 0, 255, 0),
])  # fmt: skip
def test_a_mask_is_white_where_the_image_is_to_change(mode, color, other, first, last):
    image = Image.new(mode, (4, 3), color)
    image.paste(other, (2, 0, 4, 3))
    height, width, pixels = decode(file(image, "PNG"), FRAME, mask=True)
    assert (height, width, pixels) == (3, 4, (bytes([first] * 6) + bytes([last] * 6)) * 3)
