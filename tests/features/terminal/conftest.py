"""Command lines in an empty directory, and a server that gives the test's answers."""

from __future__ import annotations

from tests.cli.conftest import ends_with, run, script, served

__all__ = ["ends_with", "run", "script", "served"]
