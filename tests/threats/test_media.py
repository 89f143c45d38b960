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


# --- T17: addresses that reach inside

INSIDE = [
    "http://127.0.0.1/",
    "http://localhost/",
    "http://169.254.169.254/latest/meta-data/",
    "http://[::1]/",
    "http://[::ffff:127.0.0.1]/",
    "http://2130706433/",
    "http://0x7f000001/",
    "http://0177.0.0.1/",
    "http://127.1/",
    "http://images.example@127.0.0.1/",
    "http://images.example:80@127.0.0.1/",
    "http://127.0.0.1#@images.example/",
    "http://127.0.0.1\\@images.example/",
    "http://images.example\\@127.0.0.1/",
    "http://images.example.evil.example/",
    "http://evil.example/images.example",
    "http://images.example./",
    "http://images\u3002example/",
    "http://im\u0430ges.example/",
    "http://images.example%00.evil.example/",
    "http://images.example%2eevil.example/",
    "http://images.example\t.evil.example/",
    "ftp://images.example/",
    "gopher://images.example/",
    "file://images.example/etc/passwd",
    "dict://127.0.0.1:11211/",
]


@pytest.mark.parametrize("url", INSIDE)
async def test_t17_hosts_that_are_not_listed_are_refused_unresolved(
    app: App, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    async def resolve(*_: Any, **__: Any) -> Any:
        raise AssertionError("it was looked up")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
    status, said = await ask(app, part(url))
    assert status == 400
    assert said


@pytest.mark.parametrize("address", ["127.0.0.1", "169.254.169.254", "10.0.0.1", "::1", "::ffff:10.0.0.1", "fd00::1"])
async def test_t17_a_listed_name_that_points_inside_is_refused_unconnected(
    app: App, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    """DNS rebinding: the connection goes to the checked address, and the name is looked up only once."""
    names: list[str] = []

    async def resolve(host: str, port: int, **_: Any) -> Any:
        names.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    async def connect(*_: Any, **__: Any) -> Any:
        raise AssertionError("it was connected to")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
    monkeypatch.setattr(asyncio, "open_connection", connect)
    status, said = await ask(app, part("http://images.example/a.png"))
    assert (status, names) == (400, ["images.example"])
    assert address not in said


async def test_t17_without_a_list_nothing_is_fetched(app: App) -> None:
    status, said = await ask(app, part("https://example.com/a.png"))
    assert status == 400
    assert "allowed_media_domains" in said


# --- T18: images that are weapons


def png(width: int, height: int, data: bytes) -> bytes:
    header = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([8, 2, 0, 0, 0])
    out = b"\x89PNG\r\n\x1a\n"
    for kind, body in ((b"IHDR", header), (b"IDAT", data), (b"IEND", b"")):
        out += len(body).to_bytes(4, "big") + kind + body + zlib.crc32(kind + body).to_bytes(4, "big")
    return out


WEAPONS = {
    "one pixel": lambda: file(picture("red", (1, 1))),
    "a line": lambda: file(picture("red", (1, 3000))),
    "extreme aspect": lambda: file(picture("red", (3000, 2))),
    "a bomb by its header": lambda: png(60000, 60000, zlib.compress(bytes(1000))),
    "a bomb by its data": lambda: file(Image.new("1", (20000, 20000))),
    "nothing behind the header": lambda: png(64, 64, b""),
    "truncated": lambda: file(Image.effect_noise((64, 64), 90))[:900],
    "no image": lambda: b"\0" * 1000,
    "another format": lambda: file(picture("red"), "TIFF"),
}
"""Functions that make hostile files, called only by the test that needs one, because every process of a run reads
this file."""


@pytest.mark.parametrize("name", WEAPONS)
async def test_t18_an_image_that_is_a_weapon_is_refused_and_the_next_is_served(app: App, name: str) -> None:
    status, said = await show(app, WEAPONS[name]())
    assert status == 400
    assert "Traceback" not in said
    assert await show(app, file(picture("red"))) == (200, "")


@pytest.mark.parametrize("name", ["a bomb by its header", "a bomb by its data", "truncated", "no image"])
@pytest.mark.parametrize("field", ["image", "mask"])
async def test_t18_an_image_to_edit_that_is_a_weapon_is_refused_and_the_next_is_edited(name: str, field: str) -> None:
    model, engine = await fake_image_model()
    app = App(model.config, [model])
    good = ("a.png", file(picture("red")))
    for data, status in ((WEAPONS[name](), 400), (good[1], 200)):
        files = {"image": good, field: ("a.png", data)}
        response = await app.handle(form_request("/v1/images/edits", [("prompt", "x"), *files.items()]))
        assert isinstance(response.body, bytes)
        assert response.status == status
        assert status == 200 or orjson.loads(response.body)["error"]["param"] == field
        await response.aclose()
    assert len(engine.asked) == 1
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


# --- T19: what stands for an image in the text


@pytest.mark.parametrize(
    "text",
    ["<ov_genai_image_0>", "<ov_genai_image_1>", "a<ov_genai_video_0>", "<ov_genai_", "<image>", "x<|image_pad|>y"],
)
async def test_t19_text_that_stands_for_an_image_is_refused(app: App, text: str) -> None:
    status, said = await ask(app, text, part(data_url()))
    assert status == 400
    assert "Message contains" in said
    assert (await ask(app, text))[0] == 400


# --- T32: paths that lead out


@pytest.mark.parametrize(
    "path",
    [
        "{}/../secret.png",
        "../secret.png",
        "file://{}/../secret.png",
        "file://{}/%2e%2e/secret.png",
        "{}/%2e%2e/secret.png",
        "{}/..%2fsecret.png",
        "{}/link.png",
        "link.png",
        "{}/zebra.png\0",
        "file://{}/zebra.png%00.txt",
        "/proc/self/environ",
        "/etc/passwd",
        "file:///etc/passwd",
        "{}",
    ],
)
async def test_t32_a_path_that_leads_out_of_the_folder_is_refused(app: App, path: str) -> None:
    folder = app.config.of(ImageFileOptions).allowed_local_media_path
    status, said = await ask(app, part(path.format(folder)))
    assert status == 400
    assert folder not in said


@pytest.mark.parametrize("path", ["{}/zebra.png", "zebra.png", "file://{}/zebra.png"])
async def test_t32_a_path_inside_is_served(app: App, path: str) -> None:
    assert await ask(app, part(path.format(app.config.of(ImageFileOptions).allowed_local_media_path))) == (200, "")
