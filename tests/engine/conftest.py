"""Pipelines on the real engine, loaded once for all tests that ask for one."""

import math

import pytest

from lean_ovms.config import Config
from lean_ovms.engine.paged.drafting import draft_budget
from tests.engine.real import EXACT, load
from tests.engine.rig import Rig


@pytest.fixture(autouse=True)
def steady_drafts(request, monkeypatch):
    """How many tokens are drafted does not depend on what steps cost, but in the tests of that."""
    if "draft_budget" not in request.module.__name__:
        monkeypatch.setattr(draft_budget, "LEAST_S", math.inf)


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
