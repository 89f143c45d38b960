"""Files of images and videos: what becomes of them, which frames are taken, and what is refused."""

import base64
import io
import zlib

import pytest
from PIL import Image

from lean_ovms.errors import BadRequest
from lean_ovms.features.media_files.images import video
from lean_ovms.features.media_files.images.decoder_pool import DecodeJob, DecoderPool
from lean_ovms.features.media_files.images.frame_limits import FrameLimits
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


def test_transparent_values_of_16_bits_become_white():
    grey = picture(0x80FF, (5, 4), "I;16")
    assert first(file(grey, transparency=0x80FF))[2] == (255, 255, 255)
    assert first(file(grey, transparency=0x80FE))[2] == (128, 128, 128)


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
    with pytest.raises(BadRequest, match="larger than the 1048576 pixels that are left"):
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


MOST = 1 << 20


def limits(**changes):
    return FrameLimits(**{"num_frames": 8, "fps": 0.0, "total_pixels": MOST, "max_s": 60.0, "images": False, **changes})


def film(count=20, size=(64, 48), kind="mp4", codec="mpeg4", rate=10):
    """Returns a file whose frames become brighter."""
    av = pytest.importorskip("av")
    out = io.BytesIO()
    with av.open(out, "w", format=kind) as container:
        stream = container.add_stream(codec, rate=rate)
        stream.width, stream.height = size
        stream.pix_fmt = "rgb8" if kind == "gif" else "yuvj420p" if codec == "mjpeg" else "yuv420p"
        for number in range(count):
            frame = av.VideoFrame.from_image(picture((10 * number,) * 3, size))
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return out.getvalue()


def images(*files):
    return b",".join(map(base64.b64encode, files))


@pytest.mark.parametrize(
    ("changes", "total", "wanted"),
    [
        ({}, 3, [0, 1, 2]),
        ({}, 20, [0, 2, 5, 8, 10, 13, 16, 19]),
        ({"num_frames": 2}, 20, [0, 19]),
        ({"num_frames": 1}, 20, [0]),
        ({"fps": 2.0}, 20, [0, 6, 12, 19]),
        ({"fps": 0.1}, 20, [0]),
        ({"fps": 9.0}, 20, [0, 2, 5, 8, 10, 13, 16, 19]),
    ],
)
def test_frames_are_sampled_evenly_with_the_first_and_the_last(changes, total, wanted):
    assert limits(**changes).sampled(total, total / 10) == wanted


@pytest.mark.parametrize(("kind", "codec"), [("mp4", "mpeg4"), ("matroska", "mjpeg"), ("avi", "mpeg4")])
def test_frames_of_a_file(kind, codec):
    found = video.decode(film(kind=kind, codec=codec), MOST, limits(num_frames=5))
    assert (found.times, found.seconds) == ([0.0, 0.4, 0.9, 1.4, 1.9], 2.0)
    assert [frame.getpixel((30, 20))[1] for frame in found.frames] == pytest.approx([0, 40, 90, 140, 190], abs=6)


def test_an_animated_gif_is_a_video():
    frames = [picture(colour, (8, 6)) for colour in ("red", "blue")]
    out = io.BytesIO()
    frames[0].save(out, "GIF", save_all=True, append_images=frames[1:], duration=500)
    pytest.importorskip("av")
    found = video.decode(out.getvalue(), MOST, limits())
    assert [frame.getpixel((2, 2)) for frame in found.frames] == [(220, 30, 30), (40, 60, 220)]


def test_frames_are_scaled_down_to_the_limit_of_all():
    found = video.decode(film(), MOST, limits(num_frames=4, total_pixels=4 * 32 * 24))
    assert [frame.size for frame in found.frames] == [(32, 24)] * 4


def test_a_list_of_images_is_a_video_of_one_frame_a_second():
    data = images(*(file(picture(colour, (8, 6)), "JPEG") for colour in ("red", "green", "blue")))
    found = video.decode(data, MOST, limits(images=True))
    assert (found.times, found.seconds, len(found.frames)) == ([0.0, 1.0, 2.0], 3.0, 3)
    faster = video.decode(data, MOST, limits(images=True, fps=4.0, num_frames=2))
    assert (faster.times, faster.seconds, len(faster.frames)) == ([0.0, 0.5], 0.75, 2)


@pytest.mark.parametrize(
    ("data", "changes", "text"),
    [
        (b"#EXTM3U\nfile:///etc/passwd", {}, "not one of MP4"),
        (b"ffconcat version 1.0\nfile a.mp4", {}, "not one of MP4"),
        (b"\0\0\0\x18ftypmp42broken", {}, "broken"),
        (images(file(picture(size=(8, 6))), file(picture(size=(6, 8)))), {"images": True}, "different sizes"),
        (b"AAAA,!", {"images": True}, "not one of JPEG"),
        (b"AAAA,AAAA", {"images": True, "fps": 1e-12}, r"2e\+12 s is longer than this server's limit of 60 s"),
    ],
)
def test_what_is_no_video_is_refused(data, changes, text):
    pytest.importorskip("av")
    with pytest.raises(BadRequest, match=text):
        video.decode(data, MOST, limits(**changes))


@pytest.mark.parametrize(
    ("most", "changes", "text"),
    [
        (100, {}, "larger than this server's limit"),
        (MOST, {"max_s": 1.0}, "2 s is longer than this server's limit of 1 s"),
        (MOST, {"total_pixels": 8}, "too many"),
    ],
)
def test_a_video_beyond_a_limit_is_refused(most, changes, text):
    with pytest.raises(BadRequest, match=text):
        video.decode(film(), most, limits(**changes))


@pytest.mark.slow
async def test_a_process_decodes_videos_within_its_limits():
    data = film()
    pool = DecoderPool(1, 60.0)
    try:
        found = await pool.decode(DecodeJob(data=data, max_pixels=MOST, video=limits()))
        assert (found.height, found.width, len(found.times), found.seconds) == (48, 64, 8, 2.0)
        assert len(found.pixels) == 8 * 48 * 64 * 3
        text = base64.b64encode(data).decode()
        again = await pool.decode(DecodeJob(data=text, max_pixels=MOST, video=limits()))
        assert again.content() == found.content()
        with pytest.raises(BadRequest, match="not one of"):
            await pool.decode(DecodeJob(data=b"no video at all", max_pixels=MOST, video=limits()))
    finally:
        pool.stop()
