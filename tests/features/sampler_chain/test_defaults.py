"""Defaults of a model for the fields of llama.cpp's samplers, and the flags that set them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lean_ovms.config import Config
from lean_ovms.errors import WrongOptions
from lean_ovms.features.sampler_chain.flags import letters, samplers
from lean_ovms.server.checks import checked
from tests.api.conftest import MakeApp, get, post, warnings_of, whole
from tests.fakes import say
from tests.features.sampler_chain.test_fields import BODIES

CHAT = "/v1/chat/completions"
DEFAULTS: dict[str, Any] = {"dry_multiplier": 0.5, "dry_base": 2, "samplers": ["dry", "top_k"], "temperature": 0.5}


def options(**defaults: Any) -> dict[str, Any]:
    """Returns options of a model with these defaults, whose file has none."""
    text = json.dumps(defaults)
    return {"fake_engine": False, "generation_config_path": "none", "override_generation_config": text}


@pytest.mark.parametrize("path", BODIES)
async def test_a_request_without_the_fields_has_the_defaults(make_app: MakeApp, path: str) -> None:
    app, engine = await make_app(say("x"), capable=True, **options(**DEFAULTS))
    response = await post(app, path, BODIES[path])
    assert (response.status, warnings_of(response)) == (200, [])
    await response.aclose()
    sampling = engine.submitted[0][1]
    assert sampling.temperature == 0.5
    assert sampling.sampler_chain is not None
    found = {name: sampling.sampler_chain[name] for name in ("dry_multiplier", "dry_base", "samplers", "mirostat")}
    assert found == {"dry_multiplier": 0.5, "dry_base": 2, "samplers": ["dry", "top_k"], "mirostat": 0}


async def test_fields_of_a_request_take_precedence(make_app: MakeApp) -> None:
    app, engine = await make_app(say("x"), capable=True, **options(**DEFAULTS))
    cases: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"dry_multiplier": 1}, {"dry_multiplier": 1, "dry_base": 2, "samplers": ["dry", "top_k"]}),
        ({"dry_multiplier": None, "xtc_probability": 0.5}, {"dry_multiplier": 0.5, "xtc_probability": 0.5}),
        ({"samplers": ["xtc"]}, {"dry_multiplier": 0.5, "samplers": ["xtc"]}),
    ]
    for fields, wanted in cases:
        await whole(await post(app, CHAT, {**BODIES[CHAT], **fields}))
        chain = engine.submitted[-1][1].sampler_chain
        assert chain is not None
        assert wanted.items() <= chain.items()


async def test_a_request_switches_a_default_off(make_app: MakeApp) -> None:
    app, engine = await make_app(say("x"), capable=True, **options(xtc_probability=0.5))
    await whole(await post(app, CHAT, {**BODIES[CHAT], "xtc_probability": 0}))
    assert engine.submitted[0][1].sampler_chain is None


async def test_defaults_do_not_apply_to_beam_search_or_where_they_are_unsupported(make_app: MakeApp) -> None:
    app, engine = await make_app(say("x"), capable=True, **options(xtc_probability=0.5))
    response = await post(app, CHAT, {**BODIES[CHAT], "best_of": 2})
    assert (response.status, warnings_of(response)) == (200, [])
    await response.aclose()
    assert engine.submitted[0][1].sampler_chain is None
    app, engine = await make_app(say("x"), **options(xtc_probability=0.5))
    response = await post(app, CHAT, {**BODIES[CHAT], "dry_multiplier": 1})
    assert warnings_of(response) == ["dry_multiplier is not supported and was ignored"]
    assert engine.submitted[0][1].sampler_chain is None


async def test_props_show_the_defaults(make_app: MakeApp) -> None:
    app, _ = await make_app(capable=True, **options(mirostat=2, mirostat_tau=3))
    shown = (await whole(await get(app, "/props")))["default_generation_settings"]["params"]
    assert (shown["mirostat"], shown["mirostat_tau"], shown["mirostat_eta"]) == (2, 3, 0.1)


async def test_a_wrong_default_of_a_file_is_named(make_app: MakeApp, tmp_path: Any) -> None:
    file = tmp_path / "defaults.json"
    file.write_text('{"typical_p": 2}')
    app, _ = await make_app(say("x"), capable=True, fake_engine=False, generation_config_path=str(file))
    error = (await whole(await post(app, CHAT, BODIES[CHAT])))["error"]
    message = "the model's generation_config.json is invalid: typical_p out of range(0.0, 1.0)"
    assert (error["param"], error["message"]) == ("typical_p", message)


def test_a_wrong_default_of_an_option_ends_the_start() -> None:
    config = Config(override_generation_config='{"xtc_probability": 3}', model_path="m")
    with pytest.raises(WrongOptions, match="--override_generation_config: xtc_probability out of range"):
        checked(config)


def test_flags_for_the_order() -> None:
    assert samplers("top-k;temp;typ_p") == '{"samplers": ["top_k", "temperature", "typ_p"]}'
    assert letters("kt") == '{"samplers": ["top_k", "temperature"]}'
    with pytest.raises(ValueError, match="names out of penalties;dry;top_n_sigma"):
        samplers("top_k;tfs_z")
    with pytest.raises(ValueError, match="letters out of eds"):
        letters("kz")
    with pytest.raises(ValueError, match="an array of at most 16 names"):
        letters("k" * 65)
