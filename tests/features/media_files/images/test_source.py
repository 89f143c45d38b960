"""What an image's address means, and what is refused because others might read it differently."""

import pytest

from lean_ovms.errors import BadRequest
from lean_ovms.features.media_files.images.source import FilePath, InlineData, Url, parse_source, parse_url

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
    "http://[::1/",
    "http://[fe80::1%25eth0]/",
    "http://[v1.x]/",
    "http:// example.com/",
]


@pytest.mark.parametrize("text", REFUSED)
def test_addresses_that_can_be_read_in_two_ways_are_refused(text):
    with pytest.raises(BadRequest):
        parse_source(text)


@pytest.mark.parametrize("text", ["ftp://e.com/a", "sftp://e.com/a", "gopher://e.com", "javascript://x", "FTP://e.com"])
def test_other_schemes_are_refused_by_name(text):
    with pytest.raises(BadRequest, match="http and https only"):
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


def test_a_data_url_in_another_form_is_refused():
    with pytest.raises(BadRequest, match="base64"):
        parse_source("data:image/svg+xml,<svg/>")


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


@pytest.mark.parametrize("text", ["file://other.example/a.png", "file://a.png", "file:///%ff%fe"])
def test_files_of_other_machines_are_refused(text):
    with pytest.raises(BadRequest):
        parse_source(text)


def test_an_address_has_a_limit():
    with pytest.raises(BadRequest, match="longer than"):
        parse_source("http://example.com/" + "a" * 9000)


def test_the_host_header_leaves_out_the_usual_port():
    assert parse_url("http://example.com/").authority == "example.com"
    assert parse_url("https://example.com:80/").authority == "example.com:80"
    assert parse_url("http://[::1]:8080/").authority == "[::1]:8080"
