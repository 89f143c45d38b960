"""Bodies and images of all requests have memory budgets, and a request returns its share at its end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lean_ovms.api.app import BODY_FACTOR, LARGE_BODY, App
from lean_ovms.config import Config
from lean_ovms.features.media_files.images.decoder_pool import DecodeJob
from lean_ovms.features.media_files.images.loader import ImageLoader, ImageRequest
from lean_ovms.types import Image, Request
from lean_ovms.util import concurrency
from tests.api.conftest import MakeApp, post, whole
from tests.fakes import say
from tests.waiting import cancel

CHAT = "/v1/chat/completions"
IMAGE = ImageRequest(url="data:image/png;base64,AAAA", detail="auto", param="x")


def large(size: int = 400_000, **fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "hi"}], "user": "x" * size, **fields}


async def turns(app: App) -> None:
    for _ in range(200):
        await asyncio.sleep(0.001)
        if app.services.bodies.waiting:
            break


@pytest.mark.parametrize("stream", [False, True])
async def test_a_large_body_counts_until_its_response_is_closed(make_app: MakeApp, stream: bool) -> None:
    app, _ = await make_app(say("a"), max_body_memory_mb=1)
    first = await post(app, CHAT, large(stream=stream))
    assert app.services.bodies.used > BODY_FACTOR * 400_000
    second = asyncio.ensure_future(post(app, CHAT, large()))
    await turns(app)
    assert app.services.bodies.waiting
    assert not second.done()
    # A small request still works.
    assert (await whole(await post(app, CHAT, large(100))))["object"] == "chat.completion"
    await first.aclose()
    assert (await second).status == 200
    await (await second).aclose()
    assert (app.services.bodies.used, app.services.bodies.waiting) == (0, 0)


async def test_t37_the_large_bodies_of_one_client_leave_room_for_those_of_others(make_app: MakeApp) -> None:
    app, _ = await make_app(say("a"), max_body_memory_mb=1, trusted_proxies="all")
    first = await post(app, CHAT, large(300_000), x_forwarded_for="10.0.0.1")
    second = asyncio.ensure_future(post(app, CHAT, large(100_000), x_forwarded_for="10.0.0.1"))
    await turns(app)
    assert not second.done()
    assert (await whole(await post(app, CHAT, large(200_000), x_forwarded_for="10.0.0.2")))["object"]
    await first.aclose()
    await (await second).aclose()
    assert (app.services.bodies.used, app.services.bodies.waiting) == (0, 0)


async def test_who_leaves_while_a_body_waits_or_works_gives_it_back(make_app: MakeApp) -> None:
    app, _ = await make_app(say("a"), max_body_memory_mb=1)
    first = await post(app, CHAT, large())
    second = asyncio.ensure_future(post(app, CHAT, large()))
    await turns(app)
    await cancel(second)
    assert app.services.bodies.waiting == 0
    await first.aclose()
    assert app.services.bodies.used == 0


async def test_bodies_that_wait_too_long_or_too_many_get_503(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(concurrency, "MAX_WAIT_S", 0.05)
    app, _ = await make_app(say("a"), max_body_memory_mb=1, max_body_bytes=500_000)
    first = await post(app, CHAT, large())
    answers = await asyncio.gather(*(post(app, CHAT, large()) for _ in range(8)))
    assert [answer.status for answer in answers] == [503] * 8
    assert all(("Retry-After", "2") in answer.headers for answer in answers)
    assert (await whole(answers[0]))["error"]["code"] == "too_many_large_requests"
    await first.aclose()
    assert (await post(app, CHAT, large())).status == 200


async def test_errors_give_bodies_back_and_the_raw_body_is_freed(make_app: MakeApp) -> None:
    app, _ = await make_app(say("a"))
    for body in (b"[" * LARGE_BODY, b"{}" + b" " * LARGE_BODY):
        response = await post(app, CHAT, body)
        assert response.status == 400
        await response.aclose()
    request = Request("POST", CHAT, headers={"content-type": "application/json"}, body=b"{}" + b" " * LARGE_BODY)
    await (await app.handle(request)).aclose()
    assert request.body == b""
    assert app.services.bodies.used == 0


async def test_pixels_of_all_requests_have_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request reserves the most that it may need, keeps what its images take, and further requests wait."""
    loader = ImageLoader(Config(max_image_pixels=100, max_pixels_in_work=150))
    running = most = 0

    async def decode(job: DecodeJob) -> Image:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return Image(6, 5, bytes(90))

    monkeypatch.setattr(loader._images.decoders, "decode", decode)
    loads = [asyncio.ensure_future(loader.load([IMAGE, IMAGE])) for _ in range(6)]
    for _ in range(3):
        while sum(load.done() for load in loads) < 2:
            await asyncio.sleep(0.001)
        for _ in range(100):
            await asyncio.sleep(0)
        done = [load for load in loads if load.done()]
        assert len(done) == 2  # 2 * 30 are reserved, and 100 more do not fit
        for load in done:
            load.result()[1].release()
            loads.remove(load)
    assert (loads, most, loader._pixels.used) == ([], 1, 0)


async def test_images_that_fail_give_their_pixels_back(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = ImageLoader(Config(max_image_pixels=100, max_pixels_in_work=150))

    async def decode(job: DecodeJob) -> Image:
        raise OSError("broken")

    monkeypatch.setattr(loader._images.decoders, "decode", decode)
    with pytest.raises(OSError, match="broken"):
        await loader.load([IMAGE])
    assert loader._pixels.used == 0
