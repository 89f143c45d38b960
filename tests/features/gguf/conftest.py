"""The fixtures of tests/engine, which the tests of openvino_genai's pipelines use as well."""

from __future__ import annotations

from tests.engine.conftest import caching, each_backend, engine, small, stateful, tight

__all__ = ["caching", "each_backend", "engine", "small", "stateful", "tight"]
