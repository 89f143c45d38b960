"""A model with vision through the complete server and the official client; its answer says what it sees."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.e2e.conftest import EXACT, Process, start_process
from tests.e2e.test_doc_commands import BLOCKS, run
from tests.features.media_files.images.webserver import ok, serving
from tests.pictures import data_url, file, part, picture, user

pytestmark = [pytest.mark.model]

MODEL = Path(__file__).parents[1] / "data" / "colours"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an image."""
    folder = tmp_path_factory.mktemp("images")
    (folder / "red.png").write_bytes(file(picture("red", (90, 70)), "PNG"))
    return folder


@pytest.fixture(scope="module")
def seeing(folder: Path) -> Iterator[Process]:
    """A server whose model names colours, and which may read files of the folder and from web servers on this
    machine."""
    with start_process(
        *("--model_path", str(MODEL), "--plugin_config", EXACT, "--metrics_enable", "true"),
        *("--allowed_local_media_path", str(folder), "--allowed_media_domains", "localhost,127.0.0.0/8,::1"),
    ) as process:
        process.wait_for("ready: colours")
        yield process


@pytest.fixture
async def client(seeing: Process) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=seeing.url + "/v1", api_key="none", max_retries=0, timeout=300) as client:
        yield client


async def chat(client: openai.AsyncOpenAI, *messages: Any, **more: Any) -> Any:
    return await client.chat.completions.create(
        model="colours", messages=list(messages), temperature=0, max_tokens=30, **more
    )


async def says(client: openai.AsyncOpenAI, *messages: Any, **more: Any) -> str:
    return str((await chat(client, *messages, **more)).choices[0].message.content)


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_readmes_command_takes_a_picture_of_any_size(seeing: Process, tmp_path: Path) -> None:
    """Linux limits an argument of a command to 128 KiB, so the picture must not be an argument."""
    [block] = [block for block in BLOCKS if block.file == "README.md" and "zebra.jpeg" in block.text]
    (tmp_path / "zebra.jpeg").write_bytes(file(picture("blue", (90, 70)), "JPEG") + bytes(200_000))
    output = run(block.text.replace("NAME", "colours"), seeing.url, tmp_path)
    assert "blue" in json.loads(output)["choices"][0]["message"]["content"]


async def test_the_three_forms_of_one_image_are_one_image(client: openai.AsyncOpenAI, folder: Path) -> None:
    data = (folder / "red.png").read_bytes()
    async with serving(zebra=ok(data, "Content-Type: image/png")) as web:
        forms = [data_url("red", (90, 70)), str(folder / "red.png"), "file://" + str(folder / "red.png"), "red.png"]
        forms += [web.url("/zebra"), web.url("/zebra", "localhost")]
        answers = [await chat(client, user("What color is it?", part(url)), logprobs=True) for url in forms]
    assert {a.choices[0].message.content for a in answers} == {"The image is red."}
    assert len({tuple(t.logprob for t in a.choices[0].logprobs.content) for a in answers}) == 1
    assert {a.usage.prompt_tokens for a in answers} == {answers[0].usage.prompt_tokens}


async def test_images_in_the_order_of_the_message_and_in_several_turns(client: openai.AsyncOpenAI) -> None:
    red, blue, green = (data_url(c) for c in ("red", "blue", "green"))
    assert await says(client, user(part(red), "describe", part(blue))) == "The images are red and blue."
    assert await says(client, user(part(blue), part(red), part(green), "describe")) == (
        "The images are blue and red and green."
    )
    talk = [user(part(green), "What do you see?"), {"role": "assistant", "content": "The image is green."}]
    assert await says(client, *talk, user(part(red), "What do you see?")) == "The images are green and red."
