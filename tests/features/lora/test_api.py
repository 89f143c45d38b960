"""Loading and unloading adapters. If a request is invalid, it gets 400 with the field's name, and no adapter is
listed."""

from __future__ import annotations

import pytest

from tests.api.conftest import MakeApp, post, whole

LOAD = "/v1/load_lora_adapter"
NAMES = ["../x", "x" * 100_000]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        *(({"lora_name": name, "lora_path": "p"}, "lora_name") for name in NAMES),
        ({"lora_name": "a", "lora_path": "p\n"}, "lora_path"),
        ({"lora_name": "a", "lora_path": "p" * 5000}, "lora_path"),
        ({"lora_name": ["a"], "lora_path": "p"}, "lora_name"),
        ({"lora_name": "a", "lora_path": "p", "alpha": "1"}, "alpha"),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_names_and_paths_are_checked_before_anything_is_read(
    body: dict[str, object], param: str, make_app: MakeApp
) -> None:
    app, _ = await make_app(allow_runtime_lora=True)
    response = await post(app, LOAD, body)
    error = (await whole(response))["error"]
    assert (response.status, error["param"]) == (400, param)
    assert len(error["message"]) < 1000
    assert app.registry.get("m").adapters.models == {}
    assert (await post(app, LOAD, {"lora_name": "org/a b", "lora_path": "p"})).status == 200
