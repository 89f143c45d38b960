"""Parses the URL of an image: data in the URL, a web server, or a file.

No other parser is used: the connection uses the result. Every URL that does not match to the last character is refused,
so that no other parser can read it differently (user@host, backslashes, blanks, hosts in other scripts).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import unquote_to_bytes

from ....errors import BadRequest

BASE64 = "base64,"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{1,20}):(?=//)")
_URL = re.compile(
    r"(?P<scheme>https?)://"
    r"(?P<host>[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,251}[A-Za-z0-9])?|\[[0-9A-Fa-f:.]{2,45}\])"
    r"(?::(?P<port>[0-9]{1,5}))?"
    r"(?P<target>[/?][!-\"$-\[\]-~]*)?"
    r"(?:\#.*)?",
    re.IGNORECASE | re.ASCII,
)
"""Matches URLs without credentials, blanks, control characters, backslashes, and anything outside ASCII. Without
re.ASCII, [a-z] would also match letters such as the Kelvin sign, which becomes a k."""
MAX_URL = 8192


@dataclass(frozen=True, slots=True)
class InlineData:
    """An image in base64: `text` from `start` on. It is not cut out, as that would copy up to 27 MB in one call."""

    text: str = field(repr=False)
    """The data URL, or other text, that contains the base64."""
    start: int
    """The index of the first character of base64 in the text."""


@dataclass(frozen=True, slots=True)
class Url:
    """A parsed http or https URL."""

    secure: bool
    """Whether it is https."""
    host: str
    """The host in lower case, without brackets."""
    port: int
    """The TCP port."""
    target: str
    """The path and the query."""

    @property
    def authority(self) -> str:
        """The value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.secure else 80) else f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class FilePath:
    """A path in the server's file system."""

    path: str
    """The path as the client wrote it, which has not been checked."""


Source = InlineData | Url | FilePath


def check_size(size: int, most: int) -> None:
    """Raises BadRequest for a file of more than `most` bytes."""
    if size > most:
        raise BadRequest(f"the image is larger than this server's limit of {most} bytes")


def about(message: str, kind: str) -> str:
    """Rewrites an error message about an image for a video or another kind of file, whose name is a noun with "a"."""
    return message.replace("an image", f"a {kind}").replace("image", kind).replace("Image", kind.capitalize())


def parse_source(text: str) -> Source:
    """Parses the URL of an image. Raises BadRequest."""
    head = text[:MAX_URL].lower()
    if head.startswith("data:") or BASE64 in head[:256]:
        found = head.find(BASE64)
        if found < 0:
            raise BadRequest("Image parsing failed: a data URL must be in base64")
        return InlineData(text, found + len(BASE64))
    if len(text) > MAX_URL:
        raise BadRequest(f"the URL of an image must have at most {MAX_URL} characters")
    scheme = _SCHEME.match(text)
    if scheme is None:
        return FilePath(text)
    kind = scheme[1].lower()
    if kind == "file":
        return FilePath(_file(text[len("file://") :]))
    if kind not in ("http", "https"):
        raise BadRequest(f"images are only fetched by http and https, not by {kind}")
    return parse_url(text)


def parse_url(text: str) -> Url:
    """Parses an http or https URL. Raises BadRequest."""
    found = _URL.fullmatch(text)
    if found is None:
        raise BadRequest("the URL of an image must be an http or https URL in ASCII without credentials")
    secure = found["scheme"].lower() == "https"
    port = int(found["port"]) if found["port"] else 443 if secure else 80
    host = found["host"].strip("[]").lower()
    if not 0 < port < 65536 or ".." in host:
        raise BadRequest("the URL of an image must have a valid host and port")
    target = found["target"] or "/"
    return Url(secure, host, port, target if target.startswith("/") else "/" + target)


def _file(rest: str) -> str:
    """Returns the path of a file URL, after its two slashes."""
    host, slash, path = rest.partition("/")
    if host.lower() not in ("", "localhost") or not slash:
        raise BadRequest("a file URL must name a file of this server: file:///path")
    try:
        return "/" + unquote_to_bytes(path).decode("utf-8")
    except UnicodeDecodeError:
        raise BadRequest("the path of a file URL is not UTF-8") from None
