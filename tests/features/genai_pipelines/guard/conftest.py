"""Here a Rig has the fake of openvino_genai's pipeline, with its guard."""

import pytest

from tests.engine.conftest import guarded_rigs


@pytest.fixture(autouse=True)
def _guarded(monkeypatch):
    guarded_rigs(monkeypatch)
