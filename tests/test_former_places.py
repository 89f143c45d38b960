"""Former public paths still work for one release, with a warning."""

from __future__ import annotations

import importlib
import sys

import pytest

FORMER = {
    "lean_ovms.adapters.hosted": ("lean_ovms.asgi", {"Hosted": "Hosted", "app": "app"}),
    "lean_ovms.adapters.ray_serve": ("lean_ovms.ray_serve", {"LeanOvms": "LeanOvms", "application": "application"}),
    "lean_ovms.log": ("lean_ovms.embed", {"setup": "setup_logging"}),
}


@pytest.mark.parametrize("former", FORMER)
def test_a_former_path_warns_and_gives_the_same_objects(former: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place, names = FORMER[former]
    if place == "lean_ovms.ray_serve":
        pytest.importorskip("starlette")
    monkeypatch.delitem(sys.modules, former, raising=False)

    with pytest.warns(DeprecationWarning, match=rf"{former}\S* is now {place}"):
        old = importlib.import_module(former)

    new = importlib.import_module(place)
    assert {name: getattr(old, name) for name in old.__all__} == {
        name: getattr(new, now) for name, now in names.items()
    }
