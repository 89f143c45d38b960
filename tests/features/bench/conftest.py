"""A server that answers what a test says."""

from __future__ import annotations

from tests.cli.conftest import script

__all__ = ["script"]
