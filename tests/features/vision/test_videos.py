"""Videos in requests: where they may be, which of their frames are read, and what is rejected. No engine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lean_ovms.api.app import App
from lean_ovms.errors import NO_VIDEO
from lean_ovms.features.media_files.images.decoder_pool import DecodeJob, DecoderPool
from lean_ovms.types import Image
from tests.api.conftest import MakeApp, post, whole
from tests.fakes import INFO, FakeEngine, say
from tests.pictures import data_url, user
from tests.pictures import part as image_part

FILM = "data:video/mp4;base64,AAAA"


def part(url: str) -> dict[str, Any]:
    return {"type": "video_url", "video_url": {"url": url}}


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[DecodeJob]:
    """Records what was decoded, to frames of one pixel."""
    found: list[DecodeJob] = []

    async def decode(pool: DecoderPool, job: DecodeJob) -> Image:
        found.append(job)
        return Image(1, 1, bytes(6), times=(0.0, 0.5), seconds=1.0) if job.video else Image(1, 1, bytes(3))

    monkeypatch.setattr(DecoderPool, "decode", decode)
    return found


@pytest.fixture
async def video_app(make_app: MakeApp) -> tuple[App, FakeEngine]:
    app, engine = await make_app(say("fine"), max_video_frames=64, max_video_bytes=1000)
    engine.info = replace(INFO, vision=True, video=True, image_tokens=["<|video_pad|>"])
    return app, engine


async def chat(app: App, *parts: Any, **more: Any) -> Any:
    return await post(app, "/v1/chat/completions", {"model": "m", "messages": [user(*parts)], **more})


async def refusal(app: App, *parts: Any, **more: Any) -> tuple[str, str]:
    response = await chat(app, *parts, **more)
    assert response.status == 400
    error = (await whole(response))["error"]
    return error["message"], error["param"]


async def test_a_video_becomes_a_tag_and_its_frames(video_app: tuple[App, FakeEngine], jobs: list[DecodeJob]) -> None:
    app, engine = video_app
    assert (await chat(app, "see:", part(FILM), image_part(data_url()))).status == 200
    assert engine.submitted[0][0] == "user:see:\n<ov_genai_image_0>\n<ov_genai_image_1>;"
    video, image = engine.images[0]
    assert (video.times, video.seconds, video.param) == ((0.0, 0.5), 1.0, "messages[0].content[1].video_url.url")
    assert image.times == ()
    assert jobs[0].video is not None
    assert (jobs[0].video.num_frames, jobs[0].video.fps, jobs[0].video.images) == (32, 0.0, False)
    assert jobs[1].video is None
    for listed in (False, True):
        url = "data:video/jpeg;base64,AAAA,BBBB" if listed else FILM
        assert (await chat(app, {"type": "video_url", "video_url": url})).status == 200
        assert jobs[-1].video is not None
        assert jobs[-1].video.images is listed


async def test_options_of_videos(make_app: MakeApp, jobs: list[DecodeJob], monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[float] = []
    init = DecoderPool.__init__

    def noted(pool: DecoderPool, most: int, timeout_s: float) -> None:
        limits.append(timeout_s)
        init(pool, most, timeout_s)

    monkeypatch.setattr(DecoderPool, "__init__", noted)
    options = {"max_video_s": 9.0, "max_video_pixels": 5000, "video_num_frames": 3, "video_timeout_s": 7.0}
    app, engine = await make_app(say("fine"), **options)
    engine.info = replace(INFO, vision=True, video=True)
    assert (await chat(app, part(FILM))).status == 200
    assert jobs[0].video is not None
    assert (jobs[0].video.max_s, jobs[0].video.total_pixels, jobs[0].video.num_frames) == (9.0, 5000, 3)
    assert 7.0 in limits


@pytest.mark.parametrize(
    ("video", "frames"),
    [
        ({"num_frames": 5, "fps": 2}, (5, 2)),
        ({"num_frames": -1}, (64, 0)),
        ({"fps": -1}, (32, 0)),
        ({"num_frames": None, "backend": "opencv"}, (32, 0)),
        (None, (32, 0)),
    ],
)
async def test_frames_that_a_request_asks_for(
    video: Any, frames: tuple[int, float], video_app: tuple[App, FakeEngine], jobs: list[DecodeJob]
) -> None:
    response = await chat(video_app[0], part(FILM), media_io_kwargs={"video": video, "image": {"any": 1}})
    assert response.status == 200
    assert jobs[0].video is not None
    assert (jobs[0].video.num_frames, jobs[0].video.fps) == frames


@pytest.mark.parametrize(
    ("video", "field"),
    [
        ({"num_frames": 0}, ".num_frames"),
        ({"num_frames": True}, ".num_frames"),
        ({"num_frames": 65}, ".num_frames"),
        ({"fps": 0}, ".fps"),
        ({"fps": 1e9}, ".fps"),
        ({"fps": "2"}, ".fps"),
        (7, ""),
    ],
)
async def test_wrong_numbers_of_frames(
    video: Any, field: str, video_app: tuple[App, FakeEngine], jobs: list[DecodeJob]
) -> None:
    _, param = await refusal(video_app[0], part(FILM), media_io_kwargs={"video": video})
    assert param == f"media_io_kwargs.video{field}"
    assert not jobs


async def test_models_without_videos_refuse_them(make_app: MakeApp) -> None:
    app, engine = await make_app(say("fine"))
    assert await refusal(app, part(FILM)) == (
        "This servable supports only text input, but video_url has been provided",
        "messages[0].content[0]",
    )
    engine.info = replace(INFO, vision=True)
    assert await refusal(app, "see", part(FILM)) == (NO_VIDEO, "messages[0].content[1]")


async def test_errors_speak_of_the_video_and_name_its_part(video_app: tuple[App, FakeEngine]) -> None:
    field = "messages[0].content[0].video_url.url"
    for content, param in (({}, field.removesuffix(".url")), ({"video_url": {"uri": FILM}}, field)):
        message, named = await refusal(video_app[0], {"type": "video_url", **content})
        assert ("video_url" in message, named) == (True, param)
    assert await refusal(video_app[0], part("data:video/mp4;base64," + "A" * 2000)) == (
        "the video is larger than this server's limit of 1000 bytes",
        field,
    )
    message, param = await refusal(video_app[0], part("http://example.com/film.mp4"))
    assert "allowed_media_domains" in message
    assert param == field
    assert await refusal(video_app[0], part("/film.mp4")) == (
        "Loading videos from local filesystem is disabled.",
        field,
    )


async def test_a_video_may_be_an_uploaded_file(
    make_app: MakeApp, jobs: list[DecodeJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[tuple[str, int]]()

    async def uploaded(services: Any, file_id: str, most: int, instead: str) -> tuple[str, bytes]:
        asked.append((file_id, most))
        return "a.mp4", b"film"

    monkeypatch.setattr("lean_ovms.features.vision.content.uploaded", uploaded)
    app, engine = await make_app(say("fine"), max_image_bytes=100, max_video_bytes=200)
    engine.info = replace(INFO, vision=True, video=True)
    by_id = {"type": "video_url", "video_url": {"file_id": "file-1"}}
    assert (await chat(app, by_id)).status == 200
    assert (asked, bytes(jobs[0].data), jobs[0].video is not None) == ([("file-1", 200)], b"film", True)  # type: ignore[arg-type]
    engine.info = replace(INFO, vision=True)
    assert await refusal(app, by_id) == (NO_VIDEO, "messages[0].content[0]")
