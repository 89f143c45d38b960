"""Command lines in an empty directory, and a directory of models."""

from __future__ import annotations

from tests.cli.conftest import ends_with, run, served
from tests.features.deployment.test_desired import repository

__all__ = ["ends_with", "repository", "run", "served"]
