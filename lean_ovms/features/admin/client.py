"""Sends the HTTP requests of commands to a running server, and reports errors in one line."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from ...api.keys import authorization
from ...config import Config
from ...errors import CommandFailed, StartError
from ...manifest import ENCRYPTION
from ...observability.logging import safe
from ...server.checks import checked

ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1", "*": "127.0.0.1", "": "127.0.0.1"}
"""The addresses by which this machine reaches a server that listens on all addresses."""
NO_ADDRESS = "is not the address of a server, such as http://127.0.0.1:8000"
READY = "/health"
TIMEOUT_S = 10.0
NO_TLS = "WRONG_VERSION_NUMBER"
"""OpenSSL's name of the error if an answer to a TLS handshake is not TLS, such as that of a plain HTTP server."""
NOT_OURS = "the answer is a web page, so another server or a proxy uses this address"
SHOWN = 500
"""The number of characters that are shown of a response that is not an error object."""


class ServerClient:
    """Sends requests to a server, each on a new connection."""

    def __init__(self, url: str, api_key: str = "", timeout_s: float = TIMEOUT_S, *, own: Config | None = None) -> None:
        """Keeps the address; a connection is opened for each request.

        Args:
            url: The server's address, as http://…, https://… or unix:PATH; a /v1 at its end is left out.
            api_key: The API key sent with each request; empty for none.
            timeout_s: The seconds to wait for a response, or for its next piece.
            own: The options of the server, if it runs on this machine.

        Raises:
            StartError: The address is not valid.
        """
        try:
            parts = urlsplit(url)
        except ValueError:  # a bracket without the other one
            raise StartError(f"{url} {NO_ADDRESS}") from None
        if parts.scheme not in ("http", "https", "unix") or not (parts.hostname or parts.scheme == "unix"):
            raise StartError(f"{url} {NO_ADDRESS}")
        try:
            self._port = parts.port
        except ValueError:
            raise StartError(f"{url} has no valid port") from None
        self.url = url.rstrip("/").removesuffix("/v1")
        self.timeout_s = timeout_s
        self._scheme, self._host = parts.scheme, parts.hostname or ""
        self._path = parts.path
        self._root = "" if parts.scheme == "unix" else urlsplit(self.url).path
        self._headers = {"Content-Type": "application/json", "Connection": "close"}
        if api_key:
            self._headers["Authorization"] = authorization(api_key)
        self._own = own

    def check(self, path: str) -> None:
        """Raises CommandFailed unless the server answers without an error."""
        with self._answer("GET", path, None):
            pass

    def get(self, path: str) -> Any:
        """Returns the JSON value that a GET of the path returns. Raises CommandFailed."""
        return self._whole("GET", path, None)

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Returns the JSON value that a POST of the body returns. Raises CommandFailed."""
        return self._whole("POST", path, body)

    @contextmanager
    def stream(self, path: str, body: Mapping[str, Any]) -> Iterator[Iterator[dict[str, Any]]]:
        """Yields a streamed response's events. Raises CommandFailed. Leaving the `with` block cancels the request."""
        with self._answer("POST", path, {**body, "stream": True}) as answer:
            yield _events(answer, self.url + path)

    def asked_for(self, config: Config, name: str, words: list[str]) -> str:
        """Returns the name of the model that a command uses: the one that is named, or else the first one that chats.

        Args:
            config: The options, among them a flag such as -hf that names the model.
            name: The value of the command's own option; "" if it is not given.
            words: The words without a flag. If the first one names the model, it is removed.

        Raises:
            CommandFailed: The server cannot be reached, or has no such model.
        """
        return self.model(name or config.model_name or config.source_model, words)

    def models(self) -> list[dict[str, Any]]:
        """Returns the server's models, as /v1/models lists them. Raises CommandFailed if it has no such list."""
        listed = self.get("/v1/models")
        rows = listed.get("data") if isinstance(listed, dict) else None
        if not isinstance(rows, list) or not all(isinstance(row, dict) and "id" in row for row in rows):
            raise CommandFailed(f"{self.url}/v1/models is not a list of models; is it a server with OpenAI's API?")
        return rows

    def model(self, wanted: str = "", words: list[str] | None = None) -> str:
        """Returns the name of the model that a command uses.

        Args:
            wanted: The requested name; "" for the first model that chats.
            words: The words after the command. If no name is requested and the first word is one, it is removed and
                used.

        Raises:
            CommandFailed: The server has no such model.
        """
        rows = self.models()
        names = [row["id"] for row in rows]
        if not wanted and words and words[0] in names:
            wanted = words.pop(0)
        if wanted:
            if wanted not in names:
                raise CommandFailed(f"{self.url} has no model {wanted}; its models are: {', '.join(names) or 'none'}")
            return wanted
        chats = [row["id"] for row in rows if row.get("task", "text_generation") == "text_generation"]
        if not chats:
            others = ", ".join(f"{row['id']} ({row['task']})" for row in rows) or "none"
            raise CommandFailed(f"{self.url} has no model that generates text; its models are: {others}")
        return str(chats[0])

    def _whole(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        with self._answer(method, path, body) as answer:
            text = answer.read()
        try:
            return json.loads(text)
        except ValueError:
            raise CommandFailed(f"the answer of {self.url}{path} is not JSON") from None

    @contextmanager
    def _answer(self, method: str, path: str, body: Mapping[str, Any] | None) -> Iterator[http.client.HTTPResponse]:
        try:
            with closing(self._connection()) as connection:
                data = None if body is None else json.dumps(body).encode()
                connection.request(method, self._root + path, data, self._headers)
                answer = connection.getresponse()
                if answer.status >= http.client.BAD_REQUEST:
                    raise CommandFailed(_message(answer))
                yield answer
        except (OSError, UnicodeError, http.client.HTTPException) as error:  # UnicodeError: not the name of a host
            raise CommandFailed(f"no answer from {self.url}: {_reason(error)}") from None

    def _connection(self) -> http.client.HTTPConnection:
        if self._scheme == "unix":
            return UnixConnection(self._path, self.timeout_s)
        if self._scheme == "http":
            return http.client.HTTPConnection(self._host, self._port, timeout=self.timeout_s)
        context = ssl.create_default_context()
        if self._own:  # the server's own certificate is issued for its public name, not for this address
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            if (encryption := self._own.part(ENCRYPTION)) is not None:
                encryption.introduce(context, self._own)
        return http.client.HTTPSConnection(self._host, self._port, timeout=self.timeout_s, context=context)


class UnixConnection(http.client.HTTPConnection):
    """An HTTP connection over a Unix socket."""

    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def address(config: Config) -> str:
    """Returns the URL of the server with these options. Raises StartError if only the server itself knows its port."""
    if config.unix_socket:
        return f"unix:{config.unix_socket}"
    if not config.rest_port:
        raise StartError("--rest_port 0 means that only the server knows its port; give the port that its log shows")
    first = config.rest_bind_address.split(",")[0].strip().strip("[]")
    host = ANY_ADDRESS.get(first, first)
    scheme = "https" if config.wants(ENCRYPTION) else "http"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{config.rest_port}"


def connect(url: str, config: Config) -> ServerClient:
    """Returns a client of the server at url, or of this machine's server with these options. Raises StartError."""
    config = checked(config)
    return ServerClient(url, config.api_key) if url else ServerClient(address(config), config.api_key, own=config)


def is_url(text: str) -> bool:
    """Returns whether a word is the URL of a server."""
    return text.startswith(("http://", "https://", "unix:"))


def url_of(words: Sequence[str]) -> str:
    """Returns the URL that is a command's only word, or "" without words. Raises StartError for any other word."""
    if len(words) > 1 or not all(map(is_url, words)):
        raise StartError(f"{words[-1]} {NO_ADDRESS}")
    return "".join(words)


def _reason(error: Exception) -> str:
    """Returns why a server did not answer, with the next step for a person if one is known."""
    reason = (error.strerror or str(error)) if isinstance(error, OSError) else repr(error)
    if isinstance(error, ConnectionRefusedError):
        return f"{reason}; start a server with: lean_ovms serve MODEL"
    if isinstance(error, http.client.RemoteDisconnected):
        return f"{reason}; a server with TLS needs https://"
    return f"{reason}; a server without TLS needs http://" if getattr(error, "reason", "") == NO_TLS else reason


def _message(answer: http.client.HTTPResponse) -> str:
    if answer.status == HTTPStatus.UNAUTHORIZED:
        return f"{answer.status} {answer.reason}: the API key is missing or wrong; set API_KEY, or give --api-key KEY"
    text = answer.read(1 << 16).decode("utf-8", "replace")
    try:
        error = json.loads(text)
        error = error.get("error", error) if isinstance(error, dict) else {}
        message = error.get("message") if isinstance(error, dict) else error
    except ValueError:
        message = NOT_OURS if text.lstrip().startswith("<") else ""
    return f"{answer.status} {answer.reason}: {safe(str(message or text), SHOWN)}"


def _events(answer: http.client.HTTPResponse, url: str) -> Iterator[dict[str, Any]]:
    """Yields the events of a stream up to [DONE]. Raises CommandFailed for one that is an error or not JSON."""
    for line in answer:
        if not line.startswith(b"data: ") or line.strip() == b"data: [DONE]":
            continue
        try:
            event = json.loads(line[6:])
        except ValueError:
            event = None
        if not isinstance(event, dict):
            raise CommandFailed(f"the stream of {url} has an event that is not a JSON object")
        if isinstance(event.get("error"), dict):
            raise CommandFailed(safe(str(event["error"].get("message")), SHOWN))
        yield event
