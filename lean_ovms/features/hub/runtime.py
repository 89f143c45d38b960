"""Lets clients pull models into the model repository and delete them from it, with --allow_runtime_pull.

A pull runs in a thread, and ends when no client waits for it any more; the next pull resumes it. Nothing is converted,
since a conversion would run code of a checkpoint that a client chose.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ...api.services import Service
from ...config import Config
from ...errors import RequestError, StartError, StoreFull, Unavailable, is_disk_full
from ...repository import model_file
from ..deployment import listing
from ..deployment.desired import Reload, Report
from .client import PullError, open_hub
from .pull import PullRequest, check_name, pull

AT_ONCE = 2
"""Pulls that run at once; others wait."""
REMOVED = ".removed"
"""The directory in the repository that a deleted model is moved to, before its files are deleted."""


class NotChanged(RequestError):
    """The error 500 of a model that could not be pulled or deleted."""

    status = 500
    kind = "server_error"
    code = "not_changed"


class HubPulls(Service):
    """Pulls and deletes models in one directory of models."""

    def __init__(self, config: Config) -> None:
        self._repository = Path(config.model_repository_path)
        self._threads: ThreadPoolExecutor | None = None
        self._stopped = False
        self._deleting: set[asyncio.Task[None]] = set()

    async def pull(self, name: str, report: Report, serve: Reload) -> None:
        """Pulls a model; `report` runs on the event loop, `serve` when all files are there. Raises RequestError."""
        if self._stopped:
            raise Unavailable("the server is shutting down", code="shutting_down")
        loop, abandoned = asyncio.get_running_loop(), False

        def progress(path: str, digest: str, size: int, there: int) -> None:
            if abandoned or self._stopped:
                raise PullError("the pull was stopped; the next one continues from there")
            loop.call_soon_threadsafe(report, path, digest, size, there)

        def work() -> None:
            request = PullRequest(
                source=check_name(name),
                repository=self._repository,
                target=self._repository / name,
                converts=False,
                progress=progress,
            )
            pull(request, open_hub)

        if self._threads is None:
            self._threads = ThreadPoolExecutor(AT_ONCE, "pull")
        try:
            await loop.run_in_executor(self._threads, work)
            await serve()
        except StartError as error:
            raise (StoreFull if is_disk_full(error.__context__) else NotChanged)(error.reason) from error
        finally:
            abandoned = True

    async def delete(self, name: str, unserve: Reload) -> None:
        """Deletes a model: moves its folder away, awaits `unserve`, and deletes the files. Raises RequestError.

        The files are deleted even if the client leaves, or if `unserve` fails: nothing would find them later.
        """
        task = asyncio.get_running_loop().create_task(self._delete(name, unserve))
        self._deleting.add(task)
        task.add_done_callback(self._deleting.discard)
        task.add_done_callback(lambda task: task.cancelled() or task.exception())  # the client may have left
        await asyncio.shield(task)

    async def _delete(self, name: str, unserve: Reload) -> None:
        try:
            removed = await asyncio.to_thread(_take_out, self._repository, name)
            try:
                await unserve()
            finally:
                await asyncio.to_thread(_delete, removed)
        except StartError as error:
            raise NotChanged(error.reason) from error

    async def close(self) -> None:
        """Cancels the pulls, and waits for deletions. Idempotent."""
        self._stopped = True
        if self._threads is not None:
            self._threads.shutdown(wait=False)
        if self._deleting:
            await asyncio.wait(self._deleting)


def _delete(removed: Path) -> None:
    """Deletes a model that was moved away, and its parent directory if that is empty then."""
    shutil.rmtree(removed, ignore_errors=True)
    with contextlib.suppress(OSError):
        removed.parent.rmdir()


def _take_out(repository: Path, name: str) -> Path:
    """Moves a model's folder or file into a hidden directory, and returns that one. Raises StartError."""
    source, removed = repository / name, repository / REMOVED / name.replace("/", "--")
    try:
        if name not in listing.servable(repository):
            raise StartError(f"there is no model {name}", reason="It is not in the model repository.")
        shutil.rmtree(removed, ignore_errors=True)
        removed.mkdir(parents=True)
        for part in model_file.parts(source):
            part.rename(removed / part.name)
        with contextlib.suppress(OSError):
            source.parent.rmdir()  # removes the organization's directory if it is empty
    except OSError as error:
        raise StartError(f"{source}: {error.strerror}", reason="Its files cannot be removed.") from None
    return removed
