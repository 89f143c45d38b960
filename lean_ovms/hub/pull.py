"""A model of a hub in a directory of ours: pulled when it is missing, and there as a whole or not at all."""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..errors import StartError
from ..observability.logging import safe
from ..repository import model_dir
from . import convert, select
from .client import Hub, Listing, PullError, RemoteFile
from .staging import Staging, check_room, held, size

log = logging.getLogger("lean_ovms.hub")

NAME = re.compile(r"[A-Za-z0-9_][\w.-]*(/[A-Za-z0-9_][\w.-]*)?", re.ASCII)
"""organisation/name; a name alone for the oldest models."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PullRequest:
    """What to pull. target: the directory of the model. repository: where staging is, on the same file system.

    gguf: the file to take out of the hub's repository instead of a whole model. overwrite: also if it is there.
    weight_format, extra: for a conversion, if one is needed.
    """

    source: str
    repository: Path
    target: Path
    gguf: str = ""
    overwrite: bool = False
    weight_format: str = ""
    extra: str = ""


def check_name(source: str) -> str:
    """source, if it is a model name and cannot lead out of a directory. Raises PullError."""
    if not NAME.fullmatch(source) or ".." in source:
        raise PullError(f"{safe(source)} is not a model name: organisation/name")
    return source


def pull(order: PullRequest, open_hub: Callable[[], Hub]) -> bool:
    """Have the model in order.target; whether it had to be pulled. Raises PullError."""
    try:
        if not order.overwrite and _is_there(order):
            log.info("%s is in %s already (--overwrite_models pulls it anew)", order.source, order.target)
            return False
        hub = open_hub()
        with held(order.repository, order.source.replace("/", "--"), waits=lambda: _say_wait(order)) as staging:
            if not order.overwrite and _is_there(order):
                log.info("another process has pulled %s meanwhile", order.source)
                return False
            _obtain(order, hub, staging)
    except OSError as error:
        raise PullError(f"{error.filename or order.repository}: {error.strerror or error}") from None
    log.info("%s is in %s", order.source, order.target)
    return True


def _is_there(order: PullRequest) -> bool:
    if order.gguf:
        return all((order.target / name).is_file() for name in select.shards(order.gguf))
    if not order.target.exists():
        return False
    try:
        model_dir.check(order.target)
    except StartError as error:
        raise PullError(f"{error} (--overwrite_models pulls it anew, into a clean directory)") from None
    return True


def _say_wait(order: PullRequest) -> None:
    log.info("another process is pulling %s; waiting until it is done", order.source)


def _obtain(order: PullRequest, hub: Hub, staging: Staging) -> None:
    listing = hub.listing(order.source)
    if order.gguf:
        files = select.gguf_files(listing, order.gguf)
        _bring(hub, listing, files, staging)
        staging.publish_files(order.target, [file.path for file in files])
        return
    try:
        files = select.model_files(listing)
    except select.NotOpenVino as missing:
        if not missing.checkpoint or not convert.available():
            raise
        _convert(order, staging)
    else:
        if order.weight_format or order.extra:
            raise PullError(f"{order.source} is an OpenVINO model: --weight-format and --extra_quantization_params "
                            "are for models that have to be converted")  # fmt: skip
        _bring(hub, listing, files, staging)
    staging.publish(order.target)


def _bring(hub: Hub, listing: Listing, files: list[RemoteFile], staging: Staging) -> None:
    """All files into staging, each checked."""
    todo = staging.begin(files)
    missing_bytes = staging.missing_bytes(todo)
    log.info(
        "pulling %s at %s: %d files, %s to come", listing.repo, listing.commit[:12], len(todo), size(missing_bytes)
    )
    check_room(staging.root, missing_bytes, listing.repo)
    for number, file in enumerate(todo, 1):
        log.info("[%d/%d] %s (%s)", number, len(todo), safe(file.path), size(file.size))
        hub.fetch(listing, file, staging.part(file))
        if not staging.accept(file):
            log.warning("%s has not the content that it should have; fetching it once more", safe(file.path))
            hub.fetch(listing, file, staging.part(file))
            if not staging.accept(file):
                twice = f"{safe(file.path)} of {listing.repo} came twice with another content than the hub says"
                raise PullError(f"{twice}: a proxy or a mirror spoils it", temporary=True)


def _convert(order: PullRequest, staging: Staging) -> None:
    shutil.rmtree(staging.ready, ignore_errors=True)
    log.info("%s holds no OpenVINO model: converting it", order.source)
    try:
        convert.convert(order.source, staging.ready, order.weight_format, order.extra)
        model_dir.check(staging.ready)
    except StartError as error:
        shutil.rmtree(staging.ready, ignore_errors=True)  # half a conversion is of no use to the next
        if isinstance(error, PullError):
            raise
        raise PullError(f"the conversion of {order.source} made no complete model: {error}") from None
