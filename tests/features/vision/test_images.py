"""Images in requests: where they may be, what becomes of them, and what is rejected. No engine."""

from __future__ import annotations

from base64 import b64decode
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from lean_ovms.api.app import App
from lean_ovms.composition import compose
from lean_ovms.features.docs_page.openapi import document
from lean_ovms.features.media_files.images.decoder_pool import DecodeJob, DecoderPool
from lean_ovms.features.media_files.images.decoder_process import decode_base64
from lean_ovms.features.media_files.images.pillow import decode
from lean_ovms.types import Image, Response
from tests.api.conftest import MakeApp, post, warnings_of, whole
from tests.fakes import INFO, FakeEngine, say
from tests.forms import form_request
from tests.pictures import data_url, part, user

RED, BLUE = data_url("red"), data_url("blue", kind="JPEG")


@pytest.fixture(autouse=True)
def decoded_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decodes images in this process, because starting another takes longer than these tests."""

    async def decode_here(pool: DecoderPool, job: DecodeJob) -> Image:
        file = job.data[job.start :]
        data = decode_base64(file.encode()) if isinstance(file, str) else bytes(file)
        return Image(*decode(data, job.max_pixels, job.box))

    monkeypatch.setattr(DecoderPool, "decode", decode_here)


@pytest.fixture
async def vision_app(make_app: MakeApp) -> tuple[App, FakeEngine]:
    """Returns an app whose model reads images, and itself writes <image> for one."""
    app, engine = await make_app(say("fine"))
    engine.info = replace(INFO, vision=True, image_tokens=["<image>"])
    return app, engine


async def chat(app: App, *messages: Any, **more: Any) -> Any:
    return await post(app, "/v1/chat/completions", {"model": "m", "messages": list(messages), **more})


async def refusal(app: App, *messages: Any, **more: Any) -> tuple[str, str]:
    """Returns message and param of an error 400."""
    response = await chat(app, *messages, **more)
    assert response.status == 400
    error = (await whole(response))["error"]
    return error["message"], error["param"]


async def test_an_image_becomes_a_tag_and_its_pixels(vision_app: tuple[App, FakeEngine]) -> None:
    app, engine = vision_app
    assert (await chat(app, user("look:", part(RED)))).status == 200
    assert engine.submitted[0][0] == "user:look:\n<ov_genai_image_0>;"
    [image] = engine.images[0]
    engine.info = INFO
    message, param = await refusal(app, user("x", part(RED)))
    assert message == "This servable supports only text input, but image_url has been provided"
    assert param == "messages[0].content[1]"
    assert (await chat(app, {"role": "user", "content": "<ov_genai_image_0> <image>"})).status == 200
    assert (image.height, image.width, image.pixels[:3]) == (40, 60, bytes((220, 30, 30)))
    assert len(image.pixels) == 40 * 60 * 3


async def test_tags_are_numbered_in_the_order_of_the_conversation(vision_app: tuple[App, FakeEngine]) -> None:
    app, engine = vision_app
    talk = [
        user(part(RED), "one"),
        {"role": "assistant", "content": "ok"},
        user("two", part(BLUE), "three", {"image_url": RED}),
    ]
    assert (await chat(app, *talk)).status == 200
    assert engine.submitted[0][0] == (
        "user:<ov_genai_image_0>\none;assistant:ok;user:two\n<ov_genai_image_1>\nthree\n<ov_genai_image_2>;"
    )
    red, blue, again = engine.images[0]
    assert red.pixels is again.pixels
    assert red.pixels[0] > 200 > blue.pixels[0]


CALL = {"id": "c", "type": "function", "function": {"name": "view", "arguments": "{}"}}
LEFT_OUT = "[The tool returned an image, which was left out: this model reads text only]"
LOOK, TEXT = {"role": "user", "content": "look"}, {"type": "text", "text": "p.png"}
SOURCE = {"type": "base64", "media_type": "image/png", "data": RED.partition(",")[2]}
RESULT = {"type": "tool_result", "tool_use_id": "c", "content": [TEXT, {"type": "image", "source": SOURCE}]}
OUTPUT = [{"type": "input_text", "text": "p.png"}, {"type": "input_image", "image_url": RED}]
SAW = {
    "/v1/chat/completions": {"messages": [LOOK, {"role": "assistant", "content": None, "tool_calls": [CALL]},
     {"role": "tool", "tool_call_id": "c", "content": [TEXT, part(RED)]}]},
    "/v1/messages": {  # as Claude Code sends the result of its tool Read
        "max_tokens": 9,
        "messages": [
            LOOK,
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "view", "input": {}}]},
            {"role": "user", "content": [RESULT]},
        ],
    },
    "/v1/responses": {  # as Codex sends the result of its tool view_image
        "input": [
            LOOK,
            {"type": "function_call", "call_id": "c", "name": "view", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": OUTPUT},
        ]
    },
}  # fmt: skip
"""A conversation in which a tool has returned an image, for each API."""


@pytest.mark.parametrize("path", SAW)
async def test_an_agent_goes_on_where_its_tool_returned_an_image_to_a_text_only_model(
    make_app: MakeApp, path: str
) -> None:
    app, engine = await make_app(say("fine"))
    response = await post(app, path, {"model": "m", **SAW[path]})
    assert response.status == 200
    notice = "images returned by tools were left out: this model reads text only"
    assert warnings_of(response) == [notice]
    [(prompt, _)] = engine.submitted
    assert "p.png" in prompt
    assert prompt.count(LEFT_OUT) == 1
    engine.info = replace(INFO, vision=True, image_tokens=["<image>"])
    seen = await post(app, path, {"model": "m", **SAW[path]})
    assert "Warning" not in dict(seen.headers)
    assert len(engine.images[1]) == 1


@pytest.mark.parametrize("path", SAW)
async def test_a_broken_image_of_a_tool_is_left_out_and_the_others_seen(make_app: MakeApp, path: str) -> None:
    app, engine = await make_app(say("fine"))
    engine.info = replace(INFO, vision=True)
    asked = orjson.dumps({"model": "m", **SAW[path]}).decode()
    data = RED.partition(",")[2]
    response = await post(app, path, orjson.loads(asked.replace(data, "aGVsbG8=")))
    assert response.status == 200
    [warning] = warnings_of(response)
    assert "returned by a tool, was left out: " in warning
    [(prompt, _)] = engine.submitted
    assert "p.png" in prompt
    assert "[The tool returned content of type image_url, which was left out: " in prompt
    assert engine.images == [()]


async def test_the_image_of_a_user_is_refused_beside_a_broken_one_of_a_tool(vision_app: tuple[App, FakeEngine]) -> None:
    app, engine = vision_app
    tool = {"role": "tool", "tool_call_id": "c", "content": [part("data:image/png;base64,aGVsbG8="), part(RED)]}
    asked = [*SAW["/v1/chat/completions"]["messages"][:2], tool]
    assert (await chat(app, *asked, user(part(BLUE)))).status == 200
    assert len(engine.images[0]) == 2
    _, param = await refusal(app, *asked, user(part("data:image/png;base64,aGVsbG8=")))
    assert param == "messages[3].content[0].image_url.url"


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": "a <ov_genai_image_0> b"},
        {"role": "user", "content": "<ov_genai_video_0>"},
        {"role": "tool", "tool_call_id": "<ov_genai_image_0>", "content": "x"},
    ],
)
async def test_image_tags_in_text_are_refused(vision_app: tuple[App, FakeEngine], message: Any) -> None:
    app, engine = vision_app
    own = "Message contains <image>, the placeholder of an image", "messages"
    assert await refusal(app, {"role": "user", "content": "an <image> here"}) == own
    assert await refusal(app, message) == ("Message contains restricted <ov_genai_image> tag", "messages")
    assert engine.submitted == []


CALLED = {"function": {"name": "f", "arguments": '{"a": "<ov_genai_image_0>"}'}}


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": "Write <image> there."},
        {"role": "assistant", "content": [{"type": "text", "text": "<ov_genai_image_0>"}]},
        {"role": "assistant", "content": "", "tool_calls": [CALLED]},
        {
            "role": "assistant",
            "tool_calls": [{"function": {"name": "f", "arguments": {"a": [{"<image>": "<image>"}]}}}],
        },
        {"role": "tool", "tool_call_id": "c", "content": "an <image> and <ov_genai_video_0>"},
    ],
)
async def test_a_conversation_goes_on_in_which_the_model_or_a_tool_has_written_a_tag(
    vision_app: tuple[App, FakeEngine], message: Any
) -> None:
    app, engine = vision_app
    response = await chat(app, {"role": "user", "content": "how?"}, message, user("and", part(RED)))
    assert response.status == 200
    assert "are treated as plain text" in dict(response.headers)["Warning"]
    [(prompt, _)] = engine.submitted
    assert prompt.count("<ov_genai_") == 1, "the tag of the image"
    assert "<image>" not in prompt
    assert len(engine.images[0]) == 1
    assert "Warning" not in dict((await chat(app, {"role": "assistant", "content": "an image"}, user("x"))).headers)


async def test_image_tags_in_tools_and_template_arguments_are_refused(vision_app: tuple[App, FakeEngine]) -> None:
    app, _ = vision_app
    tool = {"type": "function", "function": {"name": "f", "description": "<ov_genai_image_0>", "parameters": {}}}
    hello = {"role": "user", "content": "x"}
    assert (await refusal(app, hello, tools=[tool]))[1] == "tools"
    assert (await refusal(app, hello, chat_template_kwargs={"a": ["<image>"]}))[1] == "chat_template_kwargs"


WRONG = [
    ({"type": "image_url"}, "content image_url missing", "image_url"),
    ({"type": "image_url", "image_url": [RED]}, "content image_url missing", "image_url"),
    ({"type": "image_url", "image_url": {}}, "image_url does not have url field", "image_url.url"),
    (part(3), "image_url does not have url field", "image_url.url"),  # type: ignore[arg-type]
    (part(RED, detail="huge"), "image_url.detail must be one of", "image_url.detail"),
    ({"type": "input_image", "image_url": RED, "detail": ["low"]}, "input_image.detail must be one of", "detail"),
    ({"type": "input_image", "image_url": {"url": RED, "detail": 1}}, "image_url.detail must", "image_url.detail"),
    ({"type": "model", "model": {}}, "type: text, images, videos, audio and files are read, not 'model'", ""),
]


@pytest.mark.parametrize(("wrong", "said", "where"), WRONG)
async def test_parts_that_are_no_image(vision_app: tuple[App, FakeEngine], wrong: Any, said: str, where: str) -> None:
    app, _ = vision_app
    message, param = await refusal(app, user("x", wrong))
    assert said in message
    assert param == f"messages[0].content[1]{'.' + where if where else ''}"


BAD_URLS = [
    ("data:image/png;base64,@@@", "Invalid base64 string in request"),
    ("data:image/png;base64,", "Image parsing failed"),
    ("http://images.example.com/a.png", "does not match any allowed domain"),
    ("/images/zebra.jpeg", "Loading images from local filesystem is disabled."),
]


@pytest.mark.parametrize(("url", "said"), BAD_URLS)
async def test_an_image_that_cannot_be_had_names_its_field(
    vision_app: tuple[App, FakeEngine], url: str, said: str
) -> None:
    app, engine = vision_app
    message, param = await refusal(app, user("x", part(RED), part(url)), stream=True)
    assert said in message
    assert param == "messages[0].content[2].image_url.url"
    assert engine.submitted == []


async def test_large_images_may_be_shrunk_by_the_server(make_app: MakeApp) -> None:
    app, engine = await make_app(say("fine"), max_image_side=256)
    engine.info = replace(INFO, vision=True)
    large = data_url("red", (1024, 512))
    await chat(app, user(part(large), part(large, detail="low"), part(RED)))
    assert [(i.width, i.height) for i in engine.images[0]] == [(256, 128), (256, 128), (60, 40)]


async def test_too_many_images_name_the_first_that_is_too_many(make_app: MakeApp) -> None:
    app, engine = await make_app(say("fine"), max_images=2)
    engine.info = replace(INFO, vision=True)
    message, param = await refusal(app, user(*[part(RED)] * 3))
    assert "more than this server's limit of 2" in message
    assert param == "messages[0].content[2].image_url.url"


async def test_pixels_of_all_images_together_have_a_limit(make_app: MakeApp) -> None:
    app, engine = await make_app(say("fine"), max_image_pixels=60 * 40 + 10)
    engine.info = replace(INFO, vision=True)
    assert (await chat(app, user(part(RED), part(RED)))).status == 200, "the same image counts once"
    message, param = await refusal(app, user(part(RED), part(BLUE)))
    assert "larger than the 10 pixels that are left of this server's limit" in message
    assert param == "messages[0].content[1].image_url.url"


async def test_responses_take_images_as_text_and_as_object(vision_app: tuple[App, FakeEngine]) -> None:
    app, engine = vision_app
    content = [
        {"type": "input_text", "text": "look"},
        {"type": "input_image", "image_url": RED},
        {"type": "input_image", "image_url": {"url": data_url("blue", (1100, 800))}, "detail": "low"},
    ]
    response = await post(app, "/v1/responses", {"model": "m", "input": [{"role": "user", "content": content}]})
    assert response.status == 200
    assert engine.submitted[0][0] == "user:look\n<ov_genai_image_0>\n<ov_genai_image_1>;"
    assert [i.pixels[0] > 200 for i in engine.images[0]] == [True, False]
    assert [(i.width, i.height) for i in engine.images[0]] == [(60, 40), (512, 372)]


async def test_a_response_that_follows_sees_the_images_before_it(vision_app: tuple[App, FakeEngine]) -> None:
    app, engine = vision_app
    content = [{"type": "input_image", "image_url": RED}]
    ask = {"model": "m", "input": [{"role": "user", "content": content}]}
    first = await whole(await post(app, "/v1/responses", ask))
    await post(app, "/v1/responses", {"model": "m", "input": "again", "previous_response_id": first["id"]})
    assert engine.submitted[1][0] == "user:<ov_genai_image_0>;assistant:fine;user:again;"
    assert engine.images[1] == engine.images[0]


@pytest.mark.parametrize(
    "wrong",
    [
        {"type": "input_image", "file_id": 1},
        {"type": "input_file"},
        {"type": "input_audio", "input_audio": {}},
        {"type": "input_image", "image_url": "data:image/png;base64,@@@"},
    ],
)
async def test_responses_refuse_what_is_no_image(vision_app: tuple[App, FakeEngine], wrong: Any) -> None:
    app, _ = vision_app
    response = await post(app, "/v1/responses", {"model": "m", "input": [{"role": "user", "content": [wrong]}]})
    assert response.status == 400
    assert (await whole(response))["error"]["param"].startswith("input")


async def test_an_image_may_be_named_by_the_id_of_a_file(make_app: MakeApp, tmp_path: Path) -> None:
    app, engine = await make_app(lambda *_: say("fine"), files_path=str(tmp_path))
    engine.info = replace(INFO, vision=True)
    await app.open()
    parts = [("purpose", "vision"), ("file", ("a.png", b64decode(RED.partition(",")[2])))]
    made = await whole(await app.handle(form_request("/v1/files", parts)))

    async def look(file_id: str) -> Response:
        content = [{"type": "input_image", "file_id": file_id}, {"type": "input_text", "text": "?"}]
        return await post(app, "/v1/responses", {"model": "m", "input": [{"role": "user", "content": content}]})

    first = await look(made["id"])
    assert first.status == 200, first.body
    assert [len(images) for images in engine.images] == [1]
    again = {"model": "m", "input": "again", "previous_response_id": (await whole(first))["id"]}
    assert (await post(app, "/v1/responses", again)).status == 200
    assert engine.images[1] == engine.images[0]
    missing = await look("file-x")
    assert missing.status == 400
    assert "No file with id 'file-x'" in (await whole(missing))["error"]["message"]
    await app.close()


async def test_files_by_their_ids_are_read_one_at_a_time_and_none_if_there_are_too_many(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An id is short, and its file may have 20 MB: a thousand of them must not be in memory at once."""
    read = list[str]()

    async def uploaded(services: Any, file_id: str, most: int, instead: str) -> tuple[str, bytes]:
        read.append(file_id)
        return "a.png", b64decode((RED if file_id == "red" else BLUE).partition(",")[2])

    monkeypatch.setattr("lean_ovms.features.vision.content.uploaded", uploaded)
    app, engine = await make_app(lambda *_: say("fine"), max_images=3)
    engine.info = replace(INFO, vision=True)

    def named(*ids: str) -> list[Any]:
        return [{"type": "image_url", "image_url": {"file_id": each}} for each in ids]

    message, param = await refusal(app, user(*named("red", "red", "red", "red")))
    assert "more than this server's limit of 3" in message
    assert (param, read) == ("messages[0].content[3].image_url.file_id", [])
    assert (await chat(app, user(*named("red", "blue", "red")))).status == 200
    assert read == ["red", "blue"]
    [images] = engine.images
    assert [images[0], images[2]] == [images[0], replace(images[0], param=images[2].param)]
    assert images[1].pixels != images[0].pixels


async def test_input_tokens_count_images(make_app: MakeApp) -> None:
    app, engine = await make_app(say("much ", "to ", "say"))
    engine.info = replace(INFO, vision=True)
    content = [{"type": "input_image", "image_url": RED}]
    ask = {"model": "m", "input": [{"role": "user", "content": content}]}
    counted = await whole(await post(app, "/v1/responses/input_tokens", ask))
    assert counted["input_tokens"] == len("user:<ov_genai_image_0>;")
    assert len(engine.images[0]) == 1
    assert len(engine.cancelled) == 1, "what was only counted is not generated"
    for path, asked, said in (
        ("/tokenize", {"messages": [user("x", part(RED))]}, "input_tokens"),
        ("/v1/completions", {"prompt": "x"}, "VLM Servable does not support the /completions endpoint. Use /chat/com"),
    ):
        response = await post(app, path, {"model": "m", **asked})
        assert response.status == 400
        assert said in (await whole(response))["error"]["message"]


async def test_an_image_is_refused_by_what_the_server_reads(make_app: MakeApp) -> None:
    app, engine = await make_app(say("fine"), without="vision")
    body = {"model": "m", "messages": [user("look:", part(data_url("red")))]}
    response = await post(app, "/v1/chat/completions", body)
    assert response.status == 400
    error = (await whole(response))["error"]
    assert error["message"] == "Unsupported content type: text, audio and files are read, not 'image_url'"
    assert error["param"] == "messages[0].content[1]"
    assert engine.submitted == []


async def test_its_field_gets_a_warning_as_one_that_no_server_has(make_app: MakeApp) -> None:
    app, _ = await make_app(say("fine"), without="vision")
    body = {"model": "m", "messages": [user("hi")], "media_io_kwargs": {"video": {"num_frames": 2}}}
    response = await post(app, "/v1/chat/completions", body)
    assert response.status == 200
    assert warnings_of(response) == ["media_io_kwargs is not supported and was ignored"]


def test_the_document_has_no_such_field() -> None:
    def fields(without: str) -> set[str]:
        operation = document(["m"], key=False, composition=compose(without))["paths"]["/v1/chat/completions"]["post"]
        return set(operation["requestBody"]["content"]["application/json"]["schema"]["properties"])

    assert fields("") - fields("vision") == {"media_io_kwargs"}
    assert fields("") - fields("audio_chat") == {"audio", "modalities"}
