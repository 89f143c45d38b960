"""A client of a Hugging Face hub over huggingface_hub, with its errors as PullError. Imports it on first use.

The library lists repositories, finds token and proxy, and transfers bytes. Its downloads of whole files are not used:
in version 2.4 they start again after an interruption (a name of its own for each part), and check sizes, not contents.
"""

from __future__ import annotations

import errno
import importlib
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import StartError
from ..observability.logging import safe

log = logging.getLogger("lean_ovms.hub")

PUBLIC_ENDPOINT = "https://huggingface.co"
LISTING_TIMEOUT_S = 20.0
RETRY_STATUSES = (408, 425, 429, 500, 502, 503, 504)
"""Statuses for which the request is sent again."""

MAX_WAIT_S = 60.0
LOCAL_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.EFBIG)
"""Errors of the local disk: another attempt would meet them again."""


class PullError(StartError):
    """A pull that failed. reason: the message itself, where that has no path."""

    def __init__(self, message: str, *, reason: str = "", temporary: bool = False) -> None:
        super().__init__(message, reason=reason or message, temporary=temporary)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteFile:
    """A file of a repository. sha256: of a large file, else ""; blob: git's name of a small one, else ""."""

    path: str
    size: int
    sha256: str = ""
    blob: str = ""

    @property
    def digest(self) -> str:
        """The hash of the content; "" if the hub gives none."""
        return self.sha256 or self.blob


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The files of a repository at one commit."""

    repo: str
    commit: str
    files: tuple[RemoteFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Attempts without progress before giving up, and the seconds between two."""

    attempts: int = 5
    interval_s: float = 2.0
    sleep: Callable[[float], None] = time.sleep


class HubClient:
    """A client of one hub. endpoint: the hub's address, "" for the public one. Token and proxies are found as
    huggingface_hub does."""

    def __init__(self, endpoint: str = "", patience: RetryPolicy | None = None, *, agent: str = "lean_ovms") -> None:
        self.endpoint = endpoint.rstrip("/") or PUBLIC_ENDPOINT
        self._retries = patience or RetryPolicy()
        self._agent = agent
        self._library = importlib.import_module("huggingface_hub")
        self._errors = importlib.import_module("huggingface_hub.errors")
        importlib.import_module("huggingface_hub.utils").disable_progress_bars()  # progress.py has one for all files
        # The HTTP library below has changed twice (requests, httpx, httpx2): what it raises is found by inheritance.
        foreign = [c for c in self._errors.HfHubHTTPError.__mro__ if c.__module__.split(".")[0] not in _HUB_MODULES]
        self._raised: tuple[type[BaseException], ...] = (*foreign, OSError, ValueError)

    @classmethod
    def from_environ(cls, agent: str) -> HubClient:
        """Returns the hub that the environment names, with the retries of OVMS's variables. Raises StartError."""
        patience = RetryPolicy()
        try:
            patience = RetryPolicy(
                attempts=int(os.environ.get("GIT_LFS_RESUME_ATTEMPTS") or patience.attempts),
                interval_s=float(os.environ.get("GIT_LFS_RESUME_INTERVAL_SECONDS") or patience.interval_s),
            )
        except ValueError:
            raise StartError("GIT_LFS_RESUME_ATTEMPTS and GIT_LFS_RESUME_INTERVAL_SECONDS must be numbers") from None
        return cls(os.environ.get("HF_ENDPOINT", ""), patience, agent=agent)

    def listing(self, repo: str) -> Listing:
        """Returns the files of repo now. Raises PullError."""
        api = self._library.HfApi(endpoint=self.endpoint, library_name=self._agent)
        info = self._retry(lambda: api.model_info(repo, files_metadata=True, timeout=LISTING_TIMEOUT_S), repo)
        files = tuple(_remote_file(entry) for entry in info.siblings or ())
        if not info.sha:
            raise PullError(f"{self.endpoint} gives no commit for {repo}: is it a Hugging Face hub?")
        return Listing(repo=repo, commit=info.sha, files=files)

    def fetch(
        self, listing: Listing, file: RemoteFile, part: Path, received: Callable[[int], None] = lambda _: None
    ) -> None:
        """Download file into part, resuming where part ends. Raises PullError; what was received stays.

        received: called with the size of part when it grows; what it raises ends the download. The content is not
        checked here. Each attempt follows redirects again, since signed addresses expire.
        """
        transfer = importlib.import_module("huggingface_hub.file_download").http_get
        headers = importlib.import_module("huggingface_hub.utils").build_hf_headers(library_name=self._agent)
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
        """Call act, again after a transient failure; attempts that made progress do not count."""
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
                        f"{trouble}; what was received so far is kept: the same command goes on from there",
                        temporary=True,
                    ) from None
                wait_s = min(max(self._retries.interval_s, trouble.wait_s), MAX_WAIT_S)
                log.warning("%s; trying again in %g s", trouble, wait_s)
                self._retries.sleep(wait_s)

    @contextmanager
    def _translate_errors(self, repo: str) -> Iterator[None]:
        """huggingface_hub's errors become a PullError, or _Transient if another attempt may succeed."""
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
            raise PullError(f"{repo} is not here, and HF_HUB_OFFLINE forbids to pull it") from None
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
        if isinstance(error, ValueError) and not isinstance(error, OSError):
            return PullError(f"{self.endpoint} sent an answer for {repo} that cannot be read: {_words(error)}")
        return _Transient(f"{self.endpoint} does not answer for {repo} ({type(error).__name__}: {_words(error)})")

    def _status_error(self, status: int, headers: Any, repo: str) -> Exception:
        if status in (401, 403):
            return PullError(f"{self.endpoint} refuses {repo} ({status}): check HF_TOKEN and its rights")
        if status in RETRY_STATUSES:
            wait = headers.get("Retry-After") or ""
            return _Transient(f"{self.endpoint} answers {status} for {repo}", float(wait) if wait.isdecimal() else 0.0)
        return PullError(f"{self.endpoint} answers {status} for {repo}")


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
    """A failure that may pass. wait_s: seconds that the hub asks to wait."""

    def __init__(self, message: str, wait_s: float = 0.0) -> None:
        super().__init__(message)
        self.wait_s = wait_s


_HUB_MODULES = frozenset({"huggingface_hub", "builtins"})


def _remote_file(entry: Any) -> RemoteFile:
    if entry.size is None:
        raise PullError(f"the hub gives no size for {safe(entry.rfilename)}: it cannot be pulled safely")
    large = entry.lfs
    sha256 = str(large.get("sha256") if isinstance(large, dict) else large.sha256) if large else ""
    return RemoteFile(path=entry.rfilename, size=entry.size, sha256=sha256, blob="" if large else entry.blob_id or "")


def _words(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return safe(lines[0] if lines else "no reason given", 160)
