"""/images/generations, edits and variations: all fields, limits and errors."""

from __future__ import annotations

import asyncio
import base64
import io
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from lean_ovms.api.app import App
from lean_ovms.config import Config
from lean_ovms.errors import StartError
from lean_ovms.features.images.child.fake_pipeline import RAISE
from lean_ovms.features.images.params import ImageInfo
from lean_ovms.features.media_files.images import pillow
from lean_ovms.features.media_files.images.decoder_pool import DecodeJob, DecoderPool
from lean_ovms.features.media_files.images.loader import ImageLoader
from lean_ovms.models.text_model import TextModel
from lean_ovms.types import Image as Pixels
from lean_ovms.types.push import Sink
from tests.api.conftest import apps_of, events, get, post, refused, warnings_of, whole
from tests.fakes import FakeEngine, say
from tests.features.images.fakes import FakeImageEngine, fake_image_model
from tests.features.named_keys.files import ALICE, written
from tests.forms import Part, form_request
from tests.waiting import until

PATH, EDITS, VARIATIONS = "/v1/images/generations", "/v1/images/edits", "/v1/images/variations"
MakeImages = Callable[..., Awaitable[tuple[App, FakeImageEngine]]]


@pytest.fixture
async def make_images() -> AsyncIterator[MakeImages]:
    """Returns make_images(**options) -> (app, engine), loaded. The model's name is "e"."""
    async with apps_of(fake_image_model) as make:
        yield make


async def answered(app: App, **body: Any) -> dict[str, Any]:
    response = await post(app, PATH, {"prompt": "a cat", **body})
    assert response.status == 200, response.body
    found: dict[str, Any] = await whole(response)
    return found


def opened(entry: dict[str, Any]) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(entry["b64_json"])))


async def test_a_png_file(make_images: MakeImages) -> None:
    app, engine = await make_images()
    response = await post(app, PATH, {"model": "e", "prompt": "a cat", "n": None})
    found = await whole(response)
    [entry] = found["data"]
    with opened(entry) as file:
        assert (file.format, file.size) == ("PNG", (64, 64))
    assert (found["output_format"], found["size"], found["created"] > 1e9) == ("png", "64x64", True)
    assert found["background"] == "opaque"
    [(prompt, params, begun)] = engine.asked
    assert (prompt, params.steps, params.seed, params.more, begun) == ("a cat", 4, entry["seed"], {}, False)
    assert not warnings_of(response)
    assert len({(await answered(app))["data"][0]["seed"] for _ in range(4)}) > 1
    assert len({(await answered(app, seed=-1))["data"][0]["seed"] for _ in range(4)}) > 1


WEBP: dict[str, Any] = {"output_format": "webp", "output_compression": 40}


async def test_every_field_of_a_pipeline_reaches_it(make_images: MakeImages) -> None:
    app, engine = await make_images()
    more = {
        "prompt_2": "b", "prompt_3": "c", "negative_prompt": "d", "negative_prompt_2": "e", "negative_prompt_3": "f",
        "guidance_scale": 3.5, "max_sequence_length": 64,
    }  # fmt: skip
    found = await answered(app, num_inference_steps=7, rng_seed=5, size="16x24", **WEBP, **more)
    with opened(found["data"][0]) as file:
        assert (file.format, found["output_format"]) == ("WEBP", "webp")
    [(_, params, _)] = engine.asked
    assert (params.steps, params.seed, params.width, params.height, params.more) == (7, 5, 16, 24, more)
    assert params.compression == 40
    await answered(app, seed=6, width=40)
    assert (engine.asked[1][1].seed, engine.asked[1][1].width, engine.asked[1][1].height) == (6, 40, 64)


@pytest.mark.parametrize("name", ["n", "num_images_per_prompt"])
async def test_each_image_has_the_next_seed(make_images: MakeImages, name: str) -> None:
    app, engine = await make_images()
    found = await answered(app, rng_seed=2**32 - 2, **{name: 3})
    assert [entry["seed"] for entry in found["data"]] == [2**32 - 2, 2**32 - 1, 0]
    assert [begun for *_, begun in engine.asked] == [False, True, True]
    long = await answered(app, seed=-(2**40) - 2, n=3)
    assert [entry["seed"] for entry in long["data"]] == [2**32 - 2, 2**32 - 1, 0]
    alone = await answered(app, seed=0)
    assert alone["data"][0]["b64_json"] == found["data"][2]["b64_json"] != found["data"][1]["b64_json"]


REFUSED: list[tuple[Any, ...]] = [
    ({"size": "30000x30000"}, "size", "size 30000x30000 is larger than 2048x2048, the limit of this server"),
    ({"width": 2049}, "size", "size 2049x64 is larger than 2048x2048"),
    ({"height": 10**12}, "size", "is larger than 2048x2048"),
    ({"num_inference_steps": 10_000}, "num_inference_steps", "10000 is more than 100, the limit of this server"),
    ({"n": 1000}, "n", "n 1000 is more than 10, the limit of this server"),
    ({"num_images_per_prompt": 11}, "n", "11 is more than 10"),
    ({"prompt": "x" * 32_001}, "prompt", "prompt has 32001 characters, more than 32000"),
    ({"negative_prompt": "x" * 32_001}, "negative_prompt", "more than 32000"),
    ({"prompt": " "}, "prompt", "prompt is empty"),
    ({"prompt": None}, "prompt", "prompt field is missing in JSON body"),
    ({"n": 2, "num_images_per_prompt": 2}, "num_images_per_prompt", "cannot be used together"),
    ({"seed": 2, "rng_seed": 2}, "seed", "cannot be used together"),
    ({"size": "64x64", "width": 64}, "size", "cannot be used together"),
    ({"size": "64"}, "size", "size must be auto or WIDTHxHEIGHT in pixels, such as 512x512"),
    ({"size": "064x64"}, "size", "size must be auto"),
    ({"size": "-64x64"}, "size", "size must be auto"),
    ({"response_format": "url"}, "response_format", "Unsupported response_format: url. Only b64_json is supported."),
    ({"output_compression": 50}, "output_compression", "output_compression is not supported for png; use jpeg or webp"),
    ({"partial_images": 1}, "partial_images", "partial_images requires stream to be true"),
    ({"size": "4096x64", "stream": True}, "size", "larger than 2048x2048"),
]


async def test_what_is_refused_says_what_is_allowed_before_any_work(make_images: MakeImages) -> None:
    app, engine = await make_images()
    for body, param, text in REFUSED:
        message, named = await refused(app, PATH, **{"prompt": "a cat", **body})
        assert named == param, body
        assert text in message, body
        assert engine.asked == [], body
    message, param = await refused(app, PATH, prompt="a cat", size="65x64")  # what only the model knows
    assert ("must be divisible by 8" in message, param) == (True, "size")
    message, _ = await refused(app, PATH, status=500, prompt=RAISE)
    assert message == "The engine could not process this request."


async def test_fields_without_effect_are_named(make_images: MakeImages) -> None:
    app, _ = await make_images()
    body = {"prompt": "a cat", "quality": "hd", "style": "vivid", "background": "auto", "user": "u", "strength": 0.5}
    found = " ".join(warnings_of(await post(app, PATH, body)))
    assert [name for name in body if f"{name} is not supported" in found] == ["quality", "style", "strength"]
    [warning] = warnings_of(await post(app, PATH, {"prompt": "x", "negativ_prompt": "y"}))
    assert "did you mean negative_prompt?" in warning


async def test_options_set_sizes_and_limits(make_images: MakeImages) -> None:
    limits = {"max_resolution": "128x64", "max_num_images_per_prompt": 2, "max_num_inference_steps": 3}
    app, engine = await make_images(default_num_inference_steps=2, default_resolution="96x32", **limits)
    assert (await answered(app, size="auto"))["size"] == "96x32"
    assert (await answered(app, height=64))["size"] == "96x64"
    assert {params.steps for _, params, _ in engine.asked} == {2}
    assert (await refused(app, PATH, prompt="x", size="64x72"))[1] == "size"
    assert (await refused(app, PATH, prompt="x", n=3))[1] == "n"
    assert (await refused(app, PATH, prompt="x", num_inference_steps=4))[1] == "num_inference_steps"
    app, _ = await make_images(resolution="32x16 16x16")
    assert [(await answered(app, **asked))["size"] for asked in ({}, {"size": "16x16"})] == ["32x16", "16x16"]
    message, _ = await refused(app, PATH, prompt="x", size="16x32")
    assert message == "size must be one of: 32x16 16x16, the limit of this server, not 16x32"
    for name in ("resolution", "default_resolution", "max_resolution"):
        with pytest.raises(StartError, match="must be WIDTHxHEIGHT in pixels, such as 512x512, not 'big'"):
            Config(**{name: "big"})  # type: ignore[arg-type]


async def test_models_of_other_tasks(make_images: MakeImages) -> None:
    app, _ = await make_images()
    chat = TextModel(Config(fake_engine=True, model_name="chat"), FakeEngine(say("hello")))  # type: ignore[arg-type]
    await chat.load()
    app.registry.install(chat)
    message, _ = await refused(app, PATH, status=404, model="chat", prompt="x")
    assert "is for text generation, not for image generation" in message
    body = {"model": "e", "messages": [{"role": "user", "content": "x"}]}
    message, _ = await refused(app, "/v1/chat/completions", status=404, **body)
    assert "use it at /v1/images/generations, /v1/images/edits and /v1/images/variations" in message
    await answered(app)  # without a name, the model that makes images answers
    model = await whole(await get(app, "/v1/models/e"))
    known = {"width": 64, "height": 64, "steps": 4, "texts": True, "edits": True, "masks": True}
    assert (model["output_modalities"], model["images"]) == (["image"], known)


async def test_images_are_counted_and_timed(make_images: MakeImages) -> None:
    app, _ = await make_images(metrics_enable=True)
    await answered(app, n=2, num_inference_steps=3)
    response = await get(app, "/metrics")
    assert isinstance(response.body, bytes)
    shown = response.body.decode()
    for line in (
        'lean_ovms_image_seconds_count{model_name="e"} 2',
        'lean_ovms_image_queue_seconds_count{model_name="e"} 2',
        'lean_ovms_engine_steps_total{model_name="e"} 8',  # three steps and the decoding for each image
        'vllm:request_success_total{finished_reason="stop",model_name="e"} 1',
        'vllm:num_requests_waiting{model_name="e"} 0',
        'vllm:num_requests_running{model_name="e"} 0',
    ):
        assert f"\n{line}\n" in shown


# --- streams


async def streamed(app: App, **body: Any) -> list[Any]:
    return await events(await post(app, PATH, {"prompt": "a cat", "stream": True, **body}))


async def test_a_stream_has_unfinished_images_and_then_that_of_a_request_without_it(make_images: MakeImages) -> None:
    app, _ = await make_images()
    fields = {"seed": 3, "n": 2, "size": "16x24", "output_format": "jpeg"}
    *found, done = await streamed(app, partial_images=2, num_inference_steps=6, **fields)
    assert done == "[DONE]"
    partial, completed = "image_generation.partial_image", "image_generation.completed"
    assert [one["type"] for one in found] == [partial, partial, completed] * 2
    assert [one.get("partial_image_index") for one in found] == [0, 1, None] * 2
    assert [one["seed"] for one in found] == [3] * 3 + [4] * 3
    whole = await answered(app, num_inference_steps=6, **fields)
    assert [one["b64_json"] for one in found if one["type"] == completed] == [one["b64_json"] for one in whole["data"]]
    assert found[0]["b64_json"] != found[1]["b64_json"]
    for one in found:
        with opened(one) as file:
            assert (file.format, file.size) == ("JPEG", (16, 24))
        assert (one["size"], one["output_format"], one["created_at"] > 1e9) == ("16x24", "jpeg", True)


async def test_an_error_before_the_first_image_has_a_status_and_a_later_one_is_an_event(
    make_images: MakeImages,
) -> None:
    app, engine = await make_images()
    message, _ = await refused(app, PATH, prompt="a cat", size="65x64", stream=True)
    assert "must be divisible by 8" in message
    engine.failing_seed = 5
    first, error, done = await streamed(app, seed=4, n=2)
    assert first["type"] == "image_generation.completed"
    assert (error["error"]["type"], done) == ("server_error", "[DONE]")


async def test_a_client_that_leaves_a_stream_cancels_its_image(make_images: MakeImages) -> None:
    app, engine = await make_images(sse_ping_s=0.01)
    engine.gate = asyncio.Event()
    response = await post(app, PATH, {"prompt": "a cat", "stream": True, "n": 3})
    assert not isinstance(response.body, bytes)
    sending = asyncio.create_task(response.body.push_to(Sink(print)))
    await asyncio.sleep(0)
    sending.cancel()
    await asyncio.wait([sending])
    await response.aclose()
    assert (engine.cancelled, len(engine.asked)) == (1, 1)
    assert app.registry.models["e"].in_flight._count == 0


async def test_of_a_stream_that_is_not_read_one_image_is_made_ahead(make_images: MakeImages) -> None:
    app, engine = await make_images()
    response = await post(app, PATH, {"prompt": "a cat", "stream": True, "n": 4})
    await until(lambda: len(engine.asked) >= 2)
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(engine.asked) == 2
    await events(response)
    assert len(engine.asked) == 4


# --- edits and variations


@pytest.fixture
def _decoder_in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    async def decode(self: DecoderPool, job: DecodeJob) -> Pixels:
        assert not isinstance(job.data, str)
        return Pixels(*pillow.decode(bytes(job.data[:]), job.max_pixels, job.box, mask=job.mask))

    monkeypatch.setattr(DecoderPool, "decode", decode)


in_process = pytest.mark.usefixtures("_decoder_in_process")


def png(width: int = 130, height: int = 70, mode: str = "RGB", color: str = "red") -> tuple[str, bytes]:
    """Returns a file for a form."""
    file = io.BytesIO()
    Image.new(mode, (width, height), color).save(file, "png")
    return "a.png", file.getvalue()


EDIT: list[Part] = [("image", png()), ("prompt", "a cat")]


async def edited(app: App, *parts: Part, path: str = EDITS, status: int = 200) -> Any:
    """Returns the data of the response, or the message and the field of its error."""
    response = await app.handle(form_request(path, parts))
    found = await whole(response)
    assert response.status == status, found
    return found["data"] if status == 200 else (found["error"]["message"], found["error"]["param"])


@in_process
async def test_an_edit_reaches_the_engine_with_its_image_and_fields(make_images: MakeImages) -> None:
    app, engine = await make_images()
    fields = [("n", "2"), ("rng_seed", "5"), ("strength", "0.5"), ("size", "32x16"), ("num_inference_steps", "3")]
    data = await edited(app, *EDIT, ("mask", png(8, 8)), *fields, ("negative_prompt", "dogs"), ("user", "u"))
    assert [entry["seed"] for entry in data] == [5, 6]
    assert engine.sources == [[[70, 130], [8, 8]]] * 2
    (prompt, params, begun), second = engine.asked
    assert (prompt, begun, params.width, params.height, params.steps) == ("a cat", False, 32, 16, 3)
    assert params.more == {"strength": 0.5, "negative_prompt": "dogs"}
    assert second == ("a cat", replace(params, seed=6), True)
    with opened(data[0]) as file:
        assert (file.format, file.size) == ("PNG", (32, 16))


@in_process
async def test_an_edit_depends_on_its_image_and_mask(make_images: MakeImages) -> None:
    app, _ = await make_images()
    seed, mask = ("seed", "1"), ("mask", png(8, 8))
    forms: list[list[Part]] = [
        [*EDIT, seed], [*EDIT, seed, mask], [("image[]", png(color="blue")), ("prompt", "a cat"), seed],
        [*EDIT, seed, ("mask", png(8, 8, "RGBA", "#FFFF"))], [*EDIT, seed, ("mask", png(8, 8, "RGBA", "#FFF0"))],
    ]  # fmt: skip
    found = {(await edited(app, *parts))[0]["b64_json"] for parts in forms}
    assert len(found) == 4  # the last two masks are both white
    parts: list[Part] = [*EDIT, ("stream", "true"), ("partial_images", "1")]
    first, last, done = await events(await app.handle(form_request(EDITS, parts)))
    assert (first["type"], last["type"], done) == ("image_edit.partial_image", "image_edit.completed", "[DONE]")
    assert app.services.get(ImageLoader)._pixels.used == 0
    app, engine = await make_images()
    [entry] = await edited(app, EDIT[0], ("response_format", "b64_json"), path=VARIATIONS)
    assert (engine.asked[0][0], engine.sources) == ("", [[[70, 130]]])
    assert entry["seed"] == engine.asked[0][1].seed


@in_process
async def test_the_size_of_an_edit_is_that_of_its_image(make_images: MakeImages) -> None:
    app, engine = await make_images()
    for size in ("auto", ""):
        await edited(app, *EDIT, ("size", size))
    await edited(app, ("image", png(9, 9)), ("prompt", "x"))
    assert [(one.width, one.height) for _, one, _ in engine.asked] == [(128, 64), (128, 64), (64, 64)]
    assert "larger than 2048x2048" in (await edited(app, ("image", png(2112, 64)), EDIT[1], status=400))[0]
    app, engine = await make_images(default_resolution="96x32")
    await edited(app, *EDIT)
    assert (engine.asked[0][1].width, engine.asked[0][1].height) == (96, 32)


@in_process
@pytest.mark.parametrize(("parts", "param", "text"), [
    ([EDIT[1]], "image", "Missing required field: 'image'"),
    ([EDIT[0]], "prompt", "Missing required field: 'prompt'"),
    ([EDIT[0], ("prompt", " ")], "prompt", "prompt is empty"),
    ([("image", "a text"), EDIT[1]], "image", "image must be a file, sent as"),
    ([("image[]", png()), ("image[]", png()), EDIT[1]], "image", "image must be one file, not 2"),
    ([("image", ("a.png", b"GIF89a")), EDIT[1]], "image", "Image parsing failed"),
    ([*EDIT, ("mask", ("a.png", b""))], "mask", "Image parsing failed"),
    ([*EDIT, ("mask", "white")], "mask", "mask must be a file"),
    ([*EDIT, ("size", "4096x64")], "size", "larger than 2048x2048"),
    ([*EDIT, ("n", "11")], "n", "n 11 is more than 10"),
])  # fmt: skip
async def test_what_is_refused_of_an_edit_names_its_field(
    make_images: MakeImages, parts: list[Part], param: str, text: str
) -> None:
    app, engine = await make_images()
    message, named = await edited(app, *parts, status=400)
    assert (named, text in message) == (param, True), message
    assert engine.asked == []
    assert app.services.get(ImageLoader)._pixels.used == 0


@in_process
async def test_a_client_that_leaves_or_waits_too_long_cancels_the_image_and_those_after_it(
    make_images: MakeImages,
) -> None:
    app, engine = await make_images()
    engine.gate = asyncio.Event()
    request = asyncio.create_task(app.handle(form_request(EDITS, [*EDIT, ("mask", png(8, 8)), ("n", "3")])))
    await until(lambda: engine.asked)
    loader = app.services.get(ImageLoader)
    assert (loader._pixels.used, app.services.bodies.used) == (130 * 70 + 64, 0)
    request.cancel()
    await asyncio.wait([request])
    assert (engine.cancelled, len(engine.asked)) == (1, 1)
    assert (app.registry.models["e"].in_flight._count, loader._pixels.used) == (0, 0)
    app, engine = await make_images(request_timeout_s=0.05, max_image_pixels=9000, max_image_bytes=400)
    engine.gate = asyncio.Event()
    message, _ = await refused(app, PATH, status=408, prompt="a cat")
    assert "exceeded this server's time limit" in message
    assert engine.cancelled == len(engine.asked)
    message, param = await edited(app, ("image", png(100, 100)), EDIT[1], status=400)
    assert (message.startswith("an image of 100 x 100 pixels is larger than"), param) == (True, "image")
    message, param = await edited(app, ("image", ("a.png", bytes(401))), EDIT[1], status=400)
    assert (message, param) == ("the image is larger than this server's limit of 400 bytes", "image")


@in_process
async def test_an_edit_counts_as_a_request_of_its_key_until_the_answer(make_images: MakeImages, tmp_path: Path) -> None:
    keys = written(tmp_path, {"alice": {"max_parallel_requests": 1}})
    app, engine = await make_images(api_key_file=keys)
    engine.gate = asyncio.Event()
    file = io.BytesIO()
    Image.effect_noise((300, 300), 90).save(file, "png")
    parts: list[Part] = [("image", ("a.png", file.getvalue())), ("prompt", "x")]
    first = asyncio.create_task(app.handle(form_request(EDITS, parts, **ALICE)))
    await until(lambda: engine.asked)
    assert app.services.bodies.used == 0
    second = await app.handle(form_request(EDITS, parts, **ALICE))
    assert second.status == 429
    await second.aclose()
    engine.gate.set()
    answer = await first
    assert answer.status == 200
    await answer.aclose()
    assert (await post(app, PATH, {"prompt": "x"}, **ALICE)).status == 200


@in_process
async def test_a_model_that_edits_nothing_or_without_masks_or_only_with_them(make_images: MakeImages) -> None:
    app, engine = await make_images()
    engine.info = replace(engine.info, of_task={**engine.info.of_task, "masks": False})
    assert await edited(app, *EDIT, ("mask", png()), status=400) == ("the model e does not support masks", "mask")
    await edited(app, *EDIT)
    engine.info = replace(engine.info, of_task=asdict(ImageInfo(width=64, height=64, steps=4)))
    assert await edited(app, *EDIT, status=400) == ("the model e only generates images from texts", "image")
    engine.info = replace(engine.info, of_task=asdict(ImageInfo(width=64, height=64, steps=4, texts=False, masks=True)))
    assert await edited(app, *EDIT, status=400) == ("the model e needs a mask to edit images", "mask")
    await edited(app, *EDIT, ("mask", png()))
    message, param = await refused(app, PATH, prompt="a cat")
    assert (message, param) == ("the model e only edits images with a mask", "model")
