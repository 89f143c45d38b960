"""Every option: flag, variable and options file set the same thing, and some test shows what that does."""

from __future__ import annotations

import json
from dataclasses import MISSING, Field, fields, replace
from pathlib import Path
from typing import Any

import pytest

from lean_ovms.cli import parse
from lean_ovms.config import Config

TESTS = Path(__file__).parents[1]
OPTIONS = [row for row in fields(Config) if not row.metadata["secret"]]

COMPANIONS: dict[str, dict[str, Any]] = {
    "ssl_certfile": {"ssl_keyfile": "k"},
    "ssl_keyfile": {"ssl_certfile": "c"},
    "metrics_list": {"metrics_enable": True},
    **{
        f"draft_{name}": {"draft_model_path": "d"}
        for name in ("device", "cache_size", "max_num_batched_tokens", "max_num_seqs", "eagle3_mode")
    },
}
"""Options that do not go without others."""
VALUES: dict[str, Any] = {"task": "text_generation"}
"""Values where not any will do."""

EFFECT = {
    "config_path": "deployment/test_wanted.py",
    "file_system_poll_wait_seconds": "e2e/test_deployments.py",
    "task": "deployment/test_wanted.py",
    "options_file": "test_cli.py",
    "source_model": "hub/test_commands.py",
    "model_repository_path": "hub/test_commands.py",
    "pull": "hub/test_commands.py",
    "overwrite_models": "api/test_option_effects.py",
    "gguf_filename": "hub/test_commands.py",
    "draft_source_model": "hub/test_commands.py",
    "weight_format": "api/test_option_effects.py",
    "extra_quantization_params": "api/test_option_effects.py",
    "list_models": "hub/test_commands.py",
    "configure": "hub/test_commands.py",
    "add_to_config": "hub/test_commands.py",
    "remove_from_config": "hub/test_commands.py",
    "model_path": "test_start.py",
    "model_name": "deployment/test_wanted.py",
    "chat_template": "text/test_template.py",
    "chat_template_content_format": "api/test_option_effects.py",
    "tool_parser": "api/test_option_effects.py",
    "reasoning_parser": "api/test_option_effects.py",
    "enable_tool_guided_generation": "api/test_structured.py",
    "max_tokens_limit": "api/test_responses.py",
    "best_of_limit": "api/test_option_effects.py",
    "generation_config_path": "api/test_option_effects.py",
    "max_model_len": "engine/test_plan.py",
    "pipeline_type": "engine/test_choice.py",
    "target_device": "engine/test_plan.py",
    "plugin_config": "engine/test_plan.py",
    "cache_size": "engine/test_plan.py",
    "cache_memory_percent": "api/test_option_effects.py",
    "kv_cache_precision": "engine/test_plan.py",
    "max_num_batched_tokens": "engine/test_plan.py",
    "max_num_seqs": "engine/test_plan.py",
    "dynamic_split_fuse": "engine/test_plan.py",
    "enable_prefix_caching": "engine/test_plan.py",
    "cache_eviction_config": "engine/test_scheduler.py",
    "sparse_attention_config": "engine/test_scheduler.py",
    "cache_interval_multiplier": "engine/test_scheduler.py",
    "max_prompt_len": "engine/test_devices.py",
    "model_distribution_policy": "api/test_option_effects.py",
    "cache_dir": "engine/test_scheduler.py",
    "draft_model_path": "engine/test_plan.py",
    "draft_device": "engine/test_scheduler.py",
    "draft_cache_size": "engine/test_scheduler.py",
    "draft_max_num_batched_tokens": "engine/test_scheduler.py",
    "draft_max_num_seqs": "engine/test_scheduler.py",
    "draft_eagle3_mode": "engine/test_scheduler.py",
    "prompt_lookup": "engine/test_plan.py",
    "engine_watchdog_s": "engine/test_client.py",
    "engine_load_timeout_s": "api/test_option_effects.py",
    "fake_engine": "test_start.py",
    "rest_port": "test_start.py",
    "rest_bind_address": "wire/test_server.py",
    "unix_socket": "wire/test_server.py",
    "ssl_certfile": "wire/test_server.py",
    "ssl_keyfile": "wire/test_server.py",
    "api_key_file": "e2e/test_hard_times.py",
    "protect_models": "api/test_app.py",
    "allowed_origins": "api/test_app.py",
    "allowed_methods": "api/test_option_effects.py",
    "allowed_headers": "api/test_option_effects.py",
    "allow_credentials": "api/test_app.py",
    "max_header_bytes": "wire/test_session.py",
    "max_body_bytes": "wire/test_session.py",
    "max_body_values": "api/test_option_effects.py",
    "max_connections": "wire/test_server.py",
    "max_queued_requests": "e2e/test_hard_times.py",
    "header_timeout_s": "wire/test_server.py",
    "body_timeout_s": "wire/test_connection.py",
    "keep_alive_timeout_s": "wire/test_connection.py",
    "stream_stall_timeout_s": "wire/test_server.py",
    "request_timeout_s": "api/test_chat.py",
    "drain_timeout_s": "api/test_option_effects.py",
    "template_timeout_s": "api/test_option_effects.py",
    "max_prompts": "api/test_option_effects.py",
    "grammar_timeout_s": "e2e/test_structured_engine.py",
    "grammar_memory_mb": "api/test_option_effects.py",
    "grammar_cache_mb": "api/test_option_effects.py",
    "grammar_max_bytes": "api/test_structured.py",
    "grammar_max_nesting": "api/test_option_effects.py",
    "response_store": "api/test_responses_store.py",
    "response_store_max_age_s": "api/test_responses_store.py",
    "response_store_max_count": "api/test_responses_store.py",
    "response_store_max_mb": "api/test_responses_store.py",
    "strict_response_format": "api/test_structured.py",
    "sse_ping_s": "api/test_chat.py",
    "access_log": "api/test_app.py",
    "log_path": "test_start.py",
    "log_format": "api/test_option_effects.py",
    "log_prompts": "api/test_access_line.py",
    "metrics_enable": "api/test_metrics.py",
    "metrics_list": "api/test_metrics.py",
    "log_level": "api/test_option_effects.py",
}
"""The file whose tests show what an option does. A new option needs its row here, and such a test."""


def another(row: Field[Any]) -> Any:
    """A value that is not the default and within bounds."""
    if row.name in VALUES:
        return VALUES[row.name]
    assert row.default is not MISSING
    default, low, high, choices = row.default, row.metadata["low"], row.metadata["high"], row.metadata["choices"]
    if choices:
        return next(choice for choice in choices if choice not in ("", default))
    if isinstance(default, bool):
        return not default
    if isinstance(default, (int, float)):
        return default + 1 if high is None or default + 1 <= high else max(low or 0, default - 1)
    return "some text"


@pytest.mark.parametrize("row", [r for r in OPTIONS if r.name != "options_file"], ids=lambda row: row.name)
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
    assert parse(["--options_file", str(path)], {}) == replace(expected, options_file=str(path))


@pytest.mark.parametrize("row", OPTIONS, ids=lambda row: row.name)
def test_the_effect_of_the_option_is_tested(row: Field[Any]) -> None:
    assert row.name in EFFECT, f"--{row.name}: which test shows what it does?"
    text = (TESTS / EFFECT[row.name]).read_text("utf-8")
    assert any(spelled in text for spelled in (f"{row.name}=", f'"--{row.name}"', f'"{row.name}"', f"--{row.name} "))


def test_the_table_holds_no_option_of_the_past() -> None:
    assert EFFECT.keys() == {row.name for row in OPTIONS}
