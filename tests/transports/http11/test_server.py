"""Servers on real sockets, with uvloop, and where the loops differ with asyncio's own."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import os
import re
import shutil
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lean_ovms.config import Config
from lean_ovms.errors import StartError
from lean_ovms.features.tls.certificate import Certificate
from lean_ovms.transports.http11 import connection as connection_module
from lean_ovms.transports.http11 import server as server_module
from lean_ovms.transports.http11.connection import HttpConnection
from lean_ovms.transports.http11.server import Server
from lean_ovms.transports.http11.server_state import MIN_SURPLUS
from lean_ovms.types import Handle, Request, Response
from tests.transports.http11.fakes import Body, FakeTransport, answering
from tests.waiting import until

TLS = Path(__file__).parent / "tls"
CERT, KEY = str(TLS / "cert.pem"), str(TLS / "key.pem")
OTHER_CERT, OTHER_KEY = str(TLS / "other_cert.pem"), str(TLS / "other_key.pem")
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
CLOSE = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


pytestmark = pytest.mark.usefixtures("real_loop")


def config(**options: Any) -> Config:
    return Config(**{"rest_port": 0, "rest_bind_address": "127.0.0.1", **options})


def vital(method: str, path: str) -> bool:
    return path == "/health"


@contextlib.asynccontextmanager
async def serving(handle: Handle, **options: Any) -> AsyncIterator[Server]:
    server = Server(config(**options), handle, vital)
    await server.start()
    try:
        yield server
    finally:
        await server.drain(0)
        assert (len(server.connections), server.active_requests) == (0, 0)


@contextlib.asynccontextmanager
async def client(server: Server, address: int = 0, **options: Any) -> AsyncIterator[Any]:
    """Returns a connection to the server: (reader, writer)."""
    where = server.addresses[address]
    if where.startswith("unix:"):
        reader, writer = await asyncio.open_unix_connection(where[5:], **options)
    else:
        host, _, port = where.partition("://")[2].rpartition(":")
        reader, writer = await asyncio.open_connection(host.strip("[]"), int(port), **options)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def ask(server: Server, data: bytes = CLOSE, address: int = 0, **options: Any) -> bytes:
    """Sends data, and reads until the server closes."""
    async with client(server, address, **options) as (reader, writer):
        writer.write(data)
        return bytes(await reader.read())


async def ok(request: Request) -> Response:
    return Response(200, [], b"ok")


# --- listening


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


ADDRESSES = [
    (",127.0.0.1,", ["http://127.0.0.1:{}"]),  # a comma too many does not mean everywhere
    ("127.0.0.1, 127.0.0.2,[::1]", ["http://127.0.0.1:{}", "http://127.0.0.2:{}", "http://[::1]:{}"]),
    ("0.0.0.0,::", ["http://0.0.0.0:{}", "http://[::]:{}"]),
    ("localhost", None),  # where any of its addresses works
]


@pytest.mark.parametrize(("hosts", "expected"), ADDRESSES)
async def test_it_listens_on_each_address_and_sends_at_once(hosts: str, expected: list[str] | None) -> None:
    if "::" in hosts and not _has_ipv6():
        pytest.skip("no IPv6 here")
    with socket.socket() as probe:
        probe.bind(("0.0.0.0", 0))
        port = probe.getsockname()[1]
    async with serving(ok, rest_bind_address=hosts, rest_port=port) as server:
        assert expected is None or server.addresses == [address.format(port) for address in expected]
        for index in range(len(server.addresses)):
            assert (await ask(server, address=index)).endswith(b"\r\n\r\nok")
        async with client(server) as (reader, writer):
            writer.write(GET)
            await reader.readuntil(b"ok")
            (connection,) = server.connections
            sock = connection._transport.get_extra_info("socket")
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


async def test_a_second_port_for_ollamas_clients() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StartError, match=r"set another port with --ollama_port \(0: none\)"):
            await Server(config(ollama_port=port), ok).start()
    async with serving(ok, ollama_port=port) as server:
        first, second = server.addresses
        assert second == f"http://127.0.0.1:{port}"
        for server.addresses in ([first], [second]):
            assert (await ask(server)).endswith(b"ok")


def test_the_second_port_is_another_one() -> None:
    for options in ({"rest_port": 11434}, {"unix_socket": "s"}):
        with pytest.raises(StartError, match="--ollama_port must differ from"):
            config(ollama_port=11434, **options)


async def test_a_port_in_use_stops_the_start_in_one_line() -> None:
    async with serving(ok) as server:
        port = int(server.addresses[0].rpartition(":")[2])
        with pytest.raises(
            StartError, match=rf"^cannot listen on 127\.0\.0\.1:{port}: Address already in use; .* --rest_port \(0: "
        ):
            await Server(config(rest_port=port), ok).start()
        with pytest.raises(StartError, match="Address already in use"):
            await Server(config(rest_port=port, rest_bind_address="127.0.0.2,127.0.0.1"), ok).start()
        async with serving(ok, rest_port=port, rest_bind_address="127.0.0.2"):
            pass  # the failed start has released what it had bound


@pytest.mark.parametrize("option", ["rest_port", "ollama_port"])
async def test_a_port_that_needs_a_privilege_is_named_with_its_option(
    monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(server_module, "_bind_one", refuse)
    with pytest.raises(StartError, match=f"need privileges: choose another port with --{option}$"):
        await server_module.bind("127.0.0.1", 80, option=option)


async def test_two_servers_share_a_port_only_where_both_allow_it() -> None:
    async def name(request: Request, which: str) -> Response:
        return Response(200, [], which.encode())

    old = Server(config(reuse_port=True), partial(name, which="old"), vital)
    await old.start()
    port = int(old.addresses[0].rpartition(":")[2])
    with pytest.raises(
        StartError, match=rf":{port}: Address already in use; stop the program that uses it, or"
    ) as found:
        await Server(config(rest_port=port), ok).start()
    assert found.value.temporary
    new = Server(config(rest_port=port, reuse_port=True), partial(name, which="new"), vital)
    await new.bind()
    assert {(await ask(old))[-3:] for _ in range(20)} == {b"old"}  # the new server does not listen yet
    await new.start()
    assert new.addresses == old.addresses
    seen = set[bytes]()
    while len(seen) < 2:  # the kernel chooses by the client's port
        seen.add((await ask(old))[-3:])
    await old.drain(0)
    assert {(await ask(new))[-3:] for _ in range(20)} == {b"new"}
    await new.drain(0)


async def test_a_port_of_a_server_that_does_not_share_it_is_named() -> None:
    async with serving(ok) as server:
        port = int(server.addresses[0].rpartition(":")[2])
        with pytest.raises(StartError, match="the program that uses it, which was started without --reuse_port, or"):
            await Server(config(rest_port=port, reuse_port=True), ok).bind()
        assert (await ask(server)).endswith(b"ok")


async def test_addresses_that_were_only_bound_are_let_go_of() -> None:
    server = Server(config(reuse_port=True), ok)
    await server.bind()
    port = server._bound[0].getsockname()[1]
    await server.drain(0)
    async with serving(ok, rest_port=port):
        pass


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid", "256.1.1.1"])
async def test_an_address_that_cannot_be_had_stops_the_start(host: str) -> None:
    with pytest.raises(StartError, match=f"^cannot listen on {host}"):
        await Server(config(rest_bind_address=host), ok).start()


async def test_a_cors_option_that_no_header_can_carry_stops_the_start() -> None:
    with pytest.raises(StartError, match="--allowed_origins"):
        await Server(config(allowed_origins="a\r\nX: y"), ok).start()


# --- Unix socket


async def test_unix_socket_serves_and_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "s"
    peers: list[str] = []

    async def handle(request: Request) -> Response:
        peers.append(request.peer)
        return Response(200, [], b"ok")

    async with serving(handle, unix_socket=str(path)) as server:
        assert server.addresses == [f"unix:{path}"]
        assert (await ask(server)).endswith(b"ok")
        assert peers == ["unix"]
        with pytest.raises(StartError, match="another process is listening"):
            await Server(config(unix_socket=str(path)), ok).start()
        assert (await ask(server)).endswith(b"ok")
    assert not path.exists()


async def test_a_stale_unix_socket_is_replaced_and_a_file_is_not(tmp_path: Path) -> None:
    stale, file = tmp_path / "s", tmp_path / "f"
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(stale))
    file.write_text("precious")
    async with serving(ok, unix_socket=str(stale)) as server:
        assert (await ask(server)).endswith(b"ok")
    with pytest.raises(StartError, match="is not a socket"):
        await Server(config(unix_socket=str(file)), ok).start()
    with pytest.raises(
        StartError, match=r"cannot listen on .*/no/s: No such file or directory; the directory of --unix"
    ):
        await Server(config(unix_socket=str(tmp_path / "no" / "s")), ok).start()
    with pytest.raises(StartError, match="too long"):
        await Server(config(unix_socket=str(tmp_path / ("x" * 200))), ok).start()
    assert file.read_text() == "precious"


async def test_a_unix_socket_whose_server_accepts_nothing_does_not_stop_the_start_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as busy, socket.socket(socket.AF_UNIX) as waiting:
        busy.bind(str(path))
        busy.listen(0)
        waiting.connect(str(path))  # the queue is full
        with pytest.raises(StartError, match="another process is listening there"):
            await Server(config(unix_socket=str(path)), ok).start()


async def test_a_unix_socket_that_another_server_put_there_is_left(tmp_path: Path) -> None:
    path = tmp_path / "s"
    first = Server(config(unix_socket=str(path)), ok)
    await first.start()
    os.rename(path, tmp_path / "moved")
    async with serving(ok, unix_socket=str(path)) as second:
        await first.drain(0)
        assert (await ask(second)).endswith(b"ok")


# --- TLS


def tls_client(**options: Any) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=CERT)
    for name, value in options.items():
        setattr(context, name, value)
    return context


async def test_tls_unary_stream_and_refusal() -> None:
    handle = answering(Response(200, [], b"x" * 300_000), Response(200, [], Body(b"one", 0.01, b"two")))
    async with serving(handle, ssl_certfile=CERT, ssl_keyfile=KEY, max_body_bytes=1024) as server:
        assert server.addresses[0].startswith("https://")
        assert (await ask(server, ssl=tls_client())).endswith(b"\r\n\r\n" + b"x" * 300_000)
        assert (await ask(server, ssl=tls_client())).endswith(b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n")
        async with client(server, ssl=tls_client()) as (reader, writer):
            writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2000\r\n\r\n")
            assert (await reader.readline()).startswith(b"HTTP/1.1 413")


async def test_a_tls_certificate_that_is_replaced_is_used_once_it_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(Certificate.watch, "__defaults__", (0.01,))
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"

    def logged(text: str) -> bool:
        return any(text in record.getMessage() for record in caplog.records)

    shutil.copy(CERT, cert)
    shutil.copy(KEY, key)
    async with serving(ok, ssl_certfile=str(cert), ssl_keyfile=str(key)) as server:
        assert (await ask(server, ssl=tls_client())).endswith(b"ok")
        shutil.copy(OTHER_CERT, cert)
        await until(lambda: logged("the old certificate is kept: cannot use"))
        assert (await ask(server, ssl=tls_client())).endswith(b"ok")
        shutil.copy(OTHER_KEY, key)
        await until(lambda: logged(f"certificate reloaded from {cert}"))
        assert (await ask(server, ssl=ssl.create_default_context(cafile=OTHER_CERT))).endswith(b"ok")
        with pytest.raises(ssl.SSLCertVerificationError):
            await ask(server, ssl=tls_client())


async def test_plain_http_on_a_tls_port_and_old_tls_are_turned_away_quietly(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    async with serving(ok, ssl_certfile=CERT, ssl_keyfile=KEY) as server:
        with contextlib.suppress(ConnectionError):
            assert b"200" not in await ask(server)
        with pytest.warns(DeprecationWarning, match="TLS"):
            old = tls_client(minimum_version=ssl.TLSVersion.TLSv1, maximum_version=ssl.TLSVersion.TLSv1_1)
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await ask(server, ssl=old)
        assert (await ask(server, ssl=tls_client())).endswith(b"ok")
    assert [record.getMessage() for record in caplog.records] == []


async def test_tls_on_a_plain_port_is_answered_at_once() -> None:
    async with serving(ok) as server:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await ask(server, ssl=tls_client())


async def test_wrong_certificates_stop_the_start(tmp_path: Path) -> None:
    empty, none = str(tmp_path / "empty"), str(tmp_path / "none")
    Path(empty).write_text("")
    for cert, key, says in (
        (CERT, CERT, "cannot use --ssl_certfile and --ssl_keyfile: they must contain a certificate and a private key"),
        (empty, KEY, "cannot use --ssl_certfile and --ssl_keyfile: they must contain a certificate and a private key"),
        (CERT, OTHER_KEY, "cannot use --ssl_certfile and --ssl_keyfile: the key belongs to another certificate"),
        (none, KEY, f"--ssl_certfile {none}: No such file or directory"),
        (CERT, none, f"--ssl_keyfile {none}: No such file or directory"),
    ):
        with pytest.raises(StartError, match=rf"^{re.escape(says)}[^\n]*$"):
            await Server(config(ssl_certfile=cert, ssl_keyfile=key), ok).start()
    for authorities, says in (
        (none, "No such file or directory"),
        (empty, "it must contain certificates"),
        (KEY, "it must"),
    ):
        with pytest.raises(StartError, match=rf"^--ssl_ca_certs {re.escape(authorities)}: {says}[^\n]*$"):
            await Server(config(ssl_certfile=CERT, ssl_keyfile=KEY, ssl_ca_certs=authorities), ok).start()


@pytest.mark.parametrize(("ssl_cert_reqs", "optional"), [(2, False), (1, True), (0, True)])
async def test_a_tls_client_needs_a_certificate_of_the_authorities(ssl_cert_reqs: int, optional: bool) -> None:
    asked: list[Request] = []

    async def handle(request: Request) -> Response:
        asked.append(request)
        return await ok(request)

    options = {"ssl_certfile": CERT, "ssl_keyfile": KEY, "ssl_ca_certs": OTHER_CERT, "ssl_cert_reqs": ssl_cert_reqs}
    known, unknown = tls_client(), tls_client()
    known.load_cert_chain(OTHER_CERT, OTHER_KEY)
    unknown.load_cert_chain(CERT, KEY)
    async with serving(handle, **options) as server:
        for context, welcome in ((known, True), (unknown, ssl_cert_reqs == 0), (tls_client(), optional)):
            asked.clear()
            said = b""
            with contextlib.suppress(ssl.SSLError, ConnectionError):  # a client with TLS 1.3 may see an ordinary end
                said = await ask(server, CLOSE.replace(b"/ ", b"/health ", 1), ssl=context)
            assert (said.endswith(b"ok"), bool(said), len(asked)) == (welcome, welcome, int(welcome))


async def test_tls_connections_that_are_kept_idle_do_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "LINGER_S", 0.05)
    async with serving(ok, ssl_certfile=CERT, ssl_keyfile=KEY) as server:
        address = ("127.0.0.1", int(server.addresses[0].rpartition(":")[2]))
        with await asyncio.to_thread(socket.create_connection, address) as plain:
            peer = await asyncio.to_thread(tls_client(check_hostname=False).wrap_socket, plain)
            await asyncio.to_thread(peer.sendall, GET)
            assert (await asyncio.to_thread(peer.recv, 1000)).endswith(b"ok")
            began = asyncio.get_running_loop().time()
            await server.drain(10)
            assert asyncio.get_running_loop().time() - began < 5
            await asyncio.to_thread(peer.close)


# --- limits


async def test_connections_beyond_the_limit_get_503_and_health_checks_are_served() -> None:
    started = asyncio.Event()

    async def handle(request: Request) -> Response:
        if request.path == "/busy":
            started.set()
            await asyncio.sleep(1000)
        return Response(200, [], request.body or b"ok")

    async with serving(handle, max_connections=1) as server, client(server) as (_, writer):
        writer.write(GET.replace(b"/ ", b"/busy "))
        await started.wait()
        surplus = await ask(server, GET)
        assert surplus.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
        assert b"Retry-After: " in surplus
        assert json.loads(surplus.partition(b"\r\n\r\n")[2])["error"]["code"] == "too_many_connections"
        health = await ask(server, GET.replace(b"/ ", b"/health ") * 2)
        assert health.count(b"HTTP/1.1 200") == 1  # the connection is closed afterwards
        assert b"Connection: close\r\n" in health
        large = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n"
        assert (await ask(server, large)).startswith(b"HTTP/1.1 503")  # before its body is read


async def test_a_flood_beyond_the_limit_does_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    # So that none of them is rejected before it sends a request.
    monkeypatch.setattr(connection_module, "SURPLUS_S", 60.0)
    async with serving(ok, max_connections=1) as server, contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(client(server)) for _ in range(MIN_SURPLUS + 20)]
        await until(lambda: len(server.connections) <= 1 + MIN_SURPLUS)
        answers = 0
        for reader, writer in clients[1:]:
            with contextlib.suppress(ConnectionError):
                writer.write(GET)
                answers += (await reader.read()).startswith(b"HTTP/1.1 503")
        assert 0 < answers <= MIN_SURPLUS


async def test_a_connection_beyond_the_limit_that_asks_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "SURPLUS_S", 0.01)
    async with serving(ok, max_connections=1) as server, client(server), client(server) as (reader, _):
        assert (await reader.read()).startswith(b"HTTP/1.1 503")


async def test_the_client_sees_413_although_it_is_still_sending() -> None:
    async with serving(ok, max_body_bytes=4_000_000) as server, client(server) as (reader, writer):
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5000000\r\n\r\n")
        writer.write(b"x" * 5_000_000)  # sent completely before the answer is read, as simple clients do
        await writer.drain()
        assert (await reader.read()).startswith(b"HTTP/1.1 413 ")


@pytest.mark.slow
async def test_a_tls_client_that_reads_nothing_is_cut_and_its_stream_cancelled() -> None:
    body = Body(*[b"x" * 100_000] * 1000)
    options = {"ssl_certfile": CERT, "ssl_keyfile": KEY, "stream_stall_timeout_s": 0.2}
    async with (
        serving(answering(Response(200, [], body)), **options) as server,
        client(server, ssl=tls_client(), limit=1000) as (_, writer),
    ):
        writer.write(GET)
        await until(lambda: body.closed == 1)
        assert 0 < body.given < 1000
        await until(lambda: len(server.connections) == 0)


# --- drain


async def test_drain_lets_running_streams_finish_and_refuses_new_connections() -> None:
    go = asyncio.Event()

    class Waiting(Body):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield b"one"
            await go.wait()
            yield b"two"

    body = Waiting()
    server = Server(config(), answering(Response(200, [], body)))
    await server.start()
    async with client(server) as idle, client(server) as (reader, writer):
        writer.write(GET)
        await reader.readuntil(b"one\r\n")
        draining = asyncio.ensure_future(server.drain(10))
        assert await idle[0].read() == b""
        with pytest.raises(ConnectionError):
            await ask(server)
        assert not draining.done()
        go.set()
        assert await reader.read() == b"3\r\ntwo\r\n0\r\n\r\n"
    await draining
    assert (len(server.connections), server.active_requests, body.closed) == (0, 0, 1)


async def test_drain_cancels_what_does_not_finish(caplog: pytest.LogCaptureFixture) -> None:
    body = Body(b"one", 1000)
    server = Server(config(), _by_path({"/s": Response(200, [], body)}))
    await server.start()
    async with client(server) as (reader, writer), client(server) as (unary_reader, unary_writer):
        writer.write(GET.replace(b"/ ", b"/s "))
        unary_writer.write(GET)
        await reader.readuntil(b"one\r\n")
        await until(lambda: server.active_requests == 2)
        await server.drain(0.05)
        assert (len(server.connections), server.active_requests, body.closed) == (0, 0, 1)
        assert await reader.read() == b""  # without the last chunk, so the client notices
        assert (await unary_reader.read()).startswith(b"HTTP/1.1 503 ")
    assert "ending 2 requests" in caplog.text


@pytest.mark.slow
async def test_what_does_not_finish_in_time_may_send_its_last_event(caplog: pytest.LogCaptureFixture) -> None:
    over = asyncio.Event()

    class Told(Body):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield b"one"
            await over.wait()
            yield b"end"

    async def end() -> None:
        over.set()

    body = Told()
    server = Server(config(), answering(Response(200, [], body)))
    await server.start()
    async with client(server) as (reader, writer):
        writer.write(GET)
        await reader.readuntil(b"one\r\n")
        await server.drain(0.05, end)
        assert await reader.read() == b"3\r\nend\r\n0\r\n\r\n"
    assert (len(server.connections), server.active_requests, body.closed) == (0, 0, 1)
    assert "ending 1 requests" in caplog.text


async def test_what_does_not_end_when_it_is_told_to_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lean_ovms.transports.http11.server.ENDING_S", 0.05)
    ended = asyncio.Event()

    async def end() -> None:
        await until(lambda: not server.connections)  # may take longer than any request
        ended.set()

    body = Body(b"one", 1000)
    server = Server(config(), answering(Response(200, [], body)))
    await server.start()
    async with client(server) as (reader, writer):
        writer.write(GET)
        await reader.readuntil(b"one\r\n")
        await server.drain(0, end)
        assert await reader.read() == b""
    assert (ended.is_set(), body.closed) == (True, 1)


async def test_drain_does_not_wait_for_a_handler_that_ignores_its_cancellation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lean_ovms.transports.http11.server.CLOSING_S", 0.05)
    let_go = asyncio.Event()

    async def stubborn(request: Request) -> Response:
        while not let_go.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await let_go.wait()
        return Response(200)

    server = Server(config(), stubborn)
    await server.start()
    async with client(server) as (reader, writer):
        writer.write(GET)
        await until(lambda: server.active_requests == 1)
        await server.drain(0)
        assert len(server.connections) == 0
        let_go.set()
        await until(lambda: server.active_requests == 0)
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""


async def test_drain_waits_for_an_exchange_whose_client_has_left() -> None:
    let_go = asyncio.Event()

    class Slow(Body):
        async def aclose(self) -> None:
            await let_go.wait()
            await super().aclose()

    body = Slow(b"one", 1000)
    server = Server(config(), answering(Response(200, [], body)))
    await server.start()
    async with client(server) as (reader, writer):
        writer.write(GET)
        await reader.readuntil(b"one\r\n")
    await until(lambda: len(server.connections) == 0)
    draining = asyncio.ensure_future(server.drain(300))
    for _ in range(20):
        await asyncio.sleep(0)
    assert (draining.done(), body.closed) == (False, 0)
    let_go.set()
    await draining
    assert (server.active_requests, body.closed) == (0, 1)


async def test_a_connection_that_comes_after_the_drain_began_is_dropped() -> None:
    """A TLS handshake may end that late, when the listening sockets are already closed."""
    server = Server(config(), ok)
    await server.drain(0)
    loop = asyncio.get_running_loop()
    late = HttpConnection(server, loop)
    transport = FakeTransport(loop, late)
    late.connection_made(transport)
    await asyncio.sleep(0)
    assert transport.aborted
    assert len(server.connections) == 0


async def test_all_bodies_together_are_bounded() -> None:
    size = 1_000_000
    head = f"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n".encode()
    async with serving(ok, max_body_bytes=size) as server, contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(client(server)) for _ in range(6)]
        for _, writer in clients:
            writer.write(head + b"x" * (size - 1))
        first = [asyncio.ensure_future(reader.read(12)) for reader, _ in clients]
        refused, waiting = await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        assert {await answer for answer in refused} == {b"HTTP/1.1 503"}
        for _, writer in clients:
            writer.write(b"x")
        assert {await answer for answer in waiting} <= {b"HTTP/1.1 503", b"HTTP/1.1 200"}
        assert (await ask(server)).endswith(b"ok")


async def test_drain_before_anything_happened_and_of_an_unstarted_server() -> None:
    await Server(config(), ok).drain(1)
    server = Server(config(), ok)
    await server.start()
    await server.drain(1)
    await server.drain(0)
    with pytest.raises(ConnectionError):
        await ask(server)


def _by_path(answers: dict[str, Response]) -> Callable[[Request], Awaitable[Response]]:
    """Answers by path. Other paths wait forever."""

    async def handle(request: Request) -> Response:
        if request.path not in answers:
            await asyncio.sleep(1000)
        return answers[request.path]

    return handle


async def test_t39_one_connection_with_tiny_chunks_is_parsed_in_a_turn_of_the_loop() -> None:
    """24 of them at once blocked the loop for 3 s."""
    server = Server(Config(), answering())
    parsed: list[str] = []
    loop = asyncio.get_running_loop()

    def parse(name: str, more: int) -> None:
        parsed.append(name)
        if more:
            server.parse_later(loop, partial(parse, name, more - 1))

    for name in "abc":
        server.parse_later(loop, partial(parse, name, 1))
    for count in range(6):
        assert len(parsed) == count
        await asyncio.sleep(0)
    assert "".join(parsed) == "abcabc"
    server.parse_later(loop, lambda: 1 / 0)  # type: ignore[arg-type, return-value]
    server.parse_later(loop, partial(parse, "d", 0))
    raised: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context["exception"]))
    for _ in range(3):
        await asyncio.sleep(0)
    assert (parsed[-1], len(raised)) == ("d", 1)
