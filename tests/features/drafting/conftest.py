"""The fixture of tests/engine that the tests of drafts use as well."""

from __future__ import annotations

from tests.engine.conftest import steady_drafts

__all__ = ["steady_drafts"]
