"""The option of the scripted engine."""

from __future__ import annotations

import pytest

from lean_ovms.cli.arguments import parse
from lean_ovms.config import EngineConfig
from lean_ovms.errors import StartError


def test_the_option_says_that_answers_need_no_model() -> None:
    assert parse(["--fake_engine", "--model_name", "m"], {}).without_model
    assert EngineConfig(fake_engine=True).without_model
    assert not EngineConfig(model_path="m").without_model


def test_without_the_feature_there_is_no_such_option() -> None:
    assert not parse(["--model_path", "m", "--without", "scripted_engine"], {}).without_model
    with pytest.raises(StartError, match="unrecognized arguments"):
        parse(["--fake_engine", "--model_name", "m", "--without", "scripted_engine"], {})
