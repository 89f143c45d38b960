"""The fixture of tests/engine to which the tests of GGUF files compare."""

from __future__ import annotations

from tests.engine.conftest import engine

__all__ = ["engine"]
