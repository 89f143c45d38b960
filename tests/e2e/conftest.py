"""The complete server with the demo model: in this process to look inside, as a process for everything else."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai
import pytest

from lean_ovms.api.app import App
from lean_ovms.config import Config
from lean_ovms.models.text_model import TextModel
from lean_ovms.server.run import build, load
from lean_ovms.transports.http11.server import Server

EXACT = '{"EXECUTION_MODE_HINT": "ACCURACY", "INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}'
"""Engine properties with which results do not depend on the batch."""


ANY_MODEL = {"model_path": str(Path(__file__).parents[1] / "data" / "llama_sp"), "model_name": "demo"}
"""For tests in which any model will do: with one layer, it loads in a fifth of the demo model's CPU time."""
ANY_FLAGS = [word for name, value in ANY_MODEL.items() for word in (f"--{name}", value)]
"""The same options on a command line."""
PATIENT_S = 300.0
"""Seconds to wait for something that must happen, because the machine may be slow and busy."""
PRECISION = os.environ.get("TEST_PRECISION", "")
"""The precision of servers in tests that set none; empty for OpenVINO's default. .ci/run tries both."""
HINT = json.dumps({"INFERENCE_PRECISION_HINT": PRECISION})
GRAMMAR_S = 30.0
"""CPU seconds for a grammar, in tests that are not about this limit."""


@dataclass
class Process:
    """A server started as a user does. `lines` has its output so far."""

    popen: subprocess.Popen[str]
    url: str
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._changed, self._closed = threading.Condition(), False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.popen.stderr is not None
        for line in self.popen.stderr:
            with self._changed:
                self.lines.append(line)
                self._changed.notify_all()
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def wait_for(self, text: str, timeout_s: float = PATIENT_S) -> str:
        """Returns the first line with this text, waiting for it if needed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or any(text in line for line in self.lines), timeout_s)
            found = next((line for line in self.lines if text in line), None)
        assert found is not None, f"no line with {text!r} in:\n{''.join(self.lines)}"
        return found

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Sends a signal and waits. Returns the exit status."""
        self.popen.send_signal(number)
        return self.popen.wait(PATIENT_S)

    def end(self) -> None:
        """Ends the process in any case, if it still exists."""
        self.popen.kill()
        self.popen.wait()
        self._reader.join(PATIENT_S)
        assert self.popen.stderr is not None
        self.popen.stderr.close()

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()


def start_process(*flags: str, env: dict[str, str] | None = None) -> Process:
    """Starts `python -m lean_ovms` on a free port, and waits until it listens; it may still be loading."""
    command = [sys.executable, "-m", "lean_ovms", "--rest_port", "0", "--rest_bind_address", "127.0.0.1", *flags]
    if PRECISION and not {"--plugin_config", "--fake_engine"} & {*flags} and "LEAN_OVMS_FAKE_ENGINE" not in (env or {}):
        command += ["--plugin_config", HINT]
    popen = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, **(env or {})})
    process = Process(popen, "")
    try:
        found = re.search(r"listens on (http\S+)", process.wait_for("listens on"))
        assert found
    except BaseException:
        process.end()
        raise
    process.url = found[1].rstrip(",")
    return process


@pytest.fixture(scope="session")
def server() -> Iterator[Process]:
    """A server process for all tests that do not change it, ready."""
    with start_process("--plugin_config", EXACT, "--grammar_timeout_s", str(GRAMMAR_S)) as process:
        process.wait_for("ready: demo")
        yield process


@pytest.fixture(scope="session")
def page_server() -> Iterator[Process]:
    """A server process for all tests of the web page in a browser, which load and unload its second model."""
    with start_process("--metrics_enable") as process:
        process.wait_for("ready: demo")
        yield process


@pytest.fixture
def client(server: Process) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=PATIENT_S) as client:
        yield client


@dataclass
class LocalServer:
    """A server in this process."""

    app: App
    server: Server
    url: str

    @property
    def model(self) -> TextModel:
        return next(iter(self.app.registry.models.values()))

    def client(self, **options: Any) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(
            base_url=self.url + "/v1", api_key="none", max_retries=0, timeout=PATIENT_S, **options
        )


@asynccontextmanager
async def local_server(**options: Any) -> AsyncIterator[LocalServer]:
    """Builds a server, listens and loads; stops it whatever happens."""
    options.setdefault("grammar_timeout_s", GRAMMAR_S)
    if PRECISION and not options.get("fake_engine"):
        options.setdefault("plugin_config", HINT)
    config = Config(rest_port=0, rest_bind_address="127.0.0.1", access_log=False, **options)
    app = build(config)
    server = Server(app.config, app.handle, app.is_vital, app.check_head)
    try:
        await server.start()
        await load(app)
        yield LocalServer(app, server, server.addresses[0])
    finally:
        await server.drain(0)
        for model in app.registry.models.values():
            await model.stop()
        await app.close()


async def until(condition: Callable[[], bool | Awaitable[bool]], timeout_s: float = PATIENT_S) -> None:
    """Waits until a condition holds."""
    import asyncio

    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if await value if isinstance(value, Awaitable) else value:
            return
        assert time.monotonic() < deadline, "it never came true"
        await asyncio.sleep(0.01)
