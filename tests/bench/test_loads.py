"""The loads of the benchmarks, with servers that close idle connections."""

from __future__ import annotations

import socket
import threading

import pytest

from bench import client
from bench.client import Load, payload
from bench.work import Work

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


def chats(port: int) -> int:
    work = Work(prompts=["", ""], max_tokens=1, concurrency=2)
    return len(Load(work, ("127.0.0.1", port), [payload("/", None)] * 2, "/").run().total)


def scripted(listener: socket.socket, turns: list[list[bytes]], seen: list[int]) -> None:
    """Serves scripted answers for each connection, and closes the connection after the last."""
    listener.settimeout(300)
    for number, answers in enumerate(turns):
        connection = listener.accept()[0]
        with connection:
            for answer in answers:
                connection.recv(len(payload("/", None)), socket.MSG_WAITALL)
                seen.append(number)
                connection.sendall(answer)


@pytest.mark.parametrize(
    ("turns", "seen", "answered"),
    [
        pytest.param([[ANSWER, b""], [ANSWER, ANSWER]], [0, 0, 1, 1], 3, id="after an answer"),
        pytest.param([[ANSWER, b""], [b""]], [0, 0, 1], None, id="the second time too"),
        pytest.param([[b""]], [0], None, id="a new connection"),
        pytest.param([[ANSWER, ANSWER[:20]]], [0, 0], None, id="within an answer"),
    ],
)
def test_a_request_that_crossed_the_closing_of_its_connection_is_sent_once_more(
    turns: list[list[bytes]], seen: list[int], answered: int | None
) -> None:
    """llama-server closes the connection after a stream without announcing it."""
    came: list[int] = []
    work = Work(prompts=["", "", ""], max_tokens=1, concurrency=1)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=scripted, args=(listener, turns, came))
        server.start()
        load = Load(work, listener.getsockname(), [payload("/", None)] * 3, "/")
        if answered:
            assert len(load.run().total) == answered
        else:
            with pytest.raises(SystemExit, match="hung up"):
                load.run()
        server.join(300)

    assert came == seen


def test_a_server_that_sends_nothing_ends_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "SILENT_S", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as listener, pytest.raises(SystemExit, match="no byte came"):
        chats(listener.getsockname()[1])
