"""The fixtures of tests/engine, which the tests of drafts use as well."""

from __future__ import annotations

from tests.engine.conftest import caching, engine, steady_drafts

__all__ = ["caching", "engine", "steady_drafts"]
