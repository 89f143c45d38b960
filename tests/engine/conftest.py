"""Pipelines on the real engine, loaded once for all tests that ask for one."""

import pytest

from lean_ovms.config import Config
from tests.engine.real import EXACT, load


@pytest.fixture(scope="session")
def engine():
    """Plenty of cache, no prefix caching: what the others are compared with."""
    return load()


@pytest.fixture(scope="session")
def caching():
    return load(enable_prefix_caching=True)


@pytest.fixture(scope="session")
def small():
    return load(blocks=16, enable_prefix_caching=True)


@pytest.fixture(scope="session")
def tight():
    return load(blocks=16)


@pytest.fixture(scope="session")
def stateful():
    """One text at a time."""
    from lean_ovms.engine.genai.stateful import StatefulPipeline

    return StatefulPipeline(Config(**EXACT, pipeline_type="LM"))
