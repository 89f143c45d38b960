"""/server_info: the options that are not defaults, without what is nobody's business."""

from __future__ import annotations

from lean_ovms.api.admin.server_info import changed_options
from lean_ovms.config import Config
from tests.api.conftest import MakeApp, get, whole


async def test_only_changed_options_and_never_the_key(make_app: MakeApp) -> None:
    app, _ = await make_app(api_key="secret", metrics_enable=True, response_store="postgresql://user:word@host/db")
    assert (await get(app, "/server_info")).status == 401
    response = await get(app, "/server_info", authorization="Bearer secret")
    assert isinstance(response.body, bytes)
    assert b"secret" not in response.body
    assert b"word" not in response.body
    body = await whole(response)
    assert body["options"] == {"fake_engine": True, "model_name": "m", "access_log": False, "metrics_enable": True}
    assert body["version"]


def test_paths_are_cut_to_their_last_part() -> None:
    config = Config(
        model_path="/home/someone/models/m",
        source_model="org/name",
        lora_modules="a=/srv/lora/a b=relative/b",
        plugin_config='{"CACHE_DIR": "/var/cache/x"}',
        allowed_origins="https://example.org/a",
    )
    assert changed_options(config) == {
        "model_path": "…/m",
        "source_model": "org/name",
        "lora_modules": "a=…/a b=relative/b",
        "plugin_config": '{"CACHE_DIR": "…/x"}',
        "allowed_origins": "https://example.org/a",
    }
