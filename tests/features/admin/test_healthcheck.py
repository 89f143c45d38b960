"""lean-ovms healthcheck finds the address in the options, also in those of a running process."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lean_ovms.api import router
from lean_ovms.cli.commands import commands
from lean_ovms.cli.main import run_command
from lean_ovms.composition import compose, manifests
from lean_ovms.config import Config
from lean_ovms.errors import CommandFailed
from lean_ovms.features.admin import client, healthcheck
from lean_ovms.features.admin.client import address as address_of

READY = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
TLS = Path(__file__).parents[2] / "transports" / "http11" / "tls"
LOADING = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 7\r\n\r\nloading"


@contextmanager
def answering(listener: socket.socket, answer: bytes) -> Iterator[list[bytes]]:
    """Serves one connection, and yields the requests that arrive."""
    seen: list[bytes] = []

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            seen.append(connection.recv(4096))
            connection.sendall(answer)

    listener.listen(1)
    thread = threading.Thread(target=serve)
    thread.start()
    with listener:
        yield seen
        thread.join(300)


@pytest.fixture
def listener() -> socket.socket:
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    return sock


def test_every_server_has_the_path_that_is_asked() -> None:
    optional = ",".join(one.name for one in manifests() if not one.essential)
    assert client.READY in router.paths(compose(optional))


@pytest.mark.parametrize(("answer", "status"), [(READY, 0), (LOADING, 1), (b"nonsense\r\n\r\n", 1)])
def test_the_status_says_whether_the_server_is_ready(
    listener: socket.socket, answer: bytes, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    port = str(listener.getsockname()[1])
    with answering(listener, answer) as seen:
        assert run_command(commands()["healthcheck"], ["--rest_port", port], {}) == status
    assert seen[0].startswith(b"GET /health HTTP/1.1\r\n")
    error = capsys.readouterr().err
    assert (error == "") == (status == 0)
    if answer == LOADING:
        assert "503 Service Unavailable: loading" in error


def test_a_server_on_a_unix_socket(tmp_path: Path) -> None:
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(str(tmp_path / "s"))
    with answering(sock, READY):
        assert run_command(commands()["healthcheck"], ["--unix_socket", str(tmp_path / "s")], {}) == 0
    (tmp_path / "s").unlink()
    assert run_command(commands()["healthcheck"], ["--unix_socket", str(tmp_path / "s")], {}) == 1


def test_a_server_that_needs_certificates_gets_its_own(listener: socket.socket) -> None:
    port, cert, key = str(listener.getsockname()[1]), str(TLS / "cert.pem"), str(TLS / "key.pem")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=cert)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(cert, key)
    files = ["--ssl_certfile", cert, "--ssl_keyfile", key, "--ssl_ca_certs", cert]
    with answering(context.wrap_socket(listener, server_side=True), READY):
        assert run_command(commands()["healthcheck"], ["--rest_port", port, *files], {}) == 0


@pytest.mark.parametrize(
    "command",
    [
        ["/opt/bin/python", "/opt/bin/lean-ovms", "--rest_port", "PORT", "--model_path", "/m"],
        ["python", "-m", "lean_ovms", "serve", "--rest_port=PORT", "org/name"],
        ["/sbin/docker-init", "--", "/opt/bin/lean-ovms", "--port", "PORT"],
        ["python", "-m", "lean_ovms"],  # the environment is that of the container
    ],
)
def test_the_options_of_a_running_server(
    listener: socket.socket, tmp_path: Path, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(healthcheck, "PROC", tmp_path)
    port = str(listener.getsockname()[1])
    (tmp_path / "1").mkdir()
    words = [word.replace("PORT", port) for word in command]
    (tmp_path / "1" / "cmdline").write_bytes("".join(word + "\0" for word in words).encode())
    environ = {} if "PORT" in "".join(command) else {"LEAN_OVMS_REST_PORT": port}
    with answering(listener, READY):
        assert run_command(commands()["healthcheck"], ["--pid=1"], environ) == 0


@pytest.mark.parametrize(
    ("scheme", "answer", "said"),
    [
        ("https", LOADING, "wrong version number .*; a server without TLS needs http://$"),
        ("http", b"HTTP/1.0 401 No\r\n\r\n{}", "the API key is missing or wrong; set API_KEY, or give --api-key KEY$"),
        ("http", b"", "without response; a server with TLS needs https://$"),
        ("http", b"HTTP/1.0 404 No\r\n\r\n<!DOCTYPE html>", "^404 No: the answer is a web page, so another server "),
    ],
)
def test_another_protocol_or_server_is_recognized(
    listener: socket.socket, scheme: str, answer: bytes, said: str
) -> None:
    with answering(listener, answer), pytest.raises(CommandFailed, match=said):
        client.ServerClient(f"{scheme}://127.0.0.1:{listener.getsockname()[1]}").check("/health")


def test_a_server_that_is_not_there_is_named(listener: socket.socket, capsys: pytest.CaptureFixture[str]) -> None:
    port = listener.getsockname()[1]  # bound but not listening, so that nobody else can listen there
    with listener:
        assert run_command(commands()["healthcheck"], ["--rest_port", str(port)], {}) == 1
        error = capsys.readouterr().err
        assert error == (
            f"lean_ovms healthcheck: no answer from http://127.0.0.1:{port}: Connection refused; "
            "start a server with: lean_ovms serve MODEL\n"
        )


def test_what_cannot_be_checked_is_a_usage_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(healthcheck, "PROC", tmp_path)
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "cmdline").write_bytes(b"sleep\x001000\0")
    for argv, words in (
        (["--pid", "1"], "process 1 is not lean_ovms: sleep 1000"),
        (["--pid", "2"], "process 2: No such file"),
        (["--pid"], "expected one argument"),
        (["--rest_port", "0"], "only the server knows its port"),
        (["--no_such_option"], "no_such_option"),
    ):
        assert run_command(commands()["healthcheck"], argv, {}) == 2
        assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "address"),
    [
        ({}, "http://127.0.0.1:8000"),
        ({"rest_bind_address": "::"}, "http://[::1]:8000"),
        ({"rest_bind_address": "10.0.0.7,127.0.0.1", "rest_port": 9}, "http://10.0.0.7:9"),
        ({"ssl_certfile": "c", "ssl_keyfile": "k"}, "https://127.0.0.1:8000"),
        ({"unix_socket": "/run/s"}, "unix:/run/s"),
    ],
)
def test_the_address_is_that_of_the_options(options: dict[str, Any], address: str) -> None:
    assert address_of(Config(**options)) == address
