"""Without its extra, the deployment says how to install it."""

from __future__ import annotations

import importlib
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from lean_ovms.errors import install_command

MODULES = ("lean_ovms.ray_serve", "lean_ovms.features.ray.deployment", "lean_ovms.features.ray.proxy")


@pytest.mark.parametrize("missing", ["starlette.responses", "starlette.middleware"])
def test_without_starlette_the_import_names_the_extra(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ImportError) as failure:
        importlib.import_module(MODULES[0])
    assert str(failure.value) == f"lean_ovms.ray_serve needs {install_command('ray')}"


def test_without_ray_an_application_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    from lean_ovms.ray_serve import PROXY_CALLBACK, application

    monkeypatch.setenv(PROXY_CALLBACK, "")
    ray: Any = SimpleNamespace(is_initialized=lambda: False)
    monkeypatch.setitem(sys.modules, "ray", ray)
    with pytest.raises(ImportError, match=r"lean_ovms\.ray_serve needs"):
        application(model_path="m")
