"""In these tests a Rig runs the guard on the fake of openvino_genai's pipeline."""

import pytest

from tests.engine.conftest import guarded_rigs


@pytest.fixture(autouse=True)
def _guarded(monkeypatch):
    guarded_rigs(monkeypatch)
