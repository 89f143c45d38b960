"""The options of files and batches."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from ...config.options import Options, option

_files = partial(option, group="files")


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class BatchOptions(Options):
    """Where files and batches are kept, and how much of a server they may use."""

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
