"""The manifest of files and batches."""

from __future__ import annotations

from ...manifest import BASES, Command, Feature, Route, StartRow
from .options import BatchOptions

FEATURE = Feature(
    name="batches",
    summary="takes files of requests, and answers them while there is time",
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
