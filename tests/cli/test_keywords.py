"""The keyword arguments of a Python program are read like flags."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lean_ovms.cli.keywords import of_keywords
from lean_ovms.config import Config
from lean_ovms.errors import StartError


@pytest.mark.parametrize(
    ("keywords", "expected"),
    [
        ({}, {}),
        ({"model_path": Path("/m"), "max_num_seqs": 4}, {"model_path": "/m", "max_num_seqs": 4}),
        ({"model_path": "", "max_model_len": None}, {}),
        (
            {"enable_prefix_caching": False, "metrics_enable": True},
            {"enable_prefix_caching": False, "metrics_enable": True},
        ),
        ({"model_name": "a", "model_aliases": ["b", "c"]}, {"model_name": "a", "model_aliases": "b c"}),
        ({"plugin_config": {"NUM_STREAMS": 1}}, {"plugin_config": '{"NUM_STREAMS": 1}'}),
        ({"plugin_config": '{"NUM_STREAMS": 1}'}, {"plugin_config": '{"NUM_STREAMS": 1}'}),
        ({"chat_template": "a --b=c"}, {"chat_template": "a --b=c"}),
        ({"request_timeout_s": 1.5, "api_key": "secret"}, {"request_timeout_s": 1.5, "api_key": "secret"}),
    ],
)
def test_options_have_their_own_names_and_types(keywords: dict[str, Any], expected: dict[str, Any]) -> None:
    assert of_keywords(**keywords) == Config(**expected)


def test_vllms_names_mean_what_they_mean_in_a_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    found = of_keywords(
        "org/name", dtype="bfloat16", max_model_len="8k", enable_chunked_prefill=False, enforce_eager=False,
        tensor_parallel_size=2, trust_remote_code=True, enable_lora=False,
    )  # fmt: skip
    assert (found.source_model, found.max_model_len, found.dynamic_split_fuse) == ("org/name", 8000, False)
    assert "bf16" in found.plugin_config
    said = capsys.readouterr().err
    assert "--tensor_parallel_size has no effect" in said
    assert "--trust_remote_code has no effect" in said
    assert "enforce_eager" not in said


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"max_num_seq": 4}, r"did you mean --max_num_seqs\?"),
        ({"webpage": False}, r"did you mean --web_page\?"),
        ({"max_num_seqs": "four"}, "--max_num_seqs must be a whole number, not 'four'"),
        ({"max_num_seqs": 0}, "--max_num_seqs must be at least 1"),
        ({"web_page": 2}, "--web_page must be true or false"),
    ],
)
def test_wrong_options_are_named(keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(StartError, match=message):
        of_keywords(**keywords)
