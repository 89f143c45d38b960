"""A client of a Hugging Face hub that uses huggingface_hub and raises its errors as PullError.

The library is imported at the first use. It lists repositories, finds token and proxy, and transfers bytes. Its
snapshot_download is not used: in version 2.4 each download writes to a new name, so the bytes before an interruption
are lost, and it checks sizes but not contents.
"""

from __future__ import annotations

import errno
import importlib
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from ..._version import __version__
from ...errors import StartError
from ...observability.logging import safe

log = logging.getLogger("lean_ovms.hub")

PUBLIC_ENDPOINT = "https://huggingface.co"
AGENT = f"lean_ovms/{__version__}"
"""The User-Agent of requests to the hub."""
LISTING_TIMEOUT_S = 20.0
RETRY_STATUSES = (408, 425, 429, 500, 502, 503, 504)
"""Statuses for which the request is sent again."""

MAX_WAIT_S = 60.0
LOCAL_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.EFBIG)
"""Errors of the local disk: another attempt would meet them again."""


class PullError(StartError):
    """Raised when a pull failed."""

    def __init__(self, message: str, *, reason: str = "", temporary: bool = False) -> None:
        """Makes the error.

        Args:
            message: The text for the operator.
            reason: The text for clients; "" for the message of the exception.
            temporary: Whether the same pull may succeed later.
        """
        super().__init__(message, reason=reason or message, temporary=temporary)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteFile:
    """A file of a repository."""

    path: str
    """The path in the repository."""
    size: int
    """The size in bytes."""
    sha256: str = ""
    """The SHA-256 of a large file; "" for a small one."""
    blob: str = ""
    """The Git object id of a small file, which is a hash of its content; "" for a large one."""

    @property
    def digest(self) -> str:
        """The hash of the content; "" if the hub does not give it."""
        return self.sha256 or self.blob


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The files of a repository at one commit."""

    repo: str
    """The name of the repository."""
    commit: str
    """The id of the commit."""
    files: tuple[RemoteFile, ...]
    """All files of the commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """The rules for sending a request again."""

    attempts: int = 5
    """The number of further attempts after one that made no progress, before giving up."""
    interval_s: float = 2.0
    """The seconds between two attempts."""
    sleep: Callable[[float], None] = time.sleep
    """Waits for a number of seconds."""


class HubClient:
    """A client of one hub. Token and proxies are those that huggingface_hub finds."""

    def __init__(self, endpoint: str = "", retries: RetryPolicy | None = None) -> None:
        """Imports the hub's library. The endpoint "" is the public hub; retries None are the default ones."""
        self.endpoint = endpoint.rstrip("/") or PUBLIC_ENDPOINT
        self._retries = retries or RetryPolicy()
        self._library = importlib.import_module("huggingface_hub")
        self._errors = importlib.import_module("huggingface_hub.errors")
        # Progress.py shows one bar for all files.
        importlib.import_module("huggingface_hub.utils").disable_progress_bars()
        # huggingface_hub has used three HTTP libraries (requests, httpx, httpx2), so their errors are found by
        # inheritance.
        foreign = [c for c in self._errors.HfHubHTTPError.__mro__ if c.__module__.split(".")[0] not in _HUB_MODULES]
        http_library = sys.modules[foreign[0].__module__.partition(".")[0]]
        self._misused: tuple[type[BaseException], ...] = (ImportError, getattr(http_library, "InvalidURL", ImportError))
        """The errors of a proxy's address that is malformed, or that needs a package which is not installed."""
        self._raised: tuple[type[BaseException], ...] = (*foreign, *self._misused, OSError, ValueError)

    def listing(self, repo: str, revision: str = "") -> Listing:
        """Returns the files of a repository at a branch, a tag or a commit; "" is the main branch. Raises PullError."""
        api = self._library.HfApi(endpoint=self.endpoint, library_name=AGENT)

        def ask() -> Any:
            try:
                return api.model_info(repo, revision=revision or None, files_metadata=True, timeout=LISTING_TIMEOUT_S)
            except self._errors.RevisionNotFoundError:
                raise PullError(f"{repo} has no revision {safe(revision)} at {self.endpoint}") from None

        info = self._retry(ask, repo)
        files = tuple(_remote_file(entry) for entry in info.siblings or ())
        if not info.sha:
            raise PullError(f"{self.endpoint} does not name a commit for {repo}: is it a Hugging Face hub?")
        return Listing(repo=repo, commit=info.sha, files=files)

    def fetch(
        self, listing: Listing, file: RemoteFile, part: Path, received: Callable[[int], None] = lambda _: None
    ) -> None:
        """Downloads a file, continuing after the bytes of an earlier attempt. The content is not checked.

        Each attempt follows redirects again, since signed URLs expire.

        Args:
            listing: The files of the repository.
            file: The file to download.
            part: The path to which it is written.
            received: Is called with the size of `part` when it grows. An error that it raises ends the download.

        Raises:
            PullError: The hub or the disk fails; the received bytes are kept.
        """
        transfer = importlib.import_module("huggingface_hub.file_download").http_get
        headers = importlib.import_module("huggingface_hub.utils").build_hf_headers(library_name=AGENT)
        url = self._library.hf_hub_url(listing.repo, file.path, revision=listing.commit, endpoint=self.endpoint)

        def once() -> None:
            have = part.stat().st_size if part.exists() else 0
            if have > file.size:
                part.unlink()
                have = 0
            with part.open("ab") as out:
                if have < file.size:
                    transfer(url, _Watched(out, received), resume_size=have, headers=dict(headers),
                             expected_size=file.size, displayed_filename=file.path)  # fmt: skip

        self._retry(once, listing.repo, progress=lambda: part.stat().st_size if part.exists() else 0)

    def _retry(self, act: Callable[[], Any], repo: str, progress: Callable[[], int] = lambda: 0) -> Any:
        """Calls a function, and repeats the call after temporary failures.

        Args:
            act: The function.
            repo: The name of the repository, for messages.
            progress: Returns the number of received bytes. Attempts that increase it are not counted.

        Raises:
            PullError: The failure is permanent, or all attempts have failed.
        """
        left = self._retries.attempts
        while True:
            before = progress()
            try:
                with self._translate_errors(repo):
                    return act()
            except _Transient as trouble:
                left = self._retries.attempts if progress() > before else left - 1
                if left < 0:
                    raise PullError(
                        f"{trouble}; run the same command again to continue from what was received so far",
                        temporary=True,
                    ) from None
                wait_s = min(max(self._retries.interval_s, trouble.wait_s), MAX_WAIT_S)
                log.warning("%s; trying again in %g s", trouble, wait_s)
                self._retries.sleep(wait_s)

    @contextmanager
    def _translate_errors(self, repo: str) -> Iterator[None]:
        """Converts the library's errors to a PullError, or to _Transient if another attempt may succeed."""
        try:
            yield
        except self._errors.GatedRepoError:
            raise PullError(
                f"{repo} is gated: accept its terms at {self.endpoint}/{repo}, and set HF_TOKEN to that account's token"
            ) from None
        except self._errors.RepositoryNotFoundError:
            raise PullError(
                f"there is no model {safe(repo)} at {self.endpoint}, or it is private and HF_TOKEN does not open it"
            ) from None
        except self._errors.OfflineModeIsEnabled:
            raise PullError(f"{repo} has not been pulled, and HF_HUB_OFFLINE forbids pulling it") from None
        except self._errors.HFValidationError as error:
            raise PullError(f"{safe(repo)} is not a model name (organisation/name): {safe(str(error))}") from None
        except self._raised as error:
            raise self._error_of(error, repo) from None

    def _error_of(self, error: BaseException, repo: str) -> Exception:
        response = getattr(error, "response", None)
        status = getattr(response, "status_code", None)
        if isinstance(status, int) and status >= 400:
            return self._status_error(status, getattr(response, "headers", {}), repo)
        if isinstance(error, OSError) and error.errno in LOCAL_ERRNOS:
            return PullError(f"{repo} cannot be stored: {error.strerror}", temporary=error.errno == errno.ENOSPC)
        if isinstance(error, self._misused) or "for proxy URL" in str(error):
            return PullError(f"{self.endpoint} cannot be reached{_proxy_of(self.endpoint)}: {_words(error)}")
        if isinstance(error, ValueError) and not isinstance(error, OSError):
            return PullError(f"{self.endpoint} sent an invalid answer for {repo}: {_words(error)}")
        reason = f"{type(error).__name__}: {_words(error)}"
        return _Transient(f"{self.endpoint} did not answer for {repo}{_proxy_of(self.endpoint)} ({reason})")

    def _status_error(self, status: int, headers: Any, repo: str) -> Exception:
        if status in (401, 403):
            return PullError(f"{self.endpoint} refused access to {repo} ({status}): check HF_TOKEN and its permissions")
        if status in RETRY_STATUSES:
            wait = headers.get("Retry-After") or ""
            return _Transient(f"{self.endpoint} answered {status} for {repo}", float(wait) if wait.isdecimal() else 0.0)
        return PullError(f"{self.endpoint} answered {status} for {repo}")


def open_hub() -> HubClient:
    """Returns a client of the environment's hub, with the retries that OVMS's variables set. Raises StartError."""
    retries = RetryPolicy()
    try:
        retries = RetryPolicy(
            attempts=int(os.environ.get("GIT_LFS_RESUME_ATTEMPTS") or retries.attempts),
            interval_s=float(os.environ.get("GIT_LFS_RESUME_INTERVAL_SECONDS") or retries.interval_s),
        )
    except ValueError:
        raise StartError("GIT_LFS_RESUME_ATTEMPTS and GIT_LFS_RESUME_INTERVAL_SECONDS must be numbers") from None
    endpoint = os.environ.get("HF_ENDPOINT", "")
    if endpoint and not endpoint.startswith(("http://", "https://")):
        raise StartError(f"HF_ENDPOINT must begin with http:// or https://, not be {endpoint!r}")
    return HubClient(endpoint, retries)


def _proxy_of(endpoint: str) -> str:
    """Returns the proxy that variables such as https_proxy set for an address, for messages; "" for none."""
    address = urlsplit(endpoint)
    kind = next((kind for kind in (address.scheme, "all") if kind in getproxies()), "")
    proxy = getproxies().get(kind, "")
    if not proxy or proxy_bypass(address.hostname or ""):
        return ""
    return f" through the proxy of {kind}_proxy, {proxy.rpartition('@')[2]}"  # without its password


class _Watched:
    """A file that reports its size after each write."""

    def __init__(self, file: Any, grown: Callable[[int], None]) -> None:
        self._file = file
        self._grown = grown

    def write(self, data: bytes) -> int:
        written: int = self._file.write(data)
        self._grown(self._file.tell())
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class _Transient(Exception):
    """Raised for a temporary failure."""

    def __init__(self, message: str, wait_s: float = 0.0) -> None:
        """Keeps the message, and the seconds that the hub asks to wait."""
        super().__init__(message)
        self.wait_s = wait_s


_HUB_MODULES = frozenset({"huggingface_hub", "builtins"})


def _remote_file(entry: Any) -> RemoteFile:
    if entry.size is None:
        raise PullError(f"the hub does not tell the size of {safe(entry.rfilename)}, so it cannot be pulled safely")
    large = entry.lfs
    sha256 = str(large.get("sha256") if isinstance(large, dict) else large.sha256) if large else ""
    return RemoteFile(path=entry.rfilename, size=entry.size, sha256=sha256, blob="" if large else entry.blob_id or "")


def _words(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return safe(lines[0] if lines else "no reason given", 160)
