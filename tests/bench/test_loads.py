"""The loads of the benchmarks, where a server closes connections that have nothing to do."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable

import pytest

from bench.client import Load, payload
from bench.embed import closed_loop, request
from bench.work import Work

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


def embeddings(port: int) -> int:
    return len(closed_loop(port, [["text"]] * 2, 2).latencies)


def chats(port: int) -> int:
    work = Work(prompts=["", ""], max_tokens=1, concurrency=2)
    return len(Load(work, ("127.0.0.1", port), [payload("/", None)] * 2, "/").run().total)


@pytest.mark.parametrize(("load", "sent"), [(embeddings, request(["text"])), (chats, payload("/", None))])
def test_a_server_may_close_a_connection_that_has_nothing_left_to_send(load: Callable, sent: bytes) -> None:
    """As uvicorn does after five seconds, while another connection still waits for its answer."""
    closed = threading.Event()

    def serve(connection: socket.socket, last: bool) -> None:
        with connection:
            assert connection.recv(len(sent), socket.MSG_WAITALL) == sent
            if last:
                closed.wait(10)
                time.sleep(0.02)
            connection.sendall(ANSWER)
        closed.set()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        done: list[int] = []
        client = threading.Thread(target=lambda: done.append(load(listener.getsockname()[1])))
        client.start()
        servers = [threading.Thread(target=serve, args=(listener.accept()[0], last)) for last in (False, True)]
        for thread in servers:
            thread.start()
        for thread in (*servers, client):
            thread.join(20)

    assert done == [2]
