"""Makes the recipe of the demo model importable: it is in tools/, which is not installed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import jinja2
import pytest
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))


@pytest.fixture(scope="session")
def folder() -> Path:
    return ROOT / "lean_ovms" / "demo_model"


@pytest.fixture(scope="session")
def template(folder: Path) -> jinja2.Template:
    """Returns the shipped template in the sandbox that transformers uses."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])

    def tojson(value: Any, indent: int | None = None) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent)

    def raise_exception(message: str) -> None:
        raise jinja2.exceptions.TemplateError(message)

    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    return environment.from_string((folder / "chat_template.jinja").read_text(encoding="utf-8"))
