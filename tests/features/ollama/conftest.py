"""A fixture with a picture."""

from __future__ import annotations

import base64
import io

import pytest


@pytest.fixture
def png() -> str:
    """Returns a picture in base64, as Ollama's clients send it."""
    image = pytest.importorskip("PIL.Image")
    data = io.BytesIO()
    image.new("RGB", (4, 2)).save(data, "PNG")
    return base64.b64encode(data.getvalue()).decode()
