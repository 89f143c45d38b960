"""Flag, environment variable and options file set the same option, and each option has a test that shows its effect."""

from __future__ import annotations

import json
import re
from dataclasses import MISSING, Field
from pathlib import Path
from typing import Any

import pytest

from lean_ovms.cli.arguments import parse
from lean_ovms.config import Config, listed
from tests.conventions.source import ROOT

TESTS = Path(__file__).parents[1]
OPTIONS = [row for row in listed() if not row.metadata["secret"] and row.name != "options_file"]
"""All options except the one for an options file, which cli/test_arguments.py tests."""

COMPANIONS: dict[str, dict[str, Any]] = {
    "ssl_certfile": {"ssl_keyfile": "k"},
    "ssl_keyfile": {"ssl_certfile": "c"},
    "ssl_ca_certs": {"ssl_certfile": "c", "ssl_keyfile": "k"},
    "metrics_list": {"metrics_enable": True},
    **{
        f"draft_{name}": {"draft_model_path": "d"}
        for name in ("device", "cache_size", "max_num_batched_tokens", "max_num_seqs", "eagle3_mode")
    },
}
"""Options that are valid only together with others."""
VALUES: dict[str, Any] = {
    "without": "images",
    "root_path": "/proxy",
    "task": "text_generation",
    "lora_modules": "a=/dir",
    "override_kv": "general.name=str:a",
    "rope_parameters": '{"rope_theta": 1000.0}',
    "reasoning_parser": "qwen3",
    "tool_parser": "hermes3",
    "tool_server": "a=https://tools/mcp",
    **dict.fromkeys(("resolution", "default_resolution", "max_resolution"), "64x64"),
}
"""Values for options that do not accept any value."""

ABOUT_ALL = {"conventions/test_options.py", "cli/test_arguments.py", "repository/test_pbtxt.py"}
"""Files that name options without showing their effects."""


def another(row: Field[Any]) -> Any:
    """Returns a value within the bounds that is not the default."""
    if row.name in VALUES:
        return VALUES[row.name]
    assert row.default is not MISSING
    if row.metadata["json_object"]:
        return '{"key": 1}'
    default, low, high, choices = row.default, row.metadata["low"], row.metadata["high"], row.metadata["choices"]
    if choices:
        return next(choice for choice in choices if choice not in ("", default))
    if isinstance(default, bool):
        return not default
    if isinstance(default, (int, float)):
        return default + 1 if high is None or default + 1 <= high else max(low or 0, default - 1)
    return "some text"


@pytest.mark.slow
@pytest.mark.parametrize("row", OPTIONS, ids=lambda row: row.name)
def test_flag_variable_and_file_set_the_option(row: Field[Any], tmp_path: Path) -> None:
    value, path = another(row), tmp_path / "options.json"
    others = COMPANIONS.get(row.name, {})
    path.write_text(json.dumps({row.name: value, **others}))
    text = str(value).lower() if isinstance(value, bool) else str(value)
    beside = [f"--{name}={str(other).lower() if other is True else other}" for name, other in others.items()]
    hyphened = row.name.replace("_", "-")
    expected = Config(**{row.name: value}, **others)
    assert parse([f"--{row.name}", text, *beside], {}) == expected
    assert parse([f"--{hyphened}={text}", *beside], {}) == expected
    assert parse(beside, {f"LEAN_OVMS_{row.name.upper()}": text}) == expected
    assert parse(["--options_file", str(path)], {}) == expected.replace(options_file=str(path))


SETS = re.compile(r"\b(\w+)=|--([\w-]+)\b|\"(\w+)\":")
"""Matches a keyword argument, a flag or a key of a dictionary."""


@pytest.mark.slow
def test_some_test_sets_each_option_to_see_what_it_does() -> None:
    files = [path for path in TESTS.rglob("test_*.py") if str(path.relative_to(TESTS)) not in ABOUT_ALL]
    found = {name for path in files for match in SETS.findall(path.read_text("utf-8")) for name in match}
    assert {row.name for row in OPTIONS} - {name.replace("-", "_") for name in found} == set()


def test_options_that_messages_name_in_parentheses_exist() -> None:
    known = {row.name for row in listed()}
    found = {
        (str(path.relative_to(ROOT)), name)
        for path in ROOT.rglob("*.py")
        for name in re.findall(r"\(--([a-z0-9_]+)\)", path.read_text("utf-8"))
    }
    assert len(found) > 20
    assert {(path, name) for path, name in found if name not in known} == set()
