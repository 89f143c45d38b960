"""The server inside a program: it starts nothing at import, ends with its block, and answers without sockets."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from lean_ovms import embed, features
from lean_ovms.asgi import Hosted
from lean_ovms.config import Config
from lean_ovms.embed import Client, ClientError, StartError, asgi, opened, running
from lean_ovms.features.asgi import host as hosted
from lean_ovms.features.embed import program
from lean_ovms.ray_serve import LeanOvms

ROOT = Path(__file__).parents[3]
FEATURES = ROOT / "lean_ovms" / "features"
FAKE = {"fake_engine": True, "access_log": False, "model_name": "m"}
SLOW = {"plugin_config": '{"step_s": 0.01, "answer": "a long answer that takes its time, step by step"}'}
LOCAL = {**FAKE, "rest_port": 0, "rest_bind_address": "127.0.0.1"}


def test_the_pages_about_programs_show_the_examples_that_tests_run() -> None:
    pages = "".join((FEATURES / name / "README.md").read_text("utf-8") for name in features.HOSTS)
    shown = re.findall(r"```python\n(.*?)```", pages, re.S)
    examples = ROOT / "docs" / "examples"
    assert sorted(shown) == sorted(path.read_text("utf-8") for path in examples.glob("*.py"))


def test_what_the_page_about_embedding_names_comes_from_one_module() -> None:
    page = "".join((FEATURES / name / "README.md").read_text("utf-8") for name in ("embed", "asgi"))
    named = set(
        re.findall(r"\b(App|Client|ClientError|Config|Request|Response|StartError|asgi|opened|running)\b", page)
    )
    assert named <= set(program.__all__)
    assert all(hasattr(embed, name) for name in program.__all__)


QUIET = """
import asyncio, logging, sys
from lean_ovms.embed import opened

async def main():
    async with opened(model_path=sys.argv[1]) as app:
        pass

exec(sys.argv[2])
asyncio.run(main())
"""


@pytest.mark.model
@pytest.mark.parametrize(
    ("configured", "line"),
    [
        ("", None),
        (
            "logging.basicConfig(level='INFO')",
            r"INFO:lean_ovms\.engine\.output:engine \d+: lean_ovms\.engine\.worker: pipeline ",
        ),
    ],
)
def test_the_engine_writes_no_line_that_the_program_did_not_ask_for(configured: str, line: str | None) -> None:
    command = [sys.executable, "-c", QUIET, str(ROOT / "tests" / "data" / "llama_sp"), configured]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    if line is None:
        assert said == ""
    else:
        assert re.search(f"^{line}", said, re.M), said


@pytest.mark.slow
def test_importing_what_embeds_starts_nothing() -> None:
    code = (
        "import signal, threading, lean_ovms.embed, lean_ovms.asgi, lean_ovms.ray_serve, sys\n"
        "print(threading.active_count(), signal.getsignal(signal.SIGTERM) == signal.SIG_DFL,"
        "'openvino' in sys.modules, 'ray' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "True", "False", "False"]
    code = "import sys, lean_ovms; print(*sorted(m for m in sys.modules if m.startswith('lean_ovms')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["lean_ovms"]


@pytest.mark.slow
async def test_servers_in_this_loop_listen_and_are_gone_after_their_block() -> None:
    servers: list[Any] = []

    async def interrupted() -> None:
        async with running(**LOCAL) as server, running(**{**LOCAL, "model_name": "n"}) as other:
            servers.extend([server, other])
            async with httpx.AsyncClient(base_url=server.addresses[0], timeout=300) as http:
                assert (await http.get("/v2/health/ready")).status_code == 200
            names = [[m["id"] for m in (await each.client.get("/v1/models"))["data"]] for each in servers]
            assert names == [["m"], ["n"]]
            raise KeyError

    with pytest.raises(KeyError):
        await interrupted()
    server, other = servers
    assert server.app.registry.models["m"].engine.state == "stopped"
    assert other.app.registry.models["n"].engine.state == "stopped"
    async with httpx.AsyncClient(timeout=300) as http:
        with pytest.raises(httpx.ConnectError):
            await http.get(server.addresses[0] + "/v2/health/ready")


@pytest.mark.slow
async def test_running_requests_finish_when_the_block_ends() -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "temperature": 0}
    async with httpx.AsyncClient(timeout=300) as http:
        async with running(**LOCAL, **SLOW) as server:
            url = server.addresses[0] + "/v1/chat/completions"
            asked = asyncio.ensure_future(http.post(url, json=body))
            while not any([(await model.stats()).running for model in server.app.registry.models.values()]):
                await asyncio.sleep(0.001)
        assert (await asked).json()["choices"][0]["message"]["content"].endswith("step by step")


async def test_an_option_that_does_not_exist_is_an_error_with_a_similar_one() -> None:
    for open_it in (opened, running):
        with pytest.raises(StartError, match=r"did you mean --max_num_seqs\?"):
            async with open_it(max_num_seq=4):  # type: ignore[call-overload]
                raise AssertionError
    with pytest.raises(StartError, match="max_num_seqs must be a whole number, not 'four'"):
        async with opened(max_num_seqs="four"):  # type: ignore[call-overload]
            raise AssertionError


async def test_a_start_that_fails_says_why_and_leaves_nothing() -> None:
    with pytest.raises(StartError, match="/no/such/model"):
        async with opened(model_path="/no/such/model"):
            raise AssertionError
    with pytest.raises(StartError, match="rest_port"):
        async with running(rest_port=-1):
            raise AssertionError


# --- asked without sockets


@pytest.mark.slow
async def test_the_client_streams_what_it_also_answers_at_once() -> None:
    async with opened(**FAKE, **SLOW, api_key="secret") as app:
        client = Client(app)
        whole = await client.chat("hello", max_tokens=8, temperature=0)
        pieces = [piece async for piece in client.chat_stream("hello", max_tokens=8, temperature=0)]
        assert len(pieces) > 1
        assert "".join(pieces) == whole
        chunks = [c async for c in client.stream("/v1/completions", {"model": "m", "prompt": "x", "max_tokens": 2})]
        assert chunks[-1]["choices"][0]["finish_reason"] == "length"
        events = [event["type"] async for event in client.stream("/v1/responses", {"model": "m", "input": "x"})]
        assert (events[0], events[-1]) == ("response.created", "response.completed")
        left = client.chat_stream("x", max_tokens=900)
        assert await left.__anext__()
        await left.aclose()
        while (stats := await app.registry.models["m"].stats()).running:
            pass
        assert stats.kv_blocks_used == 0


@pytest.mark.slow
async def test_the_client_reads_large_answers_that_are_sent_in_pieces() -> None:
    async with opened(**FAKE) as app:
        answer = await Client(app).post("/tokenize", {"model": "m", "prompt": "word " * 60_000})
        assert answer["count"] == len(answer["tokens"]) > 60_000


@pytest.mark.slow
async def test_a_refusal_is_an_exception_with_openais_error() -> None:
    async with opened(**FAKE) as app:
        client = Client(app)
        for attempt in (client.chat("x", temperature=9), client.chat("x", model="none"), client.get("/v1/none")):
            with pytest.raises(ClientError) as caught:
                await attempt
            assert caught.value.error["message"] in str(caught.value)
        assert caught.value.status == 404
        with pytest.raises(ClientError, match="temperature"):
            await client.chat_stream("x", temperature=9).__anext__()


@pytest.mark.slow
async def test_the_client_knows_the_errors_and_streams_of_every_api() -> None:
    async with opened(**FAKE) as app:
        client = Client(app)
        asked: list[tuple[str, dict[str, Any], str]] = [
            ("/api/chat", {"model": "none", "messages": []}, "none"),
            ("/embed", {"inputs": "x"}, "not for embeddings"),
            ("/v2/rerank", {"model": "none", "query": "x", "documents": ["y"]}, "none"),
            ("/v1/messages", {"model": "none", "max_tokens": 1, "messages": []}, "none|messages"),
        ]
        for path, body, named in asked:
            with pytest.raises(ClientError, match=named):
                await client.post(path, body)
        body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "options": {"num_predict": 4}}
        lines = [line async for line in client.stream("/api/chat", body)]
        assert [line["done"] for line in lines] == [*[False] * (len(lines) - 1), True]
        assert "".join(line["message"]["content"] for line in lines)
        events = [event async for event in client.stream("/v1/messages", {**body, "max_tokens": 4})]
        assert events[-1]["type"] == "message_stop"


# --- hosts


async def lives(app: Any, *, until: asyncio.Event) -> list[Any]:
    """Returns what a host sees of an app's lifespan, which ends when `until` is set."""
    messages, sent = ["lifespan.startup"], []

    async def receive() -> Any:
        if messages:
            return {"type": messages.pop()}
        await until.wait()
        return {"type": "lifespan.shutdown"}

    async def send(message: Any) -> None:
        sent.append(message)

    await app({"type": "lifespan"}, receive, send)
    return sent


async def until_ready(client: httpx.AsyncClient) -> None:
    for _ in range(2000):
        if (await client.get("/v2/health/ready")).status_code == 200:
            return
        await asyncio.sleep(0.005)
    raise AssertionError("never ready")


@pytest.mark.slow
async def test_a_hosted_app_lives_as_long_as_its_host() -> None:
    hosted, over = Hosted(lambda: Config(**FAKE)), asyncio.Event()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(hosted), base_url="http://host") as http:
        assert (await http.get("/v1/models")).status_code == 503
        assert (await http.post("/v1/completions", json={"model": "m", "prompt": "x"})).status_code == 503
        life = asyncio.ensure_future(lives(hosted, until=over))
        await until_ready(http)
        body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
        assert (await http.post("/v1/chat/completions", json=body)).status_code == 200
        over.set()
        sent = await life
        assert [m["type"] for m in sent] == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
        assert (await http.get("/v1/models")).status_code == 503


@pytest.mark.parametrize("options", [{"model_name": "m"}, {"model_repository_path": "none"}, {"source_model": "o/m"}])
async def test_options_that_point_to_no_model_start_nothing(options: dict[str, Any]) -> None:
    """In no case does the demo model answer under another name."""
    with pytest.raises(StartError):
        async with opened(**options):
            pass
    sent = await lives(Hosted(lambda: Config(**options)), until=asyncio.Event())
    assert sent[0]["type"] == "lifespan.startup.failed"
    replica = LeanOvms.__new__(LeanOvms)
    with pytest.raises(StartError):
        await replica.__init__(**options)  # type: ignore[misc]  # as Ray does
    await replica.close()


async def test_a_hosts_misspelt_variable_stops_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEAN_OVMS_MODELPATH", "/models/m")
    sent = await lives(hosted.app, until=asyncio.Event())
    assert sent[0]["type"] == "lifespan.startup.failed"
    assert "did you mean LEAN_OVMS_MODEL_PATH?" in sent[0]["message"]


@pytest.mark.slow
async def test_an_app_can_be_mounted_below_a_path() -> None:
    async with opened(**FAKE) as app:
        site = Starlette(routes=[Mount("/llm", asgi(app))])
        async with httpx.AsyncClient(transport=httpx.ASGITransport(site), base_url="http://host") as http:
            answer = await http.get("/llm/v1/models")
            assert [m["id"] for m in answer.json()["data"]] == ["m"]
            assert (await http.get("/v1/models")).status_code == 404


@pytest.mark.slow
async def test_a_ray_replica_serves_and_reports_its_health() -> None:
    replica = LeanOvms.__new__(LeanOvms)
    await replica.__init__(**FAKE, metrics_enable="true")  # type: ignore[misc]  # as Ray does, with texts of serve run
    try:
        await replica.check_health()
        sent: list[Any] = []
        body = orjson.dumps({"model": "m", "prompt": "x", "max_tokens": 2, "stream": True})
        await exchange(replica, "/v1/completions", body, sent)
        assert sent[0]["status"] == 200
        assert b"".join(m.get("body", b"") for m in sent).endswith(b"data: [DONE]\n\n")
    finally:
        closing = replica.__del__()
        assert closing is not None
        await closing
    assert replica.__del__() is None
    with pytest.raises(RuntimeError):
        await replica.check_health()


async def exchange(replica: LeanOvms, path: str, body: bytes, sent: list[Any]) -> None:
    from starlette.requests import Request

    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": [], "client": ("c", 1),
             "root_path": "", "asgi": {"spec_version": "2.4"}}  # fmt: skip
    messages = [{"type": "http.request", "body": body}]

    async def receive() -> Any:
        if not messages:
            await asyncio.Event().wait()
        return messages.pop()

    async def send(message: Any) -> None:
        sent.append(message)

    response = await replica(Request(scope, receive))
    await response(scope, receive, send)
