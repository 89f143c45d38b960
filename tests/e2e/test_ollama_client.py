"""Ollama's own client over HTTP with the demo models, and a repository whose clients pull and delete models."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from lean_ovms.config import DEMO_MODEL
from tests.e2e.conftest import Process, start_process
from tests.features.hub.hub_server import HubServer, Repo

ollama = pytest.importorskip("ollama")

pytestmark = pytest.mark.model

QUESTION = {"role": "user", "content": "What is the capital of France?"}
GREEDY = {"temperature": 0, "num_predict": 60}


@pytest.fixture
def api(server: Process) -> Iterator[Any]:
    client = ollama.Client(host=server.url, timeout=300)
    yield client
    client._client.close()


def get_weather(city: str) -> str:
    """Weather of a city.

    Args:
      city: the name of the city
    """
    return f"sunny in {city}"


def test_a_message_whole_and_streamed(api: Any) -> None:
    whole = api.chat("demo", [QUESTION], options=GREEDY)
    assert "Paris" in whole.message.content
    assert (whole.done_reason, whole.prompt_eval_count > 0, whole.eval_count > 0) == ("stop", True, True)
    parts = list(api.chat("demo", [QUESTION], options=GREEDY, stream=True))
    assert "".join(part.message.content or "" for part in parts) == whole.message.content
    assert parts[-1].eval_count == whole.eval_count
    assert api.generate("demo", QUESTION["content"], options=GREEDY).response == whole.message.content


def test_a_tools_round_trip(api: Any) -> None:
    ask = {"role": "user", "content": "What is the weather in Oslo?"}
    first = api.chat("demo", [ask], tools=[get_weather], options=GREEDY)
    [call] = first.message.tool_calls
    assert (call.function.name, call.function.arguments) == ("get_weather", {"city": "Oslo"})
    [streamed] = [
        part.message.tool_calls
        for part in api.chat("demo", [ask], tools=[get_weather], options=GREEDY, stream=True)
        if part.message.tool_calls
    ]
    assert streamed[0].function == call.function
    result = {"role": "tool", "tool_name": "get_weather", "content": get_weather(**call.function.arguments)}
    second = api.chat("demo", [ask, first.message, result], tools=[get_weather], options=GREEDY)
    assert "sunny" in second.message.content


def test_thinking_formats_and_vectors(api: Any) -> None:
    thought = api.chat("demo", [QUESTION], think=True, options=GREEDY)
    assert thought.message.thinking
    assert "Paris" in thought.message.content
    schema = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
    shaped = api.chat("demo", [{"role": "user", "content": "Ann is 3 years old."}], format=schema, options=GREEDY)
    assert shaped.message.content.startswith("{")
    assert '"age":' in shaped.message.content
    assert len(api.embed("demo-embed", ["a", "b"]).embeddings) == 2


def test_a_model_is_pulled_asked_and_deleted_on_ollamas_port(tmp_path: Path) -> None:
    hub = HubServer()
    files = {p.name: p.read_bytes() for p in DEMO_MODEL.iterdir() if p.is_file() and p.suffix != ".py"}
    hub.repos["org/demo"] = Repo(files)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    flags = ("--model_repository_path", str(tmp_path), "--allow_runtime_pull", "--ollama_port", str(port))
    try:
        with start_process(*flags, env={"HF_ENDPOINT": hub.url, "HF_TOKEN": ""}) as process:
            process.wait_for("ready: no models")
            base = f"http://127.0.0.1:{port}"
            assert httpx.get(base).text == "Ollama is running"
            client = ollama.Client(host=base, timeout=300)
            statuses = [part.status for part in client.pull("hf.co/org/demo", stream=True)]
            assert (statuses[0], statuses[-1]) == ("pulling manifest", "success")
            assert client.ps().models == []
            answer = client.chat("org/demo", [QUESTION], options=GREEDY)
            assert "Paris" in answer.message.content
            assert [model.model for model in client.ps().models] == ["org/demo:latest"]
            assert client.generate("org/demo", keep_alive=0).done_reason == "unload"
            assert client.ps().models == []
            assert client.delete("org/demo").status == "success"
            assert client.list().models == []
            client._client.close()
    finally:
        hub.stop()
    assert list(tmp_path.rglob("*.bin")) == []
