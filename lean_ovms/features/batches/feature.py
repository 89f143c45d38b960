"""The manifest of files and batches."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from ...config.options import Options, option
from ...manifest import BASES, Command, Feature, Route, StartRow

_files = partial(option, group="files")


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class BatchOptions(Options):
    """The directory of files and batches, and limits of the server's resources that they may use."""

    files_path: str = _files(
        "",
        "directory for the files that clients upload, and for batches and their results, which one server may use at "
        "a time; empty: no files and batches",
    )
    max_files_per_client: int = _files(1000, "most files, and as many batches, of one client; more: 400", low=1)
    max_files_mb: int = _files(4096, "MB for all files together; more: an upload is refused, and a batch fails", low=1)
    max_batch_lines: int = _files(50000, "most requests of a batch; with more it fails", low=1)
    batch_concurrency: int = _files(
        8, "most requests of all batches that are computed at the same time", low=1, high=1024
    )


FEATURE = Feature(
    name="batches",
    summary="takes files of requests, and answers them while there is time",
    needs=("deployment", "uploads"),
    title="OpenAI: files and batches",
    reference="https://platform.openai.com/docs/api-reference/batch",
    options=BatchOptions,
    commands=(Command("run-batch", "-i FILE -o FILE [MODEL]", "answer the requests of a file", "run_batch:main"),),
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
