"""Pipelines on the real engine, each loaded once for all tests."""

import math

import pytest

from lean_ovms.features.drafting.child import draft_budget
from tests.engine import rig
from tests.engine.real import load
from tests.features.genai_pipelines.guard.fake_pipeline import FakePipeline, Script


@pytest.fixture(autouse=True)
def steady_drafts(request, monkeypatch):
    """Makes the number of draft tokens independent of measured times, except in the tests of this."""
    if "draft_budget" not in request.module.__name__:
        monkeypatch.setattr(draft_budget, "LEAST_S", math.inf)


@pytest.fixture(scope="session")
def engine():
    """An engine with a large cache and no prefix caching, to which others are compared."""
    return load()


@pytest.fixture(scope="session")
def caching():
    return load(enable_prefix_caching=True)


def guarded_rigs(monkeypatch):
    """Gives every Rig the fake of openvino_genai's pipeline, with its guard."""

    def make(running, priority_across_clients, **changes):
        return rig.guarded(FakePipeline(Script(**changes)), running)

    monkeypatch.setattr(rig, "scripted", make)


@pytest.fixture(params=["guarded", "scripted"])
def each_backend(request, monkeypatch):
    """Gives a Rig the guarded fake of openvino_genai's pipeline, then the scripted engine."""
    if request.param == "guarded":
        guarded_rigs(monkeypatch)
    return request.param
