"""The load of `bench embed`."""

from __future__ import annotations

import socket
import threading
import time

from bench.embed import closed_loop, request

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


def test_a_server_may_close_a_connection_that_has_nothing_left_to_send() -> None:
    """As uvicorn does after five seconds, while another connection still waits for its answer."""
    closed = threading.Event()

    def serve(connection: socket.socket, last: bool) -> None:
        with connection:
            body = request(["text"])
            assert connection.recv(len(body), socket.MSG_WAITALL) == body
            if last:
                closed.wait(10)
                time.sleep(0.02)
            connection.sendall(ANSWER)
        closed.set()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        done: list[int] = []
        client = threading.Thread(target=lambda: done.append(len(closed_loop(port, [["text"]] * 2, 2).latencies)))
        client.start()
        servers = [threading.Thread(target=serve, args=(listener.accept()[0], last)) for last in (False, True)]
        for thread in servers:
            thread.start()
        for thread in (*servers, client):
            thread.join(20)

    assert done == [2]
