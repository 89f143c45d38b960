"""No documented field is ignored silently: each changes what is generated, or causes a Warning header."""

from __future__ import annotations

import os
from typing import Any

import pytest

from lean_ovms.api.fields import doc_of
from lean_ovms.api.generation.sampling import SAMPLING
from lean_ovms.api.router import imported
from lean_ovms.composition import compose
from lean_ovms.features.chat.generation import DRAFTING, idle_fields
from lean_ovms.models.lifecycle import AdapterSet
from lean_ovms.models.text_model import TextModel
from lean_ovms.types import SamplingParams
from tests.api.conftest import MakeApp, post
from tests.fakes import say

MESSAGES: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": MESSAGES,
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {**MESSAGES, "max_tokens": 5},
    "/v2/chat": MESSAGES,
}
PROBES: dict[str, Any] = {
    "max_tokens": 9,
    "min_tokens": 2,
    "temperature": 0.5,
    "top_p": 0.5,
    "top_k": 3,
    "min_p": 0.25,
    "n": 2,
    "repetition_penalty": 1.5,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.5,
    "seed": 7,
    "best_of": 2,
    "use_beam_search": True,
    "length_penalty": 2,
    "stop": "x",
    "include_stop_str_in_output": True,
    "stop_token_ids": [5],
    "ignore_eos": True,
    "skip_special_tokens": False,
    "truncate_prompt_tokens": 2,
    "truncation_side": "right",
    "priority": 3,
    "cache_salt": "s",
    "lora": [{"id": 0, "scale": 0.5}],
    "id_slot": 2,
    "logit_bias": {"5": 1},
    "allowed_token_ids": [5],
    "bad_words": ["x"],
    "logprob_token_ids": [5],
    "early_stopping": True,
    "thinking_token_budget": 3,
    "num_assistant_tokens": 3,
    "assistant_confidence_threshold": 0.5,
    "max_ngram_size": 3,
    "repetition_detection": {"max_pattern_size": 4, "min_count": 3},
}
NEEDED = {"use_beam_search": {"n": 2}, "id_slot": {}}
"""Further fields without which a field has no effect."""


@pytest.mark.parametrize(("path", "capable"), [("/v1/chat/completions", False), *((path, True) for path in BODIES)])
async def test_each_field_changes_something_or_is_named(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, path: str, capable: bool
) -> None:
    monkeypatch.setattr(os, "urandom", bytes)
    monkeypatch.setattr(AdapterSet, "applied", lambda *_: "")  # the model has no adapters
    started: list[str] = []
    start = TextModel.start

    async def seen(self: TextModel, *given: Any, **named: Any) -> Any:
        started.append(repr((given, named)))
        return await start(self, *given, **named)

    monkeypatch.setattr(TextModel, "start", seen)
    app, _ = await make_app(lambda _, asked: say("x", sequences=asked.n), capable=capable)
    body = BODIES[path]
    [route] = [
        one for one in compose().routes if one.method == "POST" and path in {base + one.path for base in one.bases}
    ]
    fields = doc_of(imported(route)).body
    assert fields is not None

    async def asked(**more: Any) -> tuple[int, str, bool]:
        started.clear()
        response = await post(app, path, {"model": "m", **body, **more})
        await response.aclose()
        return response.status, "".join(started), "Warning" in dict(response.headers)

    assert set(PROBES) == SAMPLING.names
    for name in sorted(SAMPLING.names & fields.names):
        others = NEEDED.get(name, {})
        if not set(others) <= fields.names:
            continue
        without = await asked(**others)
        status, started_with, warned = await asked(**others, **{name: PROBES[name]})
        assert status == 200, name
        assert warned or started_with != without[1], name


BEAMS = {"best_of": 2}
SET = {
    "temperature": (0.5, [1, 0]),
    "top_p": (0.5, [1]),
    "top_k": (3, [-1, 0]),
    "min_p": (0.25, [0]),
    "seed": (0, []),
    "repetition_penalty": (1.5, [1]),
    "presence_penalty": (0.5, [0]),
    "frequency_penalty": (-0.5, [0]),
}
PAIRS = [
    ({"length_penalty": 2}, "length_penalty has no effect without beam search"),
    ({"early_stopping": True}, "early_stopping has no effect without beam search"),
    ({"early_stopping": True, **BEAMS}, None),
    ({"truncation_side": "right"}, "truncation_side has no effect without truncate_prompt_tokens"),
    ({"truncation_side": "right", "truncate_prompt_tokens": 5}, None),
    *[({name: value, **BEAMS}, f"{name} has no effect with beam search") for name, (value, _) in SET.items()],
    *[({name: value, **BEAMS}, None) for name, (_, neutral) in SET.items() for value in neutral],
    *[({name: 1}, f"{name} has no effect: the model uses no draft tokens") for name in DRAFTING],
]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_what_has_no_effect_is_named(make_app: MakeApp, path: str) -> None:
    app, _ = await make_app(lambda _, asked: say("x", sequences=asked.n), capable=True)
    for fields, line in PAIRS:
        response = await post(app, path, {"model": "m", **BODIES[path], **fields})
        assert response.status == 200, response.body
        assert dict(response.headers).get("Warning") == (line and f'299 lean_ovms "{line}"'), fields


@pytest.mark.parametrize(
    ("speculative", "idle"),
    [
        ("", set(DRAFTING)),
        ("prompt_lookup", {"assistant_confidence_threshold"}),
        *[(kind, {"max_ngram_size"}) for kind in ("draft", "mtp", "eagle3")],
        (None, set()),
    ],
)
def test_fields_about_drafts_are_for_the_kind_that_reads_them(speculative: str | None, idle: set[str]) -> None:
    values = SAMPLING.defaults | dict.fromkeys(DRAFTING, 1)
    assert {line.split()[0] for line in idle_fields(values, SamplingParams(), speculative)} == idle
