"""A hub on localhost, with all that huggingface_hub needs: model info, files with ranges, redirects to storage.

Large files are redirected to /storage with a signature that is valid for one request; the public hub's signatures are
valid for some time. Faults are configured per path, and happen in order, one per request.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

TEXT = (".json", ".md", ".txt", ".jinja", ".xml")


@dataclass
class Fault:
    """A failure that happens in place of the answer."""

    status: int = 0
    """The status of an error; 0 for none."""
    headers: dict[str, str] = field(default_factory=dict)
    cut: int | None = None
    """The bytes of the body after which the connection breaks."""
    short: int | None = None
    """The bytes of a body that is well-formed but too short."""
    stall_s: float = 0.0
    """Seconds of silence before the body."""
    spoil: bool = False
    """Whether the body has the right length but other bytes."""


@dataclass
class Repo:
    """The files of a repository by path, who may see them, and faults by path ("" for the model info)."""

    files: dict[str, bytes]
    gated: bool = False
    private: bool = False
    faults: dict[str, list[Fault]] = field(default_factory=lambda: defaultdict(list))
    lie: dict[str, str] = field(default_factory=dict)  # the SHA-256 to claim for a path

    @property
    def commit(self) -> str:
        whole = hashlib.sha1()
        for path, content in sorted(self.files.items()):
            whole.update(path.encode() + b"\0" + content)
        return whole.hexdigest()


@dataclass
class Seen:
    """A request that arrived. `start` is the beginning of its range."""

    method: str
    path: str
    token: str
    start: int
    host: str


class HubServer(ThreadingHTTPServer):
    """Serves repositories on a free port of localhost. `token` gives access to gated and private ones.

    "org/model@v1" is the repository org/model at its revision v1.
    """

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, **repos: Repo) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repos: dict[str, Repo] = dict(repos)
        self.token = "hf_secret"
        self.seen: list[Seen] = []
        self.signatures: set[str] = set()
        self.thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def stop(self) -> None:
        self.shutdown()
        self.server_close()

    def starts(self, name: str) -> list[int]:
        """Returns the beginning of each request for the content of a file."""
        return [seen.start for seen in self.seen if seen.path.endswith(name) and seen.path.startswith("/storage")]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores errors, because clients that disconnect are part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    server: HubServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        path = unquote(parts.path)
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0])
        self.server.seen.append(Seen(self.command, path, token, start, parts.netloc))
        if path.startswith("/api/models/"):
            self._info(path.removeprefix("/api/models/"), token, "blobs" in parse_qs(parts.query))
        elif path.startswith("/storage/"):
            self._storage(path.removeprefix("/storage/"), parts.query)
        else:
            repo, _, rest = path.removeprefix("/").partition("/resolve/")
            self._resolve(repo, rest, token)

    def _repo(self, name: str, token: str) -> Repo | None:
        """Returns the repository if the client may see it; otherwise answers with an error."""
        repo = self.server.repos.get(name)
        allowed = token == self.server.token
        if repo is None or (repo.private and not allowed):
            self._error(401 if not token else 404, "RepoNotFound", "Repository not found")
        elif repo.gated and not allowed:
            self._error(403 if token else 401, "GatedRepo", "Access to this model is restricted")
        else:
            return repo
        return None

    def _info(self, path: str, token: str, blobs: bool) -> None:
        model, _, revision = path.partition("/revision/")
        if revision and model in self.server.repos and f"{model}@{revision}" not in self.server.repos:
            return self._error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        name = f"{model}@{revision}" if revision else model
        known = self.server.repos.get(name)
        fault = known.faults[""].pop(0) if known and known.faults[""] else None
        if fault is not None:
            time.sleep(fault.stall_s)
            return self._error(fault.status, "", "out of order", fault.headers)
        repo = self._repo(name, token)
        if repo is None:
            return None
        siblings = [self._sibling(repo, path, content) if blobs else {"rfilename": path}
                    for path, content in repo.files.items()]  # fmt: skip
        info = {"id": name, "modelId": name, "sha": repo.commit, "private": repo.private, "gated": repo.gated,
                "tags": [], "downloads": 0, "likes": 0, "siblings": siblings}  # fmt: skip
        return self._send(200, json.dumps(info).encode(), {"Content-Type": "application/json"})

    def _sibling(self, repo: Repo, path: str, content: bytes) -> dict[str, Any]:
        entry: dict[str, Any] = {"rfilename": path, "size": len(content)}
        if path.endswith(TEXT):
            return {**entry, "blobId": hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()}
        sha256 = repo.lie.get(path) or hashlib.sha256(content).hexdigest()
        return {**entry, "blobId": "0" * 40, "lfs": {"sha256": sha256, "size": len(content), "pointerSize": 134}}

    def _resolve(self, model: str, rest: str, token: str) -> None:
        commit, _, path = rest.partition("/")
        revisions = (name for name in self.server.repos if name.startswith(f"{model}@"))
        name = next((name for name in revisions if self.server.repos[name].commit == commit), model)
        repo = self._repo(name, token)
        if repo is None:
            return
        if commit not in (repo.commit, "main") or path not in repo.files:
            self._error(404, "EntryNotFound", "Entry not found")
        elif path.endswith(TEXT):
            self._content(repo, path)
        else:
            signature = f"s{len(self.server.seen)}"
            self.server.signatures.add(signature)
            self._send(302, b"", {"Location": f"{self.server.url.replace('127.0.0.1', 'localhost')}"
                                              f"/storage/{name}/-/{path}?signature={signature}"})  # fmt: skip

    def _storage(self, rest: str, query: str) -> None:
        name, _, path = rest.partition("/-/")
        signature = query.removeprefix("signature=")
        if self.headers.get("Authorization"):
            self._error(400, "", "a token went to the storage")
        elif signature not in self.server.signatures:
            self._error(403, "", "expired")
        else:
            self.server.signatures.discard(signature)
            self._content(self.server.repos[name], path)

    def _content(self, repo: Repo, path: str) -> None:
        fault = repo.faults[path].pop(0) if repo.faults[path] else Fault()
        if fault.status:
            return self._error(fault.status, "", "out of order", fault.headers)
        whole = repo.files[path]
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0])
        body = whole[start:]
        if fault.spoil:
            body = bytes(255 - byte for byte in body)
        headers = {"ETag": f'"{hashlib.sha256(whole).hexdigest()}"', "Accept-Ranges": "bytes"}
        if "Range" in self.headers:
            headers["Content-Range"] = f"bytes {start}-{len(whole) - 1}/{len(whole)}"
        if fault.short is not None:
            body = body[: fault.short]
            headers.pop("Content-Range", None)
        time.sleep(fault.stall_s)
        return self._send(206 if "Content-Range" in headers else 200, body, headers, fault.cut)

    def _error(self, status: int, code: str, message: str, headers: dict[str, str] | None = None) -> None:
        self._send(status, b"{}", {"X-Error-Code": code, "X-Error-Message": message, **(headers or {})})

    def _send(self, status: int, body: bytes, headers: dict[str, str], cut: int | None = None) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body if cut is None else body[:cut])
        if cut is not None:
            self.close_connection = True
