"""The manifest of files and batches."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from ...config.options import Options, option
from ...manifest import BASES, UPLOADED_FILES, Command, Feature, PartRow, Route, StartRow

_files = partial(option, group="files")


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class BatchOptions(Options):
    """The directory of files and batches, and limits of the server's resources that they may use."""

    files_path: str = _files(
        "",
        "directory for uploaded files, batches and their results, used by one server at a time; if empty, there are "
        "no files and batches",
    )
    max_files_per_client: int = _files(
        1000, "maximum number of files, and as many batches, of one client; more are rejected with 400", low=1
    )
    max_files_mb: int = _files(
        4096, "maximum size of all files together in MB; beyond it, uploads are rejected and batches fail", low=1
    )
    max_batch_lines: int = _files(50000, "maximum number of requests of a batch; with more it fails", low=1)
    batch_concurrency: int = _files(
        8, "maximum number of requests of all batches that are computed at the same time", low=1, high=1024
    )


FEATURE = Feature(
    name="batches",
    summary="keeps uploaded files, and answers batches, files of requests, when the server has time for them",
    needs=("deployment", "uploads"),
    title="OpenAI: files and batches",
    reference="https://platform.openai.com/docs/api-reference/batch",
    options=BatchOptions,
    commands=(Command("run-batch", "-i FILE -o FILE [MODEL]", "answer the requests in a file", "run_batch:main"),),
    parts=(PartRow(seam=UPLOADED_FILES, make="service:read_file"),),
    start=StartRow(prepare="api.batches:prepare", options=("files_path",)),
    routes=(
        Route("POST", "/batches", "api.batches:handle_create", BASES),
        Route("GET", "/batches", "api.batches:handle_list", BASES),
        Route("GET", "/batches/{id}", "api.batches:handle_get", BASES),
        Route("POST", "/batches/{id}/cancel", "api.batches:handle_cancel", BASES),
        Route("POST", "/files", "api.files:handle_upload", BASES),
        Route("GET", "/files", "api.files:handle_list", BASES),
        Route("GET", "/files/{id}", "api.files:handle_get", BASES),
        Route("DELETE", "/files/{id}", "api.files:handle_delete", BASES),
        Route("GET", "/files/{id}/content", "api.files:handle_content", BASES),
    ),
)
