"""The manifest of uploads."""

from __future__ import annotations

from ...manifest import Feature

FEATURE = Feature(
    name="uploads",
    summary="reads forms, in which clients send files: speech, pictures to edit, PDF files, batches",
    packages=("python_multipart",),
)
