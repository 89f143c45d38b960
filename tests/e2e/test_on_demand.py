"""Real models of a repository that requests load: one in memory at a time, no request interrupted, memory freed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from lean_ovms.features.pooling.model import DEMO as DEMO_EMBED
from tests.e2e.conftest import ANY_MODEL, Process, start_process
from tests.features.speech.child.words import recordings, unpacked
from tests.recordings import wav

SPOKEN = wav(recordings()["three five seven eight four zero"])

KINDS = {
    "broken": ("text_generation", "text", "text"),
    "chat": ("text_generation", "text", "text"),
    "embed": ("embeddings", "text", "embeddings"),
    "speech": ("speech2text", "audio", "text"),
}
"""Task, input and output of each model."""
pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """Links to models, and a directory that only looks like a model."""
    repository, small = tmp_path_factory.mktemp("repository"), Path(ANY_MODEL["model_path"])
    for name, model in (("chat", small), ("embed", DEMO_EMBED), ("broken", small)):
        (repository / name).mkdir()
        for file in model.iterdir():
            if file.is_file() and not (name == "broken" and file.name == "openvino_model.bin"):
                os.symlink(file, repository / name / file.name)
    (repository / "broken" / "openvino_model.bin").write_bytes(b"no weights")
    unpacked(tmp_path_factory.mktemp("speech")).rename(repository / "speech")
    flags = ["--model_repository_path", str(repository), "--max_loaded_models", "1", "--metrics_enable"]
    with start_process(*flags) as process:
        process.wait_for("ready: ")
        yield process


def engines(server: Process) -> int:
    """Returns the engine processes of the server."""
    children = Path(f"/proc/{server.popen.pid}/task/{server.popen.pid}/children").read_text().split()
    return sum(b"engine.worker" in Path(f"/proc/{child}/cmdline").read_bytes() for child in children)


async def test_models_of_a_repository_take_turns(server: Process) -> None:
    async with httpx.AsyncClient(base_url=server.url, timeout=300) as client:

        async def statuses() -> dict[str, str]:
            found = (await client.get("/v1/models")).json()["data"]
            kinds = {one["id"]: (one["task"], *one["input_modalities"], *one["output_modalities"]) for one in found}
            assert kinds == KINDS  # loaded or not
            return {one["id"]: one["status"]["value"] for one in found}

        async def chat(**fields: Any) -> httpx.Response:
            body = {"model": "chat", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 20, **fields}
            return await client.post("/v1/chat/completions", json=body)

        async def embed() -> httpx.Response:
            return await client.post("/v1/embeddings", json={"model": "embed", "input": "hi"})

        names = ("broken", "chat", "embed", "speech")
        assert await statuses() == dict.fromkeys(names, "unloaded")
        assert (await client.get("/health")).status_code == 200
        answers = await asyncio.gather(*(ask() for ask in (chat, embed) * 4))
        assert [one.status_code for one in answers] == [200] * 8, [one.text for one in answers]
        assert len({one.json()["choices"][0]["message"]["content"] for one in answers[::2]}) == 1
        assert sorted((await statuses()).values()) == ["loaded", "unloaded", "unloaded", "unloaded"]
        assert engines(server) == 1
        said = await client.post("/v1/audio/transcriptions", files={"file": SPOKEN}, data={"model": "speech"})
        assert (said.status_code, said.json()["language"]) == (200, "en"), said.text
        assert (await statuses())["speech"] == "loaded"
        assert engines(server) == 1
        refused = await client.post("/v1/completions", json={"model": "broken", "prompt": "x"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "model_not_loaded")
        assert (await chat()).status_code == 200
        assert (await statuses())["broken"] == "failed"
        lines = (await client.get("/metrics")).text.splitlines()
        assert 'ovms_graph_loaded{name="chat"} 1' in lines

        assert (await client.post("/sleep")).status_code == 200
        assert engines(server) == 0
        assert (await chat()).status_code == 503
        assert (await client.post("/wake_up")).status_code == 200
        assert (await chat()).status_code == 200
