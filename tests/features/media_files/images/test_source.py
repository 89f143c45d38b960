"""Addresses of images: their meaning, what is ambiguous, to which hosts they may lead, and files in one folder."""

import asyncio
import ipaddress
import json
import os
from typing import Any

import pytest

from lean_ovms.config import Config
from lean_ovms.errors import BadRequest, StartError
from lean_ovms.features.media_files import helper
from lean_ovms.features.media_files.base64_text import decode_base64
from lean_ovms.features.media_files.helper import Helper
from lean_ovms.features.media_files.images import loader
from lean_ovms.features.media_files.images.allowed_hosts import AllowedHosts, is_public, parse_address
from lean_ovms.features.media_files.images.decoder_pool import DecodeJob
from lean_ovms.features.media_files.images.loader import ImageLoader, ImageRequest
from lean_ovms.features.media_files.images.local_files import LocalFiles
from lean_ovms.features.media_files.images.source import FilePath, InlineData, Url, parse_source, parse_url
from lean_ovms.types import Image

GOOD = [
    ("http://example.com", Url(False, "example.com", 80, "/")),
    ("https://Example.COM/a/b.png?x=1&y=%20#top", Url(True, "example.com", 443, "/a/b.png?x=1&y=%20")),
    ("HTTPS://example.com:8443/a", Url(True, "example.com", 8443, "/a")),
    ("http://example.com?q=1", Url(False, "example.com", 80, "/?q=1")),
    ("http://127.0.0.1:81/", Url(False, "127.0.0.1", 81, "/")),
    ("http://[::1]/x", Url(False, "::1", 80, "/x")),
    ("http://[2001:DB8::1]:90/x", Url(False, "2001:db8::1", 90, "/x")),
    ("http://xn--bcher-kva.example/", Url(False, "xn--bcher-kva.example", 80, "/")),
    ("http://a_b.example/", Url(False, "a_b.example", 80, "/")),
]


@pytest.mark.parametrize(("text", "url"), GOOD)
def test_plain_addresses_are_understood(text, url):
    assert parse_source(text) == url


REFUSED = [
    "http://user@example.com/",
    "http://user:secret@example.com/",
    "http://example.com@127.0.0.1/",
    "http://127.0.0.1\\@example.com/",
    "http://example.com\\.evil.example/",
    "http://example.com/\\..",
    "http:///a.png",
    "http://",
    "http://.example.com/",
    "http://example.com./",
    "http://exa mple.com/",
    "http://example.com/a b",
    "http://example.com/\r\nHost: x",
    "http://example.com\t/",
    "http://ex\u0430mple.com/",
    "http://\u2460\u2461\u2466.0.0.1/",
    "http://example\u3002com/",
    "http://example.com/\u00fc",
    "http://example.com:0/",
    "http://example.com:99999/",
    "http://example.com:8o/",
    "http://example.com:/",
    "http://example..com/",
    "http://\u212aitten.example/",
    "http://example.com/\u017f",
    "http://[::1/",
    "http://[fe80::1%25eth0]/",
    "http://[v1.x]/",
    "http:// example.com/",
    "http://example.com/" + "a" * 9000,
    "data:image/svg+xml,<svg/>",
    "file://other.example/a.png",
    "file://a.png",
    "file:///%ff%fe",
]


@pytest.mark.parametrize("text", REFUSED)
def test_addresses_that_can_be_read_in_two_ways_are_refused(text):
    with pytest.raises(BadRequest):
        parse_source(text)


def test_other_schemes_are_refused_by_name():
    for text in ("ftp://e.com/a", "javascript://x", "FTP://e.com"):
        with pytest.raises(BadRequest, match="only fetched by http and https"):
            parse_source(text)


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("data:image/png;base64,AAAA", "AAAA"),
        ("DATA:image/png;base64,AAAA", "AAAA"),
        ("data:;base64,AAAA", "AAAA"),
        ("data:image/png;BASE64,AAAA", "AAAA"),
        ("Data:Image/PNG;charset=x;Base64,BASE64,", "BASE64,"),
        ("image/png;base64,AAAA", "AAAA"),
        ("base64,AAAA", "AAAA"),
    ],
)
def test_what_follows_base64_is_the_image(text, data):
    source = parse_source(text)
    assert isinstance(source, InlineData)
    assert source.text[source.start :] == data


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("/images/zebra.jpeg", "/images/zebra.jpeg"),
        ("zebra.jpeg", "zebra.jpeg"),
        ("file:///images/zebra.jpeg", "/images/zebra.jpeg"),
        ("file://localhost/images/z%20a.png", "/images/z a.png"),
        ("file:///a/%2e%2e/b", "/a/../b"),
        ("C:\\x.png", "C:\\x.png"),
        ("", ""),
    ],
)
def test_everything_else_is_a_path(text, path):
    assert parse_source(text) == FilePath(path)


def test_the_host_header_leaves_out_the_usual_port():
    assert parse_url("http://example.com/").authority == "example.com"
    assert parse_url("https://example.com:80/").authority == "example.com:80"
    assert parse_url("http://[::1]:8080/").authority == "[::1]:8080"


# --- what is the same image is loaded once


LONG = "data:image/png;base64," + "QUJD" * 100_000


class Streams(Helper):
    """A helper process whose streams are given, and which notes the sizes of the pieces that are copied."""

    def __init__(self) -> None:
        super().__init__([])
        self.sent: list[bytes] = []
        self.sizes: list[int] = []
        self.received = asyncio.StreamReader()

    async def streams(self) -> Any:
        return self, self

    def write(self, data: bytes) -> None:
        self.sent.append(bytes(data))

    async def drain(self) -> None:
        pass

    async def read(self, n: int) -> bytes:
        self.sizes.append(n)
        return await self.received.read(n)


async def test_a_large_file_is_handed_over_in_pieces() -> None:
    for data, start in (LONG, 22), (LONG[22:].encode(), 0), (memoryview(LONG.encode()), 5), (b"", 0):
        process, text = Streams(), bytes(data, "ascii") if isinstance(data, str) else bytes(data)
        await process.send({"box": 3}, data, start)
        line, *pieces = process.sent
        assert json.loads(line) == {"box": 3, "bytes": len(text) - start}
        assert b"".join(pieces) == text[start:]
        assert all(len(piece) <= helper.PIECE_BYTES for piece in pieces)


async def test_pixels_are_read_in_pieces() -> None:
    process = Streams()
    process.received.feed_data(bytes(700_000))
    process.received.feed_eof()
    assert await process.read_bytes(600_000, 600_000) == bytes(600_000)
    assert max(process.sizes) <= helper.PIECE_BYTES
    with pytest.raises(EOFError):
        await process.read_bytes(200_000, 200_000)
    for wrong in (None, -1, 11, "3", 2.0):
        with pytest.raises(OSError, match="wrong number"):
            await process.read_bytes(wrong, 10)


async def test_the_same_image_is_loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long ones of the same length are compared by a digest, which is computed in pieces. Others are not compared."""
    images = ImageLoader(Config(max_images=16))
    decoded: list[object] = []
    digested: list[int] = []

    async def decode(job: DecodeJob) -> Image:
        decoded.append(job.data)
        return Image(1, len(decoded), bytes(3 * len(decoded)))

    def digest(text: str, digest=loader._digest) -> bytes:
        digested.append(len(text))
        return digest(text)

    monkeypatch.setattr(images._images.decoders, "decode", decode)
    monkeypatch.setattr(loader, "_digest", digest)
    other = LONG[:-4] + "QUJE"
    urls = [LONG, other, "".join([LONG]), LONG + "QUJD", "data:,base64,QUJD", "data:,base64,QUJD", LONG]
    details = ["auto"] * 6 + ["low"]
    requested = [ImageRequest(url=url, detail=detail, param="") for url, detail in zip(urls, details, strict=True)]
    found, lease = await images.load(requested)
    lease.release()
    assert [image.width for image in found] == [1, 2, 1, 3, 4, 4, 5]
    assert [image.digest for image in found] == [Image(1, i.width, i.pixels).content() for i in found]
    assert digested == [len(LONG)] * 4


# --- base64


@pytest.mark.parametrize("text", ["YWI/Pg==", "YWI/Pg", "YWI/Pg%3D%3D", "YWI%2FPg", " YW\tI/\r\nPg%20= = ", "YWI/\fPg"])
def test_blanks_percents_and_padding_change_nothing(text: str) -> None:
    assert decode_base64(text.encode()) == b"ab?>"


@pytest.mark.parametrize("text", ["Y", "YWI/Pg=", "YWI_Pg==", "YW=I", "YWI/P", "Y%ZZ", "=", "é"])
def test_what_is_no_base64_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode_base64(text.encode())


PUBLIC = "8.8.8.8 93.184.216.34 2606:4700::1111 2a00:1450:4001::200e 64:ff9b::8.8.8.8 ::ffff:8.8.8.8"
NOT_PUBLIC = """
    127.0.0.1 127.255.255.254 0.0.0.0 10.1.2.3 172.16.0.1 192.168.1.1 169.254.169.254 100.64.0.1 100.100.100.200
    192.0.0.192 198.18.0.1 203.0.113.5 224.0.0.1 239.255.255.250 240.0.0.1 255.255.255.255 :: ::1 ::127.0.0.1
    ::ffff:127.0.0.1 ::ffff:169.254.169.254 64:ff9b::127.0.0.1 64:ff9b::a9fe:a9fe 64:ff9b:1::1 2002:7f00:1::1
    2002:808:808::1 2001:0:4136:e378:8000:63bf:3fff:fdd2 2001:db8::1 fc00::1 fd00:ec2::254 fe80::1 fec0::1 ff02::1
"""


def test_the_public_internet_and_what_is_not():
    for text in PUBLIC.split():
        assert is_public(ipaddress.ip_address(text)), text
    for text in NOT_PUBLIC.split():
        assert not is_public(ipaddress.ip_address(text)), text


def test_a_name_is_matched_whole():
    assert not AllowedHosts("")
    assert not AllowedHosts("").allows_host("example.com")
    stars = AllowedHosts("*.example.com")
    hosts = ("a.example.com", "a.b.example.com", "example.com", "evilexample.com")
    assert [stars.allows_host(host) for host in hosts] == [True, True, False, False]
    hosts = AllowedHosts("Example.com, images.example.org")
    assert hosts.allows_host("example.com")
    assert hosts.allows_host("images.example.org")
    for other in ("www.example.com", "example.com.evil.example", "notexample.com", "example.co", "8.8.8.8"):
        assert not hosts.allows_host(other)


def test_all_is_every_name_and_still_no_private_address():
    hosts = AllowedHosts("all")
    assert hosts.allows_host("anything.example")
    assert hosts.allows_host("8.8.8.8")
    assert not hosts.allows_address(ipaddress.ip_address("127.0.0.1"))


def test_a_listed_address_may_be_private():
    hosts = AllowedHosts("127.0.0.1,10.1.2.0/24,[::1]")
    assert hosts.allows_host("127.0.0.1")
    assert not hosts.allows_host("127.0.0.2")
    assert not hosts.allows_host("8.8.8.8")
    for text in ("127.0.0.1", "10.1.2.77", "::1", "::ffff:127.0.0.1", "8.8.8.8"):
        assert hosts.allows_address(ipaddress.ip_address(text))
    for text in ("127.0.0.2", "10.1.3.1", "::ffff:10.9.9.9"):
        assert not hosts.allows_address(ipaddress.ip_address(text))


@pytest.mark.parametrize("text", ["http://example.com", "a.example:80", "ex*mple.com", "10.0.0.1/8", "exa*"])
def test_an_entry_that_is_no_host_stops_the_start(text):
    with pytest.raises(StartError, match="allowed_media_domains"):
        AllowedHosts(text)


@pytest.mark.parametrize("host", ["2130706433", "0x7f000001", "0177.0.0.1", "127.1", "example.com"])
def test_numbers_that_only_some_read_as_an_address_are_names(host):
    assert parse_address(host) is None


SECRET = b"secret"


@pytest.fixture
def root(tmp_path):
    """Returns a folder with an image, and with many things that lead out of it."""
    (tmp_path / "secret.png").write_bytes(SECRET)
    root = tmp_path / "images"
    (root / "sub").mkdir(parents=True)
    (root / "zebra.png").write_bytes(b"zebra")
    (root / "sub" / "lion.png").write_bytes(b"lion")
    (root / "inside.png").symlink_to(root / "sub" / "lion.png")
    (root / "outside.png").symlink_to(tmp_path / "secret.png")
    (root / "out").symlink_to(tmp_path)
    (root / "loop").symlink_to(root / "loop")
    os.mkfifo(root / "pipe")
    (tmp_path / "images-too").mkdir()
    (tmp_path / "images-too" / "a.png").write_bytes(SECRET)
    return root


@pytest.mark.parametrize(
    ("path", "data"),
    [
        ("{}/zebra.png", b"zebra"),
        ("{}/sub/lion.png", b"lion"),
        ("{}//sub/./lion.png", b"lion"),
        ("{}/inside.png", b"lion"),
        ("zebra.png", b"zebra"),
        ("sub/lion.png", b"lion"),
    ],
)
async def test_files_below_the_folder_are_read(root, path, data):
    assert await LocalFiles(str(root), 100).read(path.format(root)) == data


OUT = [
    "{}/outside.png",
    "{}/out/secret.png",
    "{}/../secret.png",
    "{}/sub/../../secret.png",
    "../secret.png",
    "{}-too/a.png",
    "/etc/passwd",
    "/proc/self/environ",
    "{}/pipe",
    "{}/sub",
    "{}",
    "",
    "/",
    "{}/loop",
    "{}/missing.png",
    "{}/zebra.png\0.jpg",
    "{}/..\\secret.png",
    "{}/" + "x" * 5000,
    "/dev/zero",
    "\udcff.png",
]


@pytest.mark.parametrize("path", OUT)
async def test_everything_else_is_refused_without_a_word_about_it(root, path):
    with pytest.raises(BadRequest) as caught:
        await LocalFiles(str(root), 100).read(path.format(root))
    assert str(root.parent) not in caught.value.message


async def test_a_file_larger_than_the_limit_or_without_a_folder_is_refused(root):
    assert await LocalFiles(str(root), 5).read("zebra.png") == b"zebra"
    with pytest.raises(BadRequest, match="limit of 4 bytes"):
        await LocalFiles(str(root), 4).read("zebra.png")
    with pytest.raises(BadRequest, match="disabled"):
        await LocalFiles("", 100).read(str(root / "zebra.png"))
    said = set()
    for name in ("secret.png", "nothing-there.png"):  # outside, both look the same
        with pytest.raises(BadRequest) as caught:
            await LocalFiles(str(root), 100).read(str(root.parent / name))
        said.add(caught.value.message)
    assert len(said) == 1


async def test_the_folder_itself_may_be_a_link(root, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(root)
    shelf = LocalFiles(str(link), 100)
    assert await shelf.read(str(link / "zebra.png")) == b"zebra"
    assert await shelf.read(str(root / "zebra.png")) == b"zebra"


async def test_a_folder_that_becomes_a_link_after_the_check_is_not_followed(root, monkeypatch):
    """The folder is replaced by a link between resolving and opening."""
    resolved = os.path.realpath

    def and_then_swap(path):
        found = resolved(path)
        if (root / "sub").is_dir() and not (root / "sub").is_symlink():
            (root / "sub").rename(root / "gone")
            (root / "sub").symlink_to(root.parent)
        return found

    (root / "sub" / "secret.png").write_bytes(b"harmless")
    shelf = LocalFiles(str(root), 100)
    monkeypatch.setattr(os.path, "realpath", and_then_swap)
    with pytest.raises(BadRequest):
        await shelf.read("sub/secret.png")
