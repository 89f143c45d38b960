"""What a composition contains of the features: names that replace others, additional routes, parts of the engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lean_ovms.cli.arguments import parse
from lean_ovms.composition import TEXT_GENERATION, compose, manifests
from lean_ovms.config import Config, listed
from lean_ovms.errors import StartError
from lean_ovms.features.responses.feature import ResponseSocketOptions


def test_by_a_name_that_a_feature_has_taken_in_the_whole_is_left_out() -> None:
    assert set(compose("bench, launch").left_out) == {"terminal"}
    names = {one.name for one in manifests()}
    assert names.isdisjoint(name for one in manifests() for name in one.formerly)


@pytest.mark.parametrize(
    ("without", "path"), [("websocket", ("GET", "/responses")), ("batches", ("GET", "/messages/batches"))]
)
def test_a_route_that_needs_another_feature_goes_with_it(without: str, path: tuple[str, str]) -> None:
    other, some = ({(row.method, row.path) for row in compose(name).routes} for name in (without, ""))
    assert path in some - other
    assert {("POST", "/responses"), ("POST", "/messages")} <= other


def test_an_option_that_needs_another_feature_goes_with_it() -> None:
    assert Config(max_response_websockets=3).of(ResponseSocketOptions).max_response_websockets == 3
    assert not [row.name for row in listed("websocket") if "websocket" in row.name]
    with pytest.raises(StartError, match="unrecognized arguments: --max_response_websockets"):
        parse(["--max_response_websockets", "3", "--without", "websocket"], {})


def engine_features(**options: Any) -> list[str]:
    return Config(**options).engine_features(TEXT_GENERATION)


def test_an_engine_process_knows_forms_of_files_that_its_models_have() -> None:
    assert "gguf" not in engine_features()
    assert "gguf" in engine_features(model_path="/models/m.gguf")
    assert "gguf" in engine_features(allow_runtime_lora=True)
    assert "gguf" in engine_features(draft_model_path=str(Path("/models/draft.gguf")))


@pytest.mark.parametrize("option", ["model_path", "draft_model_path"])
def test_an_engine_process_knows_soft_caps_where_a_model_has_one(option: str, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    assert "soft_caps" not in engine_features(**{option: str(tmp_path)})
    file.write_text('{"model_type": "llama"}', "utf-8")
    assert "soft_caps" not in engine_features(**{option: str(tmp_path)})
    file.write_text('{"attn_logit_softcapping": 50.0}', "utf-8")
    assert "soft_caps" in engine_features(**{option: str(tmp_path)})
    assert "soft_caps" in engine_features(**{option: "/models/x.gguf"})


def test_an_engine_process_knows_another_grammar_library_that_is_asked_for() -> None:
    assert "xgrammar" not in engine_features()
    assert "xgrammar" in engine_features(structured_output_backend="xgrammar")
