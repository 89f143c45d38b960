"""Opens audio and video containers with FFmpeg. Importing this module needs PyAV, which is optional."""

from __future__ import annotations

import io
from typing import Any

import av

_METADATA: dict[str, Any] = {"metadata_errors": "ignore"} if int(av.__version__.partition(".")[0]) < 19 else {}
"""Metadata that is not UTF-8 is no error; from PyAV 19 on it never is one, and there is no such argument."""


def opened(data: bytes | memoryview, name: str) -> Any:
    """Opens a file, of FFmpeg's format `name`, which the caller has to close. Raises PyAV's errors."""
    return av.open(io.BytesIO(data), "r", format=name, **_METADATA)
