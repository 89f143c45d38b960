"""Pulls a model into a directory if it is missing. The directory contains the whole model or does not exist."""

from __future__ import annotations

import logging
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ...errors import StartError
from ...observability.logging import safe
from ...repository import model_config, model_dir, model_file
from ...util.sizes import human_size
from . import convert, select
from .client import HubClient, Listing, PullError, RemoteFile
from .progress import DownloadProgress
from .staging import Staging, check_free_space, locked, matches

log = logging.getLogger("lean_ovms.hub")

NAME = re.compile(r"[A-Za-z0-9_][\w.-]*(/[A-Za-z0-9_][\w.-]*)?", re.ASCII)
"""Matches organisation/name; a name alone for the oldest models."""
REVISION = re.compile(r"[A-Za-z0-9_][\w./-]*", re.ASCII)
"""Matches a branch, a tag, a commit, or a reference such as refs/pr/1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PullRequest:
    """A model to pull."""

    source: str
    """The model's name at the hub."""
    repository: Path
    """The directory under which unfinished pulls are, on the same file system as the target."""
    target: Path
    """The directory for the model."""
    revision: str = ""
    """The branch, tag or commit to pull; "" for the main branch."""
    file: str = ""
    """The model file to pull; "" for the whole model."""
    images: bool = False
    """Whether the mmproj file of a model file is pulled as well."""
    overwrite: bool = False
    """Whether an existing model is replaced."""
    weight_format: str = ""
    """The weight format of a conversion; "" for the default one."""
    extra: str = ""
    """Further arguments of a conversion, quoted as for a shell."""
    task: str = ""
    """The model's task; "" if it is detected by the files."""
    converts: bool = True
    """Whether a checkpoint is converted."""
    bar: bool = False
    """Whether to show a progress bar on a terminal instead of lines in the log."""
    progress: Callable[[str, str, int, int], None] = lambda path, digest, size, there: None
    """Gets a file's path, SHA-256 ("" if small), size and received bytes. An error that it raises ends the pull."""


def check_name(source: str) -> str:
    """Returns a model name if it is a path that stays below a directory. Raises PullError if it does not."""
    if not NAME.fullmatch(source) or ".." in source:
        raise PullError(f"{safe(source)} is not a model name of the form organisation/name")
    return source


def directory_name(source: str, revision: str) -> str:
    """Returns the path of a model's directory in the repository. Raises PullError if it would lead out of it."""
    if not revision:
        return check_name(source)
    if not REVISION.fullmatch(revision):
        raise PullError(f"--revision {safe(revision)} is not a branch, a tag or a commit")
    return f"{check_name(source)}@{revision.replace('/', '-')}"


def file_name(source: str, target: Path, wanted: str, open_hub: Callable[[], HubClient], revision: str = "") -> str:
    """Returns the name of the model file for a name or a quantization, or of the only one; "" for other models.

    The hub is asked only if the model's directory does not have the file.

    Args:
        source: The model's name at the hub.
        target: The model's directory.
        wanted: The name or the quantization; "" for the usual file.
        open_hub: Returns a client of the hub.
        revision: The branch, tag or commit; "" for the main branch.

    Raises:
        PullError: The hub cannot be asked, or has no such file.
    """
    if model_file.is_one(Path(wanted)):
        return wanted
    with _as_pull_error(target):
        present = target.exists()
    if not wanted and present:
        return model_file.usual(str(path.relative_to(target)) for path in model_dir.single_files(target))
    if not wanted:
        return select.usual_of(open_hub().listing(source, revision))
    here = (str(path.relative_to(target)) for path in target.rglob("*"))
    if name := model_file.quantized(here, wanted):
        return name
    listing = open_hub().listing(source, revision)
    if name := model_file.quantized((file.path for file in listing.files), wanted):
        return name
    raise select.no_such_file(listing, wanted)


def pull(request: PullRequest, open_hub: Callable[[], HubClient]) -> bool:
    """Pulls a model unless its directory exists. Returns whether it was pulled. Raises PullError."""
    with _as_pull_error(request.repository):
        if not request.overwrite and _is_present(request):
            log.info("%s is already in %s (--overwrite_models pulls it again)", request.source, request.target)
            return False
        hub = open_hub()
        with locked(request.repository, directory_name(request.source, request.revision)) as staging:
            if not request.overwrite and _is_present(request):
                log.info("another process has pulled %s in the meantime", request.source)
                return False
            _download_or_convert(request, hub, staging)
    log.info("%s is in %s", request.source, request.target)
    return True


def prepare(path: Path, task: str, weight_format: str, extra: str) -> Path:
    """Returns a directory that can be served: `path` itself, or the directory to which its checkpoint is converted.

    Missing tokenizers are made. Raises PullError. Problems that cannot be repaired are reported by loading the model.
    """
    missing = model_dir.missing_in(path, task)
    if missing and set(missing) <= set(model_config.TOKENIZERS):
        if (path / "tokenizer.json").is_file() and convert.find_program("convert_tokenizer"):
            log.info("%s has no %s; creating them", path, " and ".join(missing))
            convert.make_tokenizers(path)
        return path
    if not missing or not model_dir.is_checkpoint(path):
        return path
    target = path.resolve().with_name(f"{path.resolve().name}-ov")
    request = PullRequest(
        source=str(path), repository=target.parent, target=target, weight_format=weight_format, extra=extra, task=task
    )
    if not target.exists():
        _convert_folder(request)
    log.info("%s is a checkpoint; its converted model is %s", path, target)
    return target


def _convert_folder(request: PullRequest) -> None:
    if not convert.available():
        quoted, to = shlex.quote(request.source), shlex.quote(str(request.target))
        raise PullError(
            f"{request.source} is a checkpoint; convert it with these two commands:\n"
            '  pip install "optimum-intel[openvino]"\n'
            f"  optimum-cli export openvino --model {quoted} --weight-format {convert.DEFAULT_WEIGHTS} {to}"
        )
    with _as_pull_error(request.repository), locked(request.repository, request.target.name) as staging:
        if not request.target.exists():  # another process may have converted it first
            _convert(request, staging)
            staging.publish(request.target)


@contextmanager
def _as_pull_error(place: Path) -> Iterator[None]:
    """Converts an OSError to a PullError with the path that it names, or else this place."""
    try:
        yield
    except OSError as error:
        why = error.strerror or "it cannot be stored"
        raise PullError(f"{error.filename or place}: {error.strerror or error}", reason=why) from None


def _is_present(request: PullRequest) -> bool:
    if request.file:
        return all((request.target / name).is_file() for name in select.shards(request.file))
    if not request.target.exists():
        return False
    try:
        model_dir.check(request.target, request.task)
    except StartError as error:
        anew = f"{error} (--overwrite_models pulls it again, into a clean directory)"
        raise PullError(anew, reason=error.reason) from None
    return True


def _download_or_convert(request: PullRequest, hub: HubClient, staging: Staging) -> None:
    listing = hub.listing(request.source, request.revision)
    if request.file:
        files = select.single_file(listing, request.file)
        files += select.vision_file(listing, request.file) if request.images else []
        _download(request, hub, listing, files, staging)
        staging.publish_files(request.target, [file.path for file in files])
        return
    try:
        files = select.model_files(listing)
    except select.NotOpenVino as missing:
        if not (missing.checkpoint and request.converts and convert.available()):
            raise
        if request.revision:
            found = f"{request.source} has no OpenVINO model at --revision {request.revision}"
            raise PullError(f"{found}, and only the main revision can be converted") from None
        _convert(request, staging)
        _add_files(hub, listing, select.pooling_files(listing), staging)
    else:
        if request.weight_format or request.extra:
            raise PullError(f"{request.source} is an OpenVINO model: --weight-format and --extra_quantization_params "
                            "are for models that have to be converted")  # fmt: skip
        _download(request, hub, listing, files, staging)
    staging.publish(request.target)


def _download(
    request: PullRequest, hub: HubClient, listing: Listing, files: list[RemoteFile], staging: Staging
) -> None:
    todo = staging.prepare(files)
    missing_bytes = staging.missing_bytes(todo)
    size, commit = human_size(missing_bytes), listing.commit[:12]
    log.info("pulling %s at %s: %d files with %s", listing.repo, commit, len(todo), size)
    check_free_space(staging.root, missing_bytes, listing.repo)
    left = list(todo)

    def done() -> int:
        return missing_bytes - staging.missing_bytes(left)

    with DownloadProgress(listing.repo, missing_bytes, done, bar=request.bar) as progress:
        for number, file in enumerate(todo, 1):
            level = logging.DEBUG if progress.has_bar else logging.INFO  # the progress bar shows enough
            log.log(level, "[%d/%d] %s (%s)", number, len(todo), safe(file.path), human_size(file.size))
            _fetch(hub, listing, file, staging, partial(request.progress, file.path, file.sha256, file.size))
            left.remove(file)


def _fetch(
    hub: HubClient, listing: Listing, file: RemoteFile, staging: Staging, received: Callable[[int], None]
) -> None:
    """Downloads a file, and once more if its content is wrong. Raises PullError."""
    received(0)
    hub.fetch(listing, file, staging.part(file), received)
    if staging.accept(file):
        return
    log.warning("%s does not match its hash; fetching it once more", safe(file.path))
    hub.fetch(listing, file, staging.part(file), received)
    if not staging.accept(file):
        twice = f"{safe(file.path)} of {listing.repo} was received twice with a hash other than the hub's"
        raise PullError(f"{twice}; a proxy or a mirror may have changed it", temporary=True)


def _add_files(hub: HubClient, listing: Listing, files: list[RemoteFile], staging: Staging) -> None:
    """Downloads small files into the directory of a converted model. Raises PullError."""
    for file in files:
        place = staging.ready / file.path
        place.parent.mkdir(parents=True, exist_ok=True)
        hub.fetch(listing, file, place)
        if not matches(place, file):
            raise PullError(
                f"{safe(file.path)} of {listing.repo} does not have the size and the hash that the hub lists",
                temporary=True,
            )


def _convert(request: PullRequest, staging: Staging) -> None:
    shutil.rmtree(staging.ready, ignore_errors=True)
    log.info("%s contains no OpenVINO model; converting it", request.source)
    try:
        convert.convert(request.source, staging.ready, request.weight_format, request.extra, task=request.task)
        model_dir.check(staging.ready, request.task)
    except StartError as error:
        shutil.rmtree(staging.ready, ignore_errors=True)  # a partial conversion cannot be resumed
        if isinstance(error, PullError):
            raise
        raise PullError(f"the conversion of {request.source} did not produce a complete model: {error}") from None
