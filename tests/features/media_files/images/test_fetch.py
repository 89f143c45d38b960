"""Fetching from a server that lies, stalls, redirects and sends bombs; and never from a forbidden address."""

import asyncio
import gzip
import socket
import ssl
import threading
from pathlib import Path

import pytest

from lean_ovms.config import Config
from lean_ovms.errors import BadRequest
from lean_ovms.features.media_files.feature import ImageFileOptions
from lean_ovms.features.media_files.images import fetch
from lean_ovms.features.media_files.images.fetch import HttpFetcher
from lean_ovms.features.media_files.images.source import parse_url
from tests.features.media_files.images.webserver import ok, serving
from tests.waiting import cancel, until

TLS = Path(__file__).parents[3] / "transports" / "http11" / "tls"
BODY = b"an image " * 100


def web(media="image", max_image_bytes=5000, image_timeout_s=300, **options):
    config = Config(**{"allowed_media_domains": "127.0.0.1", **options})
    return HttpFetcher(config.of(ImageFileOptions), media, max_image_bytes, image_timeout_s)


async def get(server, path, **options):
    return await web(**options).fetch(parse_url(server.url(path)))


async def refused(server, path, **options):
    with pytest.raises(BadRequest) as caught:
        await get(server, path, **options)
    assert "127.0.0.1" not in caught.value.message
    return caught.value.message


# --- what is fetched


async def test_whole_answers_chunks_and_an_end_by_closing():
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    closed = b"HTTP/1.1 200 OK\r\n\r\nabcde"
    async with serving(chunked=chunked, closed=closed, limit=ok(b"x" * 5000)) as server:
        assert await get(server, "/limit") == b"x" * 5000
        assert await get(server, "/chunked") == b"abcde"
        assert await get(server, "/closed") == b"abcde"


async def test_the_request_says_little_and_nothing_of_us(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with serving(a=ok(BODY)) as server:
        await get(server, "/a")
        assert server.asked == [
            (
                "/a",
                {
                    "host": f"127.0.0.1:{server.port}",
                    "user-agent": "lean_ovms",
                    "accept": "image/*",
                    "accept-encoding": "identity",
                    "connection": "close",
                },
            )
        ]
        await get(server, "/a", media="video")
        assert server.asked[1][1]["accept"] == "video/*"


# --- what a bad server does


async def test_more_than_the_limit_is_refused_by_what_it_says_and_by_what_it_sends():
    endless = b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 200_000
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1000\r\n" + b"x" * 4096 + b"\r\n"
    async with serving(says=ok(b"", length=10**9), sends=endless, chunks=chunked + b"1000\r\n" + b"y" * 4096) as server:
        server.stall |= {"/says", "/sends", "/chunks"}
        for path in ("/says", "/sends", "/chunks"):
            assert "limit of 5000 bytes" in await refused(server, path)


@pytest.mark.parametrize(
    "page",
    [
        ok(BODY, length=len(BODY) + 5),
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 200_000,
        b"HTTP/1.1 200 OK\r\n",
        b"",
        b"\xff\xd8\xff\xe0 not http at all",
        b"SSH-2.0-OpenSSH_9.6\r\n",
    ],
)
async def test_broken_answers_are_refused(page):
    async with serving(a=page) as server:
        assert "Image downloading failed" in await refused(server, "/a")


async def test_only_200_is_an_image_and_nothing_compressed():
    bomb = gzip.compress(bytes(4 << 20))
    pages = {"missing": ok(b"", status="404 Not Found"), "part": ok(b"", status="206 Partial")}
    async with serving(bomb=ok(bomb, "Content-Encoding: gzip"), **pages) as server:
        assert "404" in await refused(server, "/missing")
        assert "206" in await refused(server, "/part")
        assert "compressed" in await refused(server, "/bomb")
        server.pages["/same"] = ok(BODY, "Content-Encoding: identity")
        assert await get(server, "/same") == BODY


@pytest.mark.parametrize("page", [None, b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc", b"HTTP/1.1 200"])
@pytest.mark.slow
async def test_a_server_that_stalls_has_a_deadline(page):
    async with serving(a=page) as server:
        server.stall.add("/a")
        assert "took longer than 0.2 s" in await refused(server, "/a", image_timeout_s=0.2)


@pytest.mark.slow
async def test_a_server_that_drips_has_the_same_deadline():
    async with serving(a=b"HTTP/1.1 200 OK\r\nContent-Length: 4000\r\n\r\n") as server:
        server.drip.add("/a")
        assert "took longer than 0.3 s" in await refused(server, "/a", image_timeout_s=0.3)


async def test_a_port_without_a_server_is_reported():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(BadRequest, match="cannot be reached"):
            await web().fetch(parse_url(f"http://127.0.0.1:{port}/"))


async def test_tls_requires_a_certificate_that_is_known():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "cert.pem", TLS / "key.pem")
    asked = []
    server = await asyncio.start_server(lambda *ends: asked.append(ends), "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(BadRequest, match="cannot be reached"):
        await web().fetch(parse_url(f"https://127.0.0.1:{port}/"))
    server.close()
    assert asked == []


# --- redirects


def to(place, status="302 Found"):
    return ok(b"", f"Location: {place}", status=status)


async def test_redirects_are_refused_unless_they_are_allowed():
    async with serving(a=to("/b"), b=ok(BODY)) as server:
        assert "not allowed" in await refused(server, "/a")
        assert [path for path, _ in server.asked] == ["/a"]
        for status in ("301 M", "302 F", "303 S", "307 T", "308 P"):
            server.pages["/a"] = to("/b", status)
            assert await get(server, "/a", media_url_allow_redirects=True) == BODY


async def test_too_many_redirects_are_refused():
    async with serving(a=to("/a")) as server:
        assert "too often" in await refused(server, "/a", media_url_allow_redirects=True)
        assert len(server.asked) == 4


@pytest.mark.parametrize(
    "place",
    [
        "http://127.0.0.2/",
        "http://localhost/",
        "//169.254.169.254/latest/meta-data",
        "file:///etc/passwd",
        "ftp://127.0.0.1/",
        "http://127.0.0.1@evil.example/",
        "gopher://127.0.0.1/",
        "data:image/png;base64,AAAA",
        "http://[::1]/",
        "\\\\evil.example/x",
        "http://[",
    ],
)
async def test_a_redirect_is_checked_like_the_first_address(place):
    async with serving(a=to(place)) as server:
        await refused(server, "/a", media_url_allow_redirects=True)
        assert len(server.asked) == 1


async def test_a_redirect_out_of_tls_is_refused(monkeypatch):
    async def first(self, url):
        return parse_url("http://127.0.0.1/")

    monkeypatch.setattr(HttpFetcher, "_get", first)
    with pytest.raises(BadRequest, match="from https to http"):
        await web(media_url_allow_redirects=True).fetch(parse_url("https://127.0.0.1/"))


# --- names and addresses


class Resolver:
    """Replaces socket.getaddrinfo by fixed answers. `asked` has the names that were looked up."""

    def __init__(self, monkeypatch, *answers):
        self.asked = []
        self.answers = list(answers)
        monkeypatch.setattr(socket, "getaddrinfo", self)

    def __call__(self, host, port, **_):
        self.asked.append(host)
        found = self.answers.pop(0)
        family = {True: socket.AF_INET6, False: socket.AF_INET}
        return [(family[":" in a], socket.SOCK_STREAM, 6, "", (a, port)) for a in found]


async def test_a_name_is_resolved_once_and_the_connection_goes_there(monkeypatch):
    async with serving(a=ok(BODY)) as server:
        resolver = Resolver(monkeypatch, ["127.0.0.1"], ["10.0.0.1"])
        fetching = web(allowed_media_domains="images.example,127.0.0.1")
        assert await fetching.fetch(parse_url(server.url("/a", "images.example"))) == BODY
        assert resolver.asked == ["images.example"]
        assert server.asked[0][1]["host"] == f"images.example:{server.port}"


@pytest.mark.parametrize(
    "addresses",
    [
        ["127.0.0.1"],
        ["93.184.216.34", "127.0.0.1"],
        ["169.254.169.254"],
        ["10.0.0.1"],
        ["::1"],
        ["::ffff:127.0.0.1"],
        ["64:ff9b::7f00:1"],
        ["2002:7f00:1::"],
        ["fe80::1%eth0"],
        ["224.0.0.1"],
        [],
    ],
)
async def test_a_name_with_an_address_that_is_not_public_is_refused_unconnected(monkeypatch, addresses):
    connected = []

    async def connect(*args, **_):
        connected.append(args)
        raise OSError

    resolver = Resolver(monkeypatch, addresses)
    monkeypatch.setattr(asyncio, "open_connection", connect)
    for listed in ("images.example", "all"):
        resolver.answers = [addresses]
        with pytest.raises(BadRequest, match="not public"):
            await web(allowed_media_domains=listed).fetch(parse_url("http://images.example/"))
    assert connected == []


async def test_slow_lookups_of_names_take_no_thread_that_others_need(monkeypatch):
    held, asked = threading.Event(), []

    def look_up(host, *_, **__):
        asked.append(host)
        assert held.wait(60)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    lookups = threading.BoundedSemaphore(40)
    monkeypatch.setattr(fetch, "_lookups", lookups)
    fetching = web(allowed_media_domains="all")
    waiting = [asyncio.create_task(fetching.fetch(parse_url(f"http://{n}.example/"))) for n in range(41)]
    await until(lambda: len(asked) == 40 and waiting[40].done())
    assert "too many names are being looked up" in str(waiting[40].exception())
    assert await asyncio.to_thread(len, "abc") == 3
    for task in waiting[:20]:
        await cancel(task)
    held.set()
    for task in waiting[20:40]:
        with pytest.raises(BadRequest, match="not public"):
            await task
    await until(lambda: lookups._value == 40)


async def test_the_next_address_is_tried_when_one_does_not_answer(monkeypatch):
    tried = []

    async def connect(host, port, **tls):
        tried.append((host, tls))
        raise ConnectionRefusedError

    Resolver(monkeypatch, ["93.184.216.34", "2606:4700::1"])
    monkeypatch.setattr(asyncio, "open_connection", connect)
    with pytest.raises(BadRequest, match="cannot be reached"):
        await web(allowed_media_domains="images.example").fetch(parse_url("https://images.example/"))
    assert [host for host, _ in tried] == ["93.184.216.34", "2606:4700::1"]
    assert {tls["server_hostname"] for _, tls in tried} == {"images.example"}


@pytest.mark.parametrize("url", ["http://127.0.0.2/", "http://localhost/", "http://127.1/", "http://2130706433/"])
async def test_hosts_that_are_not_listed_are_not_even_resolved(monkeypatch, url):
    resolver = Resolver(monkeypatch)
    with pytest.raises(BadRequest, match="does not match any allowed domain"):
        await web().fetch(parse_url(url))
    assert resolver.asked == []


async def test_a_name_that_cannot_be_looked_up():
    with pytest.raises(BadRequest, match="cannot be reached"):
        await web(allowed_media_domains="all").fetch(parse_url("http://" + "a" * 64 + ".example/"))
