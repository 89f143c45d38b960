"""The manifest of uploads, which are only read here: the feature batches keeps the files of /v1/files."""

from __future__ import annotations

from ...manifest import Feature

FEATURE = Feature(
    name="uploads",
    summary="reads multipart forms, with which clients upload speech, images to edit, PDF files and batches",
    packages=("python_multipart",),
)
