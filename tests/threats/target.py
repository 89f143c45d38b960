"""A server process to attack: raw bytes in, complete answers out, and a view of its resources."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from http.client import HTTPResponse
from pathlib import Path
from typing import Any, TypeVar

CHAT = "/v1/chat/completions"
HI = [{"role": "user", "content": "hi"}]
PATIENT_S = 300.0
"""Seconds to wait for something that must happen, because the machine may be busy."""
COMING = 1
"""The number of open files of helpers that start when needed; a leak would add one per request."""


@dataclass(frozen=True)
class CompletedChoice:
    """A complete HTTP response. `headers` has lower-case names."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """Returns the error object, and checks that there is one."""
        error = self.json["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert isinstance(error["message"], str)
        assert error["message"]
        found: dict[str, Any] = error
        return found


@dataclass(frozen=True)
class Held:
    """The resources that a server holds at one moment. `files` are those of the front end and the engine child."""

    engine: int
    files: tuple[int, int]
    running: float
    waiting: float
    kv_cache: float

    def fits(self, quiet: Held) -> bool:
        """Returns whether the resources are those of an idle server."""
        mine, least = (replace(held, files=(0, 0)) for held in (self, quiet))
        return mine == least and all(a <= b + COMING for a, b in zip(self.files, quiet.files, strict=True))


@dataclass
class Target:
    """A server process. `log` has all of its output."""

    popen: subprocess.Popen[bytes]
    port: int
    log_file: Path
    quiet: Held | None = None
    sockets: list[socket.socket] = field(default_factory=list)

    @property
    def log(self) -> str:
        return self.log_file.read_bytes().decode("utf-8", "backslashreplace")

    # --- talking

    def connect(self) -> socket.socket:
        """Opens a connection, which is closed with the target at the latest."""
        sock = socket.create_connection(("127.0.0.1", self.port), PATIENT_S)
        self.sockets.append(sock)
        return sock

    def raw(self, *pieces: bytes, method: str = "POST") -> CompletedChoice:
        """Sends bytes, and returns the answer. `method` says whether this has a body."""
        with self.connect() as sock:
            with contextlib.suppress(OSError):  # the server may have answered and stopped reading
                for piece in pieces:
                    sock.sendall(piece)
            return read_answer(sock, method)

    def post(self, path: str, body: Any, **headers: str) -> CompletedChoice:
        """Sends a body of JSON text as bytes, or of a value that becomes JSON."""
        return self.raw(request(path, body, **headers))

    def chat(self, **fields: Any) -> CompletedChoice:
        return self.post(CHAT, {"model": "m", "messages": HI, "temperature": 0, "max_tokens": 8, **fields})

    def usual(self, **fields: Any) -> CompletedChoice:
        """Sends a typical request of this server's clients."""
        return self.chat(**fields)

    def get(self, path: str) -> CompletedChoice:
        return self.raw(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode(), method="GET")

    # --- looking

    def metric(self, name: str) -> float:
        """Returns the sum of a metric over all labels."""
        found = re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", self.get("/metrics").body.decode(), re.MULTILINE)
        assert found, f"no metric {name}"
        return sum(map(float, found))

    def engine(self) -> int:
        """The process id of the engine child, 0 while there is none."""
        pids = Path(f"/proc/{self.popen.pid}/task/{self.popen.pid}/children").read_text().split()
        return int(pids[0]) if pids else 0

    def resident_mb(self) -> float:
        """Returns the memory of the front end."""
        return int(Path(f"/proc/{self.popen.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

    def links(self) -> list[list[str]]:
        """Returns the targets of the open files of front end and engine."""
        found = [Path(f"/proc/{pid}/fd").iterdir() for pid in (self.popen.pid, self.engine())]
        return [sorted(os.readlink(path) for path in paths if path.is_symlink()) for paths in found]

    def held(self) -> Held:
        engine = self.engine()
        return Held(
            engine,
            (files(self.popen.pid), files(engine)),
            self.metric("vllm:num_requests_running"),
            self.metric("vllm:num_requests_waiting"),
            self.metric("vllm:kv_cache_usage_perc"),
        )

    def settle(self) -> None:
        """Waits until the server holds what it held the first time, before any request."""
        if self.quiet is None:
            self.quiet = self.held()
            time.sleep(0.1)  # by now, the connections of the requests are closed
            self.quiet = self.held()
        quiet = self.quiet
        until(lambda: self.held().fits(quiet), lambda: f"{self.held()} is more than {quiet}; {self.links()}")

    def close(self) -> None:
        for sock in self.sockets:
            sock.close()
        self.popen.kill()
        self.popen.wait()


class EmbeddingTarget(Target):
    """A server of an embedding model."""

    def embed(self, given: Any = "hi", **fields: Any) -> CompletedChoice:
        return self.post("/v1/embeddings", {"model": "m", "input": given, **fields})

    def usual(self, **fields: Any) -> CompletedChoice:
        return self.embed(**fields)


AnyTarget = TypeVar("AnyTarget", bound=Target)


def files(pid: int) -> int:
    """Returns the number of open files of a process."""
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except FileNotFoundError:
        return 0


def until(condition: Callable[[], bool], what: Callable[[], str] = lambda: "it never came true") -> None:
    deadline = time.monotonic() + PATIENT_S
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.02)


def request(path: str, body: Any, **headers: str) -> bytes:
    """Returns a POST as bytes."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {len(data)}"]
    named = {"content-type": "application/json", **{name.replace("_", "-"): text for name, text in headers.items()}}
    lines += [f"{name}: {text}" for name, text in named.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + data


def read_answer(sock: socket.socket, method: str = "POST") -> CompletedChoice:
    """Reads the next answer on a connection."""
    response = HTTPResponse(sock, method=method)
    try:
        response.begin()
        body = response.read()
        return CompletedChoice(response.status, {name.lower(): text for name, text in response.getheaders()}, body)
    finally:
        response.close()


def read_all(sock: socket.socket) -> bytes:
    """Reads everything up to the end of the connection."""
    data = b""
    with contextlib.suppress(ConnectionResetError, BlockingIOError):
        while piece := sock.recv(65536):
            data += piece
    return data


def read_arrived(sock: socket.socket) -> bytes:
    """Reads everything that has arrived on a connection that the server has closed.

    What the kernel held for a reader that takes nothing arrives later or never: it probes the window of a closed
    connection at intervals of up to two minutes, and then silently gives up.
    """
    sock.setblocking(False)
    return read_all(sock)


@contextlib.contextmanager
def start_target(folder: Path, *flags: str, kind: type[AnyTarget] = Target) -> Iterator[AnyTarget]:  # type: ignore[assignment]
    """Starts `python -m lean_ovms` and waits until it is ready, with the scripted engine unless flags name a model."""
    log_file = folder / "log"
    command = [sys.executable, "-m", "lean_ovms", "--rest_port", "0", "--rest_bind_address", "127.0.0.1"]
    command += ["--model_name", "m", "--metrics_enable", "true"]
    command += [] if "--model_path" in flags else ["--fake_engine", "true"]
    with log_file.open("wb") as log:
        popen = subprocess.Popen([*command, *flags], stderr=log, stdout=log)
    target = kind(popen, 0, log_file)
    try:
        until(lambda: "ready: m" in target.log or popen.poll() is not None, lambda: target.log)
        found = re.search(r"listens on http://127\.0\.0\.1:(\d+)", target.log)
        assert found, target.log
        target.port = int(found[1])
        assert target.usual().status == 200
        target.get("/metrics")
        yield target
        assert popen.poll() is None, target.log
        popen.send_signal(signal.SIGTERM)
        assert popen.wait(PATIENT_S) == 0
        assert "Traceback" not in target.log
    finally:
        target.close()


class Bystander:
    """A client that sends requests all the time. `answers` has their statuses."""

    def __init__(self, target: Target, **fields: Any) -> None:
        self.statuses: list[int] = []
        self._target = target
        self._fields = fields
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while True:
            self.statuses.append(self._target.usual(**self._fields).status)
            if self._enough.wait(0.02):
                return

    def __enter__(self) -> Bystander:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        self._thread.join()


@contextlib.contextmanager
def in_use(target: AnyTarget) -> Iterator[AnyTarget]:
    """Yields the server with a bystander, who must always be served. Afterwards nothing of it may be left."""
    with Bystander(target) as bystander:
        yield target
    assert set(bystander.statuses) == {200}
    target.settle()
