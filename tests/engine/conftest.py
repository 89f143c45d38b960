"""Pipelines on the real engine, loaded once for all tests that ask for one."""

import pytest

from lean_ovms.config import Config
from tests.engine.real import EXACT, load
from tests.engine.rig import Rig


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


@pytest.fixture(params=["guarded", "paged"])
def each_backend(request, monkeypatch):
    """A Rig has the guarded scripted pipeline, then the paged engine on a scripted network."""
    monkeypatch.setattr(Rig, "paged", request.param == "paged")
    return request.param
