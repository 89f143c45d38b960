"""Pipelines on the real engine, loaded once for all tests that ask for one."""

import math

import pytest

from lean_ovms.features.drafting.child import draft_budget
from tests.engine import rig
from tests.engine.real import load
from tests.features.genai_pipelines.guard.fake_pipeline import FakePipeline, Script


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


def guarded_rigs(monkeypatch):
    """Give every Rig the fake of openvino_genai's pipeline, with its guard."""

    def make(running, priority_across_clients, **changes):
        return rig.guarded(FakePipeline(Script(**changes)), running)

    monkeypatch.setattr(rig, "scripted", make)


@pytest.fixture(params=["guarded", "scripted"])
def each_backend(request, monkeypatch):
    """A Rig has the guarded fake of openvino_genai's pipeline, then the scripted engine."""
    if request.param == "guarded":
        guarded_rigs(monkeypatch)
    return request.param
