"""The fields of llama.cpp's samplers at every endpoint that generates text."""

from __future__ import annotations

from typing import Any

import pytest

from lean_ovms.features.sampler_chain.feature import FEATURE
from lean_ovms.features.sampler_chain.fields import BREAKERS, FIELDS, ORDER, SAMPLERS
from tests.api.conftest import MakeApp, post, warnings_of, whole
from tests.fakes import say

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
TEXT = [{"role": "user", "content": "a"}]
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": TEXT},
    "/v1/completions": {"prompt": "a"},
    RESPONSES: {"input": "a"},
    MESSAGES: {"messages": TEXT, "max_tokens": 9},
    "/completion": {"prompt": "a"},
}
ON: list[dict[str, Any]] = [
    {"mirostat": 2, "mirostat_tau": 3},
    {"dry_multiplier": 0.8, "dry_base": 1, "dry_sequence_breakers": ["\n", "", "."]},
    {"xtc_probability": 0.5},
    {"typical_p": 0.9},
    {"top_n_sigma": 1},
    {"dynatemp_range": 0.5},
    {"min_keep": 2},
    {"samplers": ["top-k", "temp", "TYPICAL_P"]},
    {"samplers": "kta", "adaptive_target": 0},
]
OFF: dict[str, Any] = {
    "mirostat": 0, "dry_multiplier": 0.0, "dry_base": 0.5, "xtc_probability": 0.5, "xtc_threshold": 0.6,
    "typical_p": 1, "top_n_sigma": -1, "dynatemp_range": 0, "dynatemp_exponent": 1, "adaptive_target": -1.0,
    "repeat_last_n": 64, "min_keep": 1, "samplers": None,
}  # fmt: skip


def test_the_manifest_has_their_names() -> None:
    assert FEATURE.body is not None
    assert set(FEATURE.body.names) == FIELDS.names


@pytest.mark.parametrize("path", BODIES)
async def test_every_endpoint_that_generates_takes_them(make_app: MakeApp, path: str) -> None:
    app, engine = await make_app(say("x"), capable=True)
    for fields in (*ON, OFF):
        response = await post(app, path, {**BODIES[path], **fields})
        assert (response.status, warnings_of(response)) == (200, []), (fields, response.body)
        await response.aclose()
    *asked, idle = [sampling.sampler_chain for _, sampling in engine.submitted]
    assert idle is None
    for settings, fields in zip(asked, ON, strict=True):
        assert settings.keys() == FIELDS.names
        assert all(settings[name] == value for name, value in fields.items() if type(value) not in (list, str))
    assert (asked[0]["samplers"], asked[0]["dry_sequence_breakers"]) == ([*ORDER], [*BREAKERS])
    assert asked[1]["dry_sequence_breakers"] == ["\n", "."]
    assert asked[-2]["samplers"] == ["top_k", "temperature", "typ_p"]
    assert asked[-1]["samplers"] == ["top_k", "temperature", "adaptive_p"]


async def test_the_length_of_penalties_needs_penalties(make_app: MakeApp) -> None:
    app, engine = await make_app(say("x"), capable=True)
    for fields in ({"repeat_penalty": 1.1}, {"presence_penalty": 0.1}, {"temperature": 0}):
        await whole(await post(app, CHAT, {**BODIES[CHAT], "repeat_last_n": 5, **fields}))
    found = [sampling.sampler_chain for _, sampling in engine.submitted]
    assert [None if one is None else one["repeat_last_n"] for one in found] == [5, 5, None]


@pytest.mark.parametrize("path", [CHAT, "/completion"])
async def test_a_pipeline_that_cannot_names_what_it_ignores(make_app: MakeApp, path: str) -> None:
    app, engine = await make_app(say("x"))
    response = await post(app, path, {**BODIES[path], "xtc_probability": 0.5, "dry_multiplier": 1, "typical_p": 1})
    assert warnings_of(response) == [
        f"{name} is not supported and was ignored" for name in ("dry_multiplier", "xtc_probability")
    ]
    assert engine.submitted[0][1].sampler_chain is None


async def test_what_has_no_effect_is_told(make_app: MakeApp) -> None:
    app, _ = await make_app(say("x"), capable=True)
    cases: list[tuple[dict[str, Any], list[str]]] = [
        ({"adaptive_target": 0.5}, ["adaptive_target has no effect without adaptive_p in samplers"]),
        ({"samplers": ["tfs_z", "top_k"]}, ["samplers: tfs_z is not supported and was ignored"]),
        ({"samplers": "zk"}, ["samplers: z is not supported and was ignored"]),
        (
            {"mirostat": 1, "top_k": 5, "top_p": 1, "presence_penalty": 1},
            ["top_k has no effect with mirostat", "presence_penalty has no effect with mirostat"],
        ),
    ]
    for fields, lines in cases:
        assert warnings_of(await post(app, CHAT, {**BODIES[CHAT], **fields})) == lines


async def test_a_beam_search_is_refused(make_app: MakeApp) -> None:
    app, engine = await make_app(say("x"), capable=True)
    response = await post(app, CHAT, {**BODIES[CHAT], "best_of": 2, "xtc_probability": 1})
    error = (await whole(response))["error"]
    assert (response.status, error["param"]) == (400, "xtc_probability")
    assert error["message"] == "xtc_probability cannot be combined with beam search"
    assert engine.submitted == []


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"mirostat": 3}, "mirostat out of range [0, 2]"),
    ({"mirostat": "1"}, "mirostat is not an integer"),
    ({"typical_p": 1.5}, "typical_p out of range(0.0, 1.0)"),
    ({"xtc_threshold": -1}, "xtc_threshold out of range(0.0, 1.0)"),
    ({"dry_allowed_length": 257}, "dry_allowed_length out of range [0, 256]"),
    ({"repeat_last_n": -2}, "repeat_last_n out of range [-1, 2147483647]"),
    ({"adaptive_decay": 1}, "adaptive_decay out of range(0.0, 0.99)"),
    ({"samplers": 5}, "samplers must be an array"),
    ({"samplers": ["top_k"] * 17}, "samplers must be an array"),
    ({"samplers": "k" * 17}, "samplers must be an array"),
    ({"dry_sequence_breakers": []}, "dry_sequence_breakers must be an array of 1 to 32 strings"),
    ({"dry_sequence_breakers": [1]}, "dry_sequence_breakers must be an array of 1 to 32 strings"),
    ({"dry_sequence_breakers": ["x" * 41]}, "dry_sequence_breakers must contain strings of at most 40 characters"),
]


@pytest.mark.parametrize("path", [CHAT, "/completion"])
async def test_a_wrong_value_is_a_400(make_app: MakeApp, path: str) -> None:
    app, engine = await make_app(capable=True)
    for fields, message in WRONG:
        response = await post(app, path, {**BODIES[path], **fields})
        error = (await whole(response))["error"]
        assert (response.status, error["param"]) == (400, next(iter(fields)))
        assert error["message"].startswith(message)
    assert engine.submitted == []


async def test_ollamas_options(make_app: MakeApp) -> None:
    app, engine = await make_app(say("x"), capable=True)
    options = {"mirostat": 1, "mirostat_eta": 0.2, "typical_p": 0.9, "repeat_last_n": 7}
    response = await post(app, "/api/chat", {"model": "m", "messages": TEXT, "options": options, "stream": False})
    assert (response.status, warnings_of(response)) == (200, [])
    response = await post(app, "/api/chat", {"model": "m", "messages": TEXT, "stream": False})
    found, none = [sampling.sampler_chain for _, sampling in engine.submitted]
    assert none is None
    assert {name: found[name] for name in options} == options


async def test_the_settings_of_an_answer_are_the_true_ones(make_app: MakeApp) -> None:
    app, _ = await make_app(lambda *_: say("x"), capable=True)
    for base, shown in ((3, 3), (0.5, 1.75)):
        used = (await whole(await post(app, "/completion", {"prompt": "a", "dry_base": base})))["generation_settings"]
        assert (used["dry_base"], used["dry_multiplier"]) == (shown, 0)
    assert used["samplers"] == ["penalties", "temperature", "top_k", "min_p", "top_p"]
    fields = {"dry_multiplier": 1, "xtc_probability": 0.5}
    used = (await whole(await post(app, "/completion", {"prompt": "a", **fields})))["generation_settings"]
    assert {name: used[name] for name in fields} == fields
    assert used["samplers"] == list(ORDER)
    assert FIELDS.names <= used.keys()
    assert set(ORDER) == SAMPLERS.keys() - {"adaptive_p"}
