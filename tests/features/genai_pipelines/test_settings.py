"""The settings of a pipeline that computes one text at a time."""

import json

import pytest

from lean_ovms.config import Config
from lean_ovms.engine.loading.settings import NO_LIMIT
from lean_ovms.errors import StartError
from lean_ovms.features.genai_pipelines.child.settings import resolve_stateful

MODEL = {"vocab_size": 100, "max_position_embeddings": 8192, "num_hidden_layers": 2, "num_attention_heads": 2}


@pytest.fixture
def model(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(MODEL))
    return lambda **options: Config(model_path=str(tmp_path), **options)


def test_a_stateful_plan_lets_one_text_run_as_far_as_its_context(model):
    made = resolve_stateful(model(max_model_len=1000))
    assert made.context == 1000
    assert made.blocks * made.block_size > 1000
    assert (made.step_tokens, made.prefix_caching) == (1, False)


@pytest.mark.parametrize(
    ("options", "prompt", "context"),
    [
        ({}, 1024, 1152),
        ({"max_prompt_len": 2000}, 2000, 2128),
        ({"plugin_config": '{"MAX_PROMPT_LEN": "512", "MIN_RESPONSE_LEN": 64}'}, 512, 576),
        ({"plugin_config": '{"DEVICE_PROPERTIES": {"NPU": {"MAX_PROMPT_LEN": 256}}}', "max_prompt_len": 99}, 256, 384),
        ({"max_prompt_len": 20000}, 20000, 8192),
    ],
)
def test_an_npu_takes_no_more_than_it_is_compiled_for(model, options, prompt, context):
    made = resolve_stateful(model(target_device="NPU", **options), ("CPU", "NPU"))
    assert (made.max_prompt_tokens, made.context) == (prompt, context)


def test_the_longest_prompt_reaches_only_an_npu(model):
    npu = resolve_stateful(model(target_device="NPU", max_prompt_len=7), ("NPU",))
    assert npu.properties == {"MAX_PROMPT_LEN": 7}
    cpu = resolve_stateful(model(max_prompt_len=7))
    assert (cpu.max_prompt_tokens, "MAX_PROMPT_LEN" in cpu.properties) == (NO_LIMIT, False)


@pytest.mark.parametrize("options", [{"prompt_lookup": True}, {"draft_model_path": "x"}])
def test_a_stateful_pipeline_has_no_assistant(model, options):
    with pytest.raises(StartError, match="LM_CB"):
        resolve_stateful(model(**options))


def test_a_length_for_the_npu_that_is_none_stops_the_start(model):
    with pytest.raises(StartError, match="MAX_PROMPT_LEN"):
        resolve_stateful(model(target_device="NPU", plugin_config='{"MAX_PROMPT_LEN": "long"}'), ("NPU",))
