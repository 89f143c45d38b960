"""The manifest of uploads."""

from __future__ import annotations

from ...manifest import Feature

FEATURE = Feature(
    name="uploads",
    summary="reads multipart forms, with which clients upload speech, images to edit, PDF files and batches",
    packages=("python_multipart",),
)
