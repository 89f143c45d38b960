"""Pipelines of openvino_genai, each loaded once for all tests. tests/engine has further ones."""

from __future__ import annotations

import pytest

from lean_ovms.config import Config
from tests.engine.conftest import caching, engine
from tests.engine.real import EXACT, load

__all__ = ["caching", "engine"]


@pytest.fixture(scope="session")
def small():
    return load(blocks=16, enable_prefix_caching=True)


@pytest.fixture(scope="session")
def stateful():
    """A pipeline that computes one text at a time."""
    from lean_ovms.features.genai_pipelines.child.stateful import StatefulPipeline

    return StatefulPipeline(Config(**EXACT, pipeline_type="LM"))
