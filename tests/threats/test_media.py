"""Attacks with images: on other hosts and files, on the decoder, on the prompt. No test needs the network."""

from __future__ import annotations

import asyncio
import io
import socket
import zlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from PIL import Image

from lean_ovms.api.app import App
from lean_ovms.config import Config
from lean_ovms.features.media_files.feature import ImageFileOptions
from lean_ovms.features.media_files.images.loader import ImageLoader
from lean_ovms.models.text_model import TextModel
from lean_ovms.server.run import close
from lean_ovms.types import Request
from tests.fakes import INFO, FakeEngine, say
from tests.features.images.fakes import fake_image_model
from tests.forms import form_request
from tests.pictures import data_url, file, part, picture, user


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[App]:
    """A model with vision, with hosts and a folder that it may read, and a secret next to the folder."""
    (tmp_path / "secret.png").write_bytes(file(picture("red")))
    folder = tmp_path / "images"
    folder.mkdir()
    (folder / "zebra.png").write_bytes(file(picture("red")))
    (folder / "link.png").symlink_to(tmp_path / "secret.png")
    config = Config(
        fake_engine=True,
        model_name="m",
        access_log=False,
        allowed_media_domains="images.example",
        allowed_local_media_path=str(folder),
        max_image_pixels=1 << 20,
    )
    engine = FakeEngine(say("fine"))
    engine.info = replace(INFO, vision=True, image_tokens=["<image>", "<|image_pad|>"])
    app = App(config, [TextModel(config, engine)])  # type: ignore[arg-type]
    await next(iter(app.registry.models.values())).load()
    yield app
    assert app.services.get(ImageLoader)._pixels.used == 0
    await close(app)


async def ask(app: App, *content: Any) -> tuple[int, str]:
    """Returns the status, and the message of the error."""
    body = orjson.dumps({"model": "m", "messages": [user(*content)]})
    headers = {"content-type": "application/json"}
    response = await app.handle(Request("POST", "/v1/chat/completions", headers=headers, body=body))
    assert isinstance(response.body, bytes)
    answer = orjson.loads(response.body)
    await response.aclose()
    if response.status != 200:
        assert answer["error"]["param"]
    return response.status, answer.get("error", {}).get("message", "")


async def show(app: App, data: bytes) -> tuple[int, str]:
    import base64

    return await ask(app, part("data:image/png;base64," + base64.b64encode(data).decode()))


async def test_t17_no_url_reaches_inside(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """tests/features/media_files/images has all spellings of addresses. Here, a name that is listed points inside (DNS
    rebinding), and others are not even looked up."""
    names: list[str] = []

    def resolve(host: str, port: int, **_: Any) -> Any:
        names.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("169.254.169.254", port))]

    async def connect(*_: Any, **__: Any) -> Any:
        raise AssertionError("it was connected to")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(asyncio, "open_connection", connect)
    for url in (
        "http://127.0.0.1/",
        "http://images.example@127.0.0.1/",
        "https://example.com/a.png",
        "ftp://a.example/",
    ):
        status, said = await ask(app, part(url))
        assert (status, names) == (400, [])
        assert said
    status, said = await ask(app, part("http://images.example/a.png"))
    assert (status, names) == (400, ["images.example"])
    assert "169.254" not in said


def png(width: int, height: int, data: bytes) -> bytes:
    header = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([8, 2, 0, 0, 0])
    out = b"\x89PNG\r\n\x1a\n"
    for kind, body in ((b"IHDR", header), (b"IDAT", data), (b"IEND", b"")):
        out += len(body).to_bytes(4, "big") + kind + body + zlib.crc32(kind + body).to_bytes(4, "big")
    return out


WEAPONS = {
    "extreme aspect": lambda: file(picture("red", (3000, 2))),
    "a bomb by its header": lambda: png(60000, 60000, zlib.compress(bytes(1000))),
    "a bomb by its data": lambda: file(Image.new("1", (20000, 20000))),
    "truncated": lambda: file(Image.effect_noise((64, 64), 90))[:900],
    "no image": lambda: b"\0" * 1000,
}
"""Functions that make hostile files."""


async def test_t18_an_image_that_is_a_weapon_is_refused_and_the_next_is_served(app: App) -> None:
    for name, make in WEAPONS.items():
        status, said = await show(app, make())
        assert status == 400, name
        assert "Traceback" not in said
        assert await show(app, file(picture("red"))) == (200, "")


async def test_t18_an_image_to_edit_that_is_a_weapon_is_refused_and_the_next_is_edited() -> None:
    model, engine = await fake_image_model()
    app = App(model.config, [model])
    good = ("a.png", file(picture("red")))
    for field, name in (("image", "a bomb by its header"), ("mask", "a bomb by its data"), ("mask", "no image")):
        for data, status in ((WEAPONS[name](), 400), (good[1], 200)):
            files = {"image": good, field: ("a.png", data)}
            response = await app.handle(form_request("/v1/images/edits", [("prompt", "x"), *files.items()]))
            assert isinstance(response.body, bytes)
            assert response.status == status
            assert status == 200 or orjson.loads(response.body)["error"]["param"] == field
            await response.aclose()
    assert len(engine.asked) == 3
    assert (app.services.get(ImageLoader)._pixels.used, app.services.bodies.used) == (0, 0)
    await close(app)


async def test_t18_of_a_hundred_thousand_frames_one_is_unpacked(app: App) -> None:
    out = io.BytesIO()
    frame = picture("red", (4, 4))
    frame.save(out, "GIF", save_all=True, append_images=[picture("blue", (4, 4)), frame])
    data = out.getvalue()
    start = data.index(b"\x21\xf9", 20)  # repeats the frames after the first
    second = data[data.index(b"\x21\xf9", start + 2) : -1]
    assert await show(app, data[:-1] + second * 100_000 + b";") == (200, "")


async def test_t19_text_that_stands_for_an_image_is_refused(app: App) -> None:
    for text in ("<ov_genai_image_0>", "a<ov_genai_video_1>", "<ov_genai_", "<image>", "x<|image_pad|>y"):
        status, said = await ask(app, text, part(data_url()))
        assert status == 400
        assert "Message contains" in said
        assert (await ask(app, text))[0] == 400


async def test_t32_a_path_that_leads_out_of_the_folder_is_refused_and_one_inside_is_served(app: App) -> None:
    folder = app.config.of(ImageFileOptions).allowed_local_media_path
    for path in ("{}/../secret.png", "file://{}/%2e%2e/secret.png", "link.png", "{}/zebra.png\0", "/etc/passwd", "{}"):
        status, said = await ask(app, part(path.format(folder)))
        assert status == 400
        assert folder not in said
    for path in ("{}/zebra.png", "zebra.png", "file://{}/zebra.png"):
        assert await ask(app, part(path.format(folder))) == (200, "")
