"""Videos: which frames are taken, how they become pixels, and what is rejected."""

import base64
import io

import pytest

from lean_ovms.errors import BadRequest
from lean_ovms.features.media_files.images import video
from lean_ovms.features.media_files.images.decoder_pool import DecodeJob, DecoderPool
from lean_ovms.features.media_files.images.frame_limits import FrameLimits
from tests.pictures import file, picture

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
