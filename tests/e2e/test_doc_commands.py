"""Every command in the README and in docs/*.md is run with a server, or parsed as options, or listed with a reason.

Examples of clients are sent to a server with the demo models. Command lines that start a server are parsed. The steps
of docs/first_model.md are executed one by one.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from lean_ovms.cli.arguments import parse
from lean_ovms.cli.commands import commands
from tests.e2e.conftest import Process, start_process
from tests.recordings import pcm, tone, wav

ROOT = Path(__file__).parents[2]
FILES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FILES += sorted((ROOT / "lean_ovms" / "features").glob("*/README.md"))
HERE = "http://localhost:8000"
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHELLS = ("sh", "bash", "console", "shell")
SERVER = re.compile(r"(?:[A-Z_]+=\S+ )*(?:python -m lean_ovms|lean_ovms)\b")
RAYS = re.compile(r"serve (?:run|deploy) ")
"""Matches commands of Ray, which tests/e2e/test_ray.py checks."""
WALK = "first_model.md"


class Block(NamedTuple):
    """A fenced block of commands."""

    file: str
    text: str

    @property
    def kind(self) -> str:
        """ "curl", "server" (all lines start one, or are other commands of this program or of Ray), or "other"."""
        if self.text.startswith("curl "):
            return "curl"
        lines = [line for line in self.text.splitlines() if line.strip()]
        return "server" if all(SERVER.match(line) or RAYS.match(line) for line in lines) else "other"


def blocks() -> Iterator[Block]:
    for file in FILES:
        for language, text in FENCE.findall(file.read_text("utf-8")):
            if language in SHELLS or (not language and SERVER.match(text)):
                of_feature = file.parent.parent.name == "features"
                yield Block(f"features/{file.parent.name}" if of_feature else file.name, text)


BLOCKS = list(blocks())
VISION = "curl http://localhost:8000/v1/chat/completions -H 'Content-Type: application/json' -d @- <<END"
NOT_RUN = {
    ("README.md", "pip install ."): "installs: the tests run from the source",
    ("README.md", 'pip install ".[test]"'): "installs, and runs the tests: .ci/run does it",
    ("README.md", "lean_ovms launch"): "needs the agent; tests/features/terminal starts another program",
    ("README.md", VISION): "needs a vision model and a picture; tests/e2e/test_vision.py runs it",
    ("features/named_keys", "python -c"): "makes an API key; tests/features/named_keys/test_keys.py runs it",
    ("features/terminal", "lean_ovms launch"): "needs the agent; tests/features/terminal starts another program",
    ("features/pdf", "curl"): "needs a PDF file; tests/features/pdf/test_pdf.py sends one",
    ("agents.md", "cline"): "needs the agents; tests/api/agents replays their requests",
    ("agents.md", "ANTHROPIC_API_BASE"): "needs the agent; tests/api/agents replays its requests",
    ("features/asgi", "LEAN_OVMS_MODEL_PATH"): "another server's command; tests/e2e/test_embedding_examples.py runs it",
    (WALK, "optimum-cli"): "needs the network and torch",
    (WALK, "mkdir -p /var/lib"): "changes the machine, as root; tests/e2e/test_deploy.py checks the unit",
    ("open_webui.md", "docker run"): "needs an image from the network",
    ("langchain.md", "pip install"): "installs from the network",
    ("features/voice", "optimum-cli"): "needs the network and torch; tests/e2e/test_text_to_speech.py asks",
    ("features/pooling", "optimum-cli"): "needs the network and torch; tests/e2e/test_image_vectors.py asks",
    ("features/images", "optimum-cli"): "needs the network and torch; tests/features/images/test_e2e.py asks",
}  # fmt: skip
"""Blocks that are not run, by file and first words, with the reason."""


def reason(block: Block) -> str | None:
    return next(
        (why for (file, start), why in NOT_RUN.items() if file == block.file and block.text.startswith(start)), None
    )


def test_every_block_is_run_or_says_why_not() -> None:
    walked = {block for block in BLOCKS if block.file == WALK}
    left = [b for b in BLOCKS if b.kind == "other" and reason(b) is None and b not in walked]
    assert left == []
    used = [key for key in NOT_RUN if any(b.file == key[0] and b.text.startswith(key[1]) for b in BLOCKS)]
    assert used == list(NOT_RUN)
    named = re.findall(r"tests/[\w/]+(?:\.py)?", " ".join(NOT_RUN.values()))
    assert [path for path in named if not (ROOT / path).exists()] == []


SERVERS = [b for b in BLOCKS if b.kind == "server" and reason(b) is None]


@pytest.mark.parametrize("block", SERVERS, ids=lambda b: f"{b.file}: {b.text[:40]}")
def test_command_lines_of_the_server_are_understood(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("Qwen3-8B-int4-ov", "qwen3"):
        (tmp_path / name).mkdir()
    for line in (line for line in block.text.splitlines() if not RAYS.match(line)):
        for command in line.split("&&"):
            words = shlex.split(command, comments=True)
            start = next(i for i, word in enumerate(words) if word == "lean_ovms") + 1
            name = words[start] if words[start:] else ""
            options = words[start + 1 :] if name in commands() and commands()[name].reader else words[start:]
            parse(options, {})


def run(command: str, url: str, folder: Path) -> str:
    """Runs a command in a shell with this server, and returns its output."""
    script = (
        command.replace(HERE, url)
        .replace("curl ", "curl -sS --fail-with-body ")
        .replace("python -", f"{sys.executable} -")
    )
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-ec", script], cwd=folder, env=environ, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


Place = tuple[str | int, ...]
CHAT: Place = ("choices", 0, "message", "content")
ANSWERS: dict[str, Place] = {
    "/v1/chat/completions": CHAT,
    "/invocations": CHAT,
    "/v1/chat/completions/batch": ("choices", 1, "message", "content"),
    "/v1/completions": ("choices", 0, "text"),
    "/v1/responses": ("output", 0, "content", 0, "text"),
    "/v1/messages": ("content", 0, "text"),
    "/completion": ("content",),
    "/v1/decisions": ("answers", 1, "choice"),
    "/v1/systemone": ("answers", "topic", "choice"),
    "/v1/embeddings": ("data", -1, "embedding", 0),
    "/embed": (1, 0),
    "/v1/rerank": ("results", 0, "document", "text"),
    "/v1/models": ("data", 1, "id"),
    "/v1/config": ("demo-embed", "model_version_status", 0, "state"),
    "/openapi.json": ("paths", "/v1/chat/completions", "post", "operationId"),
}
"""The path of the answer in the body of each endpoint."""
CALL: Place = ("choices", 0, "message", "tool_calls", 0, "function", "arguments")
EXACT_ANSWERS: dict[str, tuple[Place, object]] = {
    "features/chat": (CALL, '{"city": "Paris"}'),
    "features/completions": (ANSWERS["/v1/completions"], " Paris."),
    "features/models": (ANSWERS["/v1/models"], "demo-embed"),
    "features/ovms_admin": (ANSWERS["/v1/config"], "AVAILABLE"),
}
"""The answers to the commands of some pages, and their paths."""
PATH = re.compile(re.escape(HERE) + r"(\S+)")


def check(output: str, block: Block) -> None:
    """Checks that a response, unary or streamed, contains the expected answer."""
    [path] = PATH.findall(block.text)
    if '"stream": true' in block.text:
        *events, last = [line[6:] for line in output.splitlines() if line.startswith("data: ")]
        assert last == "[DONE]"
        chunks = [json.loads(event) for event in events]
        assert any(choice["delta"].get("content") for chunk in chunks for choice in chunk["choices"])
        return
    if path == "/api/chat":
        *parts, last = output.splitlines()
        assert json.loads(last)["done"]
        assert "".join(json.loads(part)["message"]["content"] for part in parts)
        return
    body = json.loads(output)
    place, expected = EXACT_ANSWERS.get(block.file, (ANSWERS[path], None))
    for step in place:
        body = body[step]
    assert body == expected if block.file in EXACT_ANSWERS else body


curl = shutil.which("curl")
CURLS = [b for b in BLOCKS if b.kind == "curl" and reason(b) is None and b.file != WALK]
SPOKEN = [b for b in CURLS if "/audio/" in b.text]


@pytest.mark.model
@pytest.mark.skipif(curl is None, reason="curl is not installed")
@pytest.mark.parametrize("block", [b for b in CURLS if b not in SPOKEN], ids=lambda b: f"{b.file}: {b.text[26:60]}")
def test_requests_are_answered(block: Block, server: Process, tmp_path: Path) -> None:
    server.wait_for("ready: ")
    check(run(block.text, server.url, tmp_path), block)


@pytest.mark.skipif(curl is None, reason="curl is not installed")
def test_audio_is_transcribed(tmp_path: Path) -> None:
    """The scripted engine says a word for each half second of sound."""
    (tmp_path / "numbers.wav").write_bytes(wav(pcm(2 * 0.35 * tone(0.5))))
    with start_process("--fake_engine", "--task", "speech2text", "--model_name", "whisper") as process:
        process.wait_for("ready: ")
        for block in SPOKEN:
            assert "three" in run(block.text.replace("model=NAME", "model=whisper"), process.url, tmp_path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The working directory of the walk; qwen3 is the demo model."""
    made = tmp_path_factory.mktemp("walk")
    (made / "qwen3").symlink_to(ROOT / "lean_ovms" / "demo_model")
    return made


def walk(folder: Path, block: Block) -> Process:
    """Starts the server as a command of the walk does, with the scripted engine and another port set in the
    environment."""
    words = shlex.split(block.text)
    assert words[:3] == ["python", "-m", "lean_ovms"]
    options = [word.replace("./", f"{folder}/") if word != "key" else str(folder / "key") for word in words[3:]]
    return start_process(*options, env={"LEAN_OVMS_FAKE_ENGINE": "true"})


@pytest.mark.skipif(curl is None, reason="curl is not installed")
def test_the_walk_through_first_model(folder: Path) -> None:
    _, serve, ask, key, serve_with_key, ask_with_key, _, health = [b for b in BLOCKS if b.file == WALK]
    process = walk(folder, serve)
    try:
        process.wait_for("ready: qwen3")
        check(run(ask.text, process.url, folder), ask)
        port = process.url.rpartition(":")[2]
        assert run(health.text.replace("8000", port), process.url, folder) == ""
    finally:
        process.end()
    run(key.text, "", folder)
    assert (folder / "key").stat().st_mode & 0o777 == 0o600
    process = walk(folder, serve_with_key)
    try:
        process.wait_for("ready: qwen3")
        with pytest.raises(AssertionError, match="401"):
            run(ask.text, process.url, folder)
        check(run(ask_with_key.text, process.url, folder), ask_with_key)
    finally:
        process.end()


@pytest.mark.model
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_examples_of_langchain(server: Process, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("langchain_openai")
    server.wait_for("ready: ")
    chat, vectors = [
        text for language, text in FENCE.findall((ROOT / "docs" / "langchain.md").read_text()) if language == "python"
    ]
    exec(compile(chat.replace(HERE, server.url), "langchain.md", "exec"), {})
    assert len(capsys.readouterr().out) > 20
    exec(compile(vectors.replace(HERE, server.url), "langchain.md", "exec"), {})
    assert int(capsys.readouterr().out) > 0


@pytest.mark.model
def test_the_file_of_continue_leads_to_both_models(server: Process) -> None:
    server.wait_for("ready: ")
    [text] = [
        text for language, text in FENCE.findall((ROOT / "docs" / "continue.md").read_text()) if language == "yaml"
    ]
    fields = re.findall(r"^ +(model|apiBase|apiKey): (\S+)$", text, re.MULTILINE)
    first, second = dict(fields[:3]), dict(fields[3:])
    for entry, path, body in (
        (first, "/chat/completions", {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 20}),
        (second, "/embeddings", {"input": ["Hello!"]}),
    ):
        url = entry["apiBase"].replace(HERE, server.url) + path
        headers = {"Authorization": f"Bearer {entry['apiKey']}"}
        answer = httpx.post(url, json={"model": entry["model"], **body}, headers=headers, timeout=300)
        assert answer.status_code == 200, answer.text
    listed = {model["id"] for model in httpx.get(server.url + "/v1/models", timeout=300).json()["data"]}
    assert {first["model"], second["model"]} <= listed
