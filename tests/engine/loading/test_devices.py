"""Which device, which pipeline: decided from names and files."""

import json

import pytest

from lean_ovms.config import Config
from lean_ovms.engine.loading import devices, settings
from lean_ovms.errors import StartError

MODEL = {"vocab_size": 100, "max_position_embeddings": 8192, "num_hidden_layers": 2, "num_attention_heads": 2}


@pytest.mark.parametrize(
    ("available", "chosen"),
    [
        (["CPU"], "CPU"),
        (["CPU", "NPU"], "CPU"),
        (["CPU", "GPU"], "GPU"),
        (["CPU", "GPU.0", "GPU.1", "GPU.2"], "GPU.2"),
    ],
)
def test_auto_is_the_gpu_with_the_most_memory_of_its_own_or_else_the_cpu(available, chosen):
    memory = {"GPU": 0, "GPU.0": 0, "GPU.1": 8 << 30, "GPU.2": 16 << 30}
    assert devices.choose("auto", available, memory.__getitem__) == chosen


@pytest.mark.parametrize("name", ["CPU", "NPU", "AUTO", "AUTO:GPU,CPU", "HETERO:GPU.0,GPU.1"])
def test_other_devices_are_taken_as_they_are(name):
    assert devices.choose(name, ["CPU", "GPU"], lambda _: 0) == name


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("CPU", ["CPU"]),
        ("AUTO", ["CPU", "GPU"]),
        ("AUTO:GPU,CPU", ["GPU", "CPU"]),
        ("HETERO:GPU.0,GPU.1", ["GPU.0", "GPU.1"]),
        ("BATCH:CPU(16)", ["CPU"]),
    ],
)
def test_a_name_may_stand_for_several_devices(name, expected):
    assert devices.members(name, ["CPU", "GPU"]) == expected


@pytest.mark.parametrize(
    ("asked", "missing"),
    [
        ("CPU", ""),
        ("GPU", "GPU"),
        ("HETERO:CPU,NPU", "NPU"),
        ("AUTO", ""),
        ("", ""),
        ("cpu", "cpu"),
        ("GPU.1", "GPU.1"),
    ],
)
def test_a_device_that_is_not_there_is_named(asked, missing):
    assert devices.missing([asked], ["CPU"]) == missing


def test_the_first_of_several_gpus_is_just_gpu_too():
    assert devices.missing(["GPU", "GPU.1"], ["CPU", "GPU.0", "GPU.1"]) == ""


@pytest.mark.parametrize(
    ("name", "size"),
    [("CPU", 32), ("HETERO:CPU", 32), ("AUTO:CPU", 32), ("GPU", 16), ("AUTO:GPU,CPU", 16)],
)
def test_blocks_are_large_only_where_nothing_but_a_cpu_computes(name, size):
    """Smaller than they are is safe, larger is not."""
    assert devices.block_size(devices.members(name, ["CPU"])) == size


# --- the plan of a stateful pipeline


@pytest.fixture
def model(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(MODEL))
    return lambda **options: Config(model_path=str(tmp_path), **options)


def test_a_stateful_plan_lets_one_text_run_as_far_as_its_context(model):
    made = settings.resolve_stateful(model(max_model_len=1000))
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
    made = settings.resolve_stateful(model(target_device="NPU", **options), ("CPU", "NPU"))
    assert (made.max_prompt_tokens, made.context) == (prompt, context)


def test_the_longest_prompt_reaches_only_an_npu(model):
    npu = settings.resolve_stateful(model(target_device="NPU", max_prompt_len=7), ("NPU",))
    assert npu.properties == {"MAX_PROMPT_LEN": 7}
    cpu = settings.resolve_stateful(model(max_prompt_len=7))
    assert (cpu.max_prompt_tokens, "MAX_PROMPT_LEN" in cpu.properties) == (settings.NO_LIMIT, False)


@pytest.mark.parametrize("options", [{"prompt_lookup": True}, {"draft_model_path": "x"}])
def test_a_stateful_pipeline_has_no_assistant(model, options):
    with pytest.raises(StartError, match="LM_CB"):
        settings.resolve_stateful(model(**options))


def test_a_length_for_the_npu_that_is_none_stops_the_start(model):
    with pytest.raises(StartError, match="MAX_PROMPT_LEN"):
        settings.resolve_stateful(model(target_device="NPU", plugin_config='{"MAX_PROMPT_LEN": "long"}'), ("NPU",))
