"""Command lines in an empty directory, and a server that answers what a test says."""

from __future__ import annotations

from tests.cli.conftest import ends_with, run, script, served

__all__ = ["ends_with", "run", "script", "served"]
