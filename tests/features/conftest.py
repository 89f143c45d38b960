"""The fixtures of tests/api, which the tests of features use as well."""

from __future__ import annotations

from tests.api.conftest import made_once, make_app, make_pooling

__all__ = ["made_once", "make_app", "make_pooling"]
