"""The numbers with which a pipeline is built, from options and config.json."""

import json
import os
from itertools import product
from pathlib import Path

import openvino as ov
import pytest

from lean_ovms.config import Config
from lean_ovms.engine.loading import quiet_imports, settings
from lean_ovms.engine.loading.settings import BOTH, GROUPS, HINT, KEYS, VALUES, cache_properties
from lean_ovms.engine.paged.ir_weights import open_weights
from lean_ovms.engine.paged.model import PagedModel
from lean_ovms.errors import StartError
from lean_ovms.repository import model_config

GB = 1 << 30
F32 = {"INFERENCE_PRECISION_HINT": "f32"}
CPU = {"ENABLE_CPU_PINNING": False, settings.SHAPES: quiet_imports.PREPARED}
QWEN = {
    "vocab_size": 2048,
    "max_position_embeddings": 8192,
    "num_hidden_layers": 5,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "hidden_size": 160,
}


@pytest.fixture
def model(tmp_path):
    """Writes config.json, and returns the options of that model."""

    def write(config, **options):
        (tmp_path / "config.json").write_text(json.dumps(config))
        return Config(model_path=str(tmp_path), **options)

    return write


# --- geometry


@pytest.mark.parametrize(
    ("precision", "size"), [("u8", 800), ("u4", 480), ("f16", 1280), ("bf16", 1280), ("f32", 2560)]
)
def test_bytes_per_token_are_those_of_the_tensors(precision, size):
    """The tensors are those that the CPU plugin's PagedAttention takes for a model of this shape."""
    assert model_config.kv_bytes_per_token(QWEN, precision, precision) == size


def test_keys_and_values_may_have_precisions_of_their_own():
    assert model_config.kv_bytes_per_token(QWEN, "u8", "u4") == model_config.kv_bytes_per_token(QWEN, "u4", "u8") == 640
    properties = {"KV_CACHE_PRECISION": "u8", "VALUE_CACHE_PRECISION": "u4"}
    assert settings.kv_precisions(Config(), properties) == ("u8", "u4")


def test_older_names_and_left_out_heads_are_understood():
    gpt = {"n_layer": 2, "n_head": 4, "n_embd": 64, "n_positions": 512}
    assert model_config.kv_bytes_per_token(gpt, "f32", "f32") == 2 * 4 * 16 * 8
    assert model_config.context_length(gpt) == 512


@pytest.mark.parametrize("kind", model_config.KEYLESS_LAYERS)
def test_layers_without_attention_have_no_keys_and_values(kind):
    layers = QWEN["num_hidden_layers"]
    kinds = ["full_attention", *[kind] * (layers - 1)]
    assert model_config.kv_bytes_per_token({**QWEN, "layer_types": kinds}, "u8", "u8") == 800 // layers
    kinds = ["sliding_attention"] * layers
    assert model_config.kv_bytes_per_token({**QWEN, "layer_types": kinds}, "u8", "u8") == 800


def test_a_model_that_says_nothing_has_no_geometry(tmp_path):
    assert model_config.read(tmp_path) == {}
    assert (
        model_config.kv_bytes_per_token({}, "u8", "u8")
        == model_config.context_length({})
        == model_config.vocab_size({})
        == 0
    )


def test_nested_text_configs_are_found(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"vision": 1, "hidden_size": 1, "text_config": QWEN}))
    assert model_config.context_length(model_config.read(tmp_path)) == 8192
    assert model_config.kv_bytes_per_token(model_config.read(tmp_path), "u8", "u8") == 800


@pytest.mark.parametrize("value", [0, -1, True, "8192", None, 1.5])
def test_a_context_that_is_no_count_is_passed_over(value):
    assert model_config.context_length({"max_position_embeddings": value, "seq_length": 77}) == 77


# --- plan

PINNED = '{"ENABLE_CPU_PINNING": true}'
WHOLE = {"split_prompts": False, "step_tokens": 8192}
"""A longer prompt than a step would fail in every step."""
LOOKUP = {"speculative": "prompt_lookup", "split_prompts": True, "properties": CPU}


@pytest.mark.parametrize(
    ("config", "options", "free", "expected"),
    [
        (QWEN, {}, 800 * 32 * 1000, {"blocks": 250}),  # a quarter of the free memory
        (QWEN, {"max_num_seqs": 4}, 100 * GB, {"blocks": 4 * 257 + settings.SPARE_BLOCKS}),
        (QWEN, {}, 0, {"blocks": settings.SPARE_BLOCKS}),
        (QWEN, {"cache_size": 3}, 9 * GB, {"blocks": 0, "cache_gb": 3}),
        ({}, {}, 9 * GB, {"blocks": 0, "cache_gb": 2, "context": settings.UNKNOWN_CONTEXT}),
        ({}, {"max_model_len": 10**5}, GB, {"cache_gb": 1, "context": 10**5}),
        (QWEN, {}, GB, {"context": 8192, "prefix_caching": True, "properties": CPU}),
        (QWEN, {"max_model_len": 100}, GB, {"context": 100}),
        (QWEN, {"max_model_len": 10**6}, GB, {"context": 8192}),
        (QWEN, {"enable_prefix_caching": False}, GB, {"prefix_caching": False}),
        (QWEN, {"max_num_batched_tokens": 99}, GB, {"split_prompts": True, "step_tokens": 99}),
        (QWEN, {"dynamic_split_fuse": False}, GB, WHOLE),
        # If a prompt is divided or partly cached next to other requests, GenAI gives other answers.
        (QWEN, {"draft_model_path": "x"}, GB, {**WHOLE, "speculative": "draft", "prefix_caching": False}),
        (QWEN, {"prompt_lookup": True}, GB, LOOKUP),
        (QWEN, {"plugin_config": '{"prompt_lookup": true}'}, GB, LOOKUP),
        (QWEN, {"target_device": "GPU"}, GB, {"properties": {}}),
        (QWEN, {"plugin_config": PINNED}, GB, {"properties": {**CPU, "ENABLE_CPU_PINNING": True}}),
        (QWEN, {"plugin_config": f'{{"{settings.SHAPES}": 9}}'}, GB, {"properties": {**CPU, settings.SHAPES: 9}}),
        (QWEN, {"kv_cache_precision": "u8"}, GB, {"properties": {**CPU, "KV_CACHE_PRECISION": "u8"}}),
        (QWEN, {"kv_cache_precision": "f32"}, GB, {"properties": {**CPU, "KV_CACHE_PRECISION": "f32", **F32}}),
    ],
)
def test_the_plan_of_a_model(model, config, options, free, expected):
    made = settings.resolve(model(config, **options), free)
    assert {name: getattr(made, name) for name in expected} == expected


def test_openvino_keeps_operations_for_few_shapes(model):
    settings.resolve(model(QWEN), GB)
    assert os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] == str(quiet_imports.PREPARED)


def test_the_draft_models_cache_counts(model, tmp_path):
    alone = settings.resolve(model(QWEN), GB // 64)
    both = settings.resolve(model(QWEN, draft_model_path=str(tmp_path)), GB // 64)
    assert both.blocks == alone.blocks // 2


def test_a_context_that_is_assumed_is_said(model, caplog):
    for options in ({}, {"max_model_len": 100}):
        settings.resolve(model(QWEN, **options), GB)
    settings.resolve(model({}, max_model_len=100), GB)
    assert caplog.text == ""
    config = model({})
    settings.resolve(config, GB)
    said = "is unknown (config.json); 4096 tokens are assumed, which --max_model_len can change"
    assert [record.message for record in caplog.records] == [f"the context length of {config.model_dir} {said}"]


def test_prompt_lookup_and_a_draft_model_exclude_each_other(model):
    with pytest.raises(StartError, match="cannot be used together"):
        settings.resolve(model(QWEN, plugin_config='{"prompt_lookup": true}', draft_model_path="x"), GB)


def test_one_thread_computes_a_small_network_unless_asked(model, tmp_path):
    weights = tmp_path / "openvino_model.bin"
    weights.write_bytes(bytes(100))
    one, small = {"INFERENCE_NUM_THREADS": 1}, CPU
    assert settings.resolve(model(QWEN), GB).properties == {**small, **one}
    assert settings.resolve(model(QWEN, target_device="GPU"), GB).properties == {}
    asked = model(QWEN, plugin_config='{"INFERENCE_NUM_THREADS": 2}')
    assert settings.resolve(asked, GB).properties == {**small, "INFERENCE_NUM_THREADS": 2}
    with weights.open("wb") as file:
        file.truncate(settings.SMALL_NETWORK)
    assert settings.resolve(model(QWEN), GB).properties == small


def test_an_answer_that_does_not_depend_on_the_batch_is_computed_in_f32_and_not_quantized(model):
    wanted = {"ENABLE_CPU_PINNING": False, "INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
    found = settings.resolve(model(QWEN, batch_invariant=True), GB)
    assert found.properties == {**CPU, **wanted, "KV_CACHE_PRECISION": "f32"}
    assert settings.device_properties(model(QWEN, batch_invariant=True)) == {**wanted, "NUM_STREAMS": 1}
    small = model(QWEN, batch_invariant=True, value_cache_precision="u4", plugin_config='{"A": "B"}')
    cache = {"KEY_CACHE_PRECISION": "u8", "VALUE_CACHE_PRECISION": "u4"}
    assert settings.resolve(small, GB).properties == {**CPU, **wanted, **cache, "A": "B"}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"plugin_config": '{"INFERENCE_PRECISION_HINT": "bf16"}'},
            "--batch_invariant and --plugin_config set INFERENCE_PRECISION_HINT",
        ),
        (
            {"plugin_config": '{"DYNAMIC_QUANTIZATION_GROUP_SIZE": 32}'},
            "--batch_invariant and --plugin_config set DYNAMIC_QUANTIZATION_GROUP_SIZE",
        ),
        ({"kv_cache_precision": "bf16"}, "computes in f32, which does not support --kv_cache_precision bf16"),
    ],
)
def test_an_answer_that_does_not_depend_on_the_batch_excludes_other_precisions(model, options, says):
    with pytest.raises(StartError, match=says):
        settings.resolve(model(QWEN, batch_invariant=True, **options), GB)


@pytest.mark.parametrize("text", ["{", "[]", "1", "null"])
def test_a_plugin_config_that_is_no_object_stops_the_start(model, text):
    with pytest.raises(StartError, match="--plugin_config"):
        settings.resolve(model(QWEN, plugin_config=text), GB)


# --- memory


LLAMA = Path(__file__).parents[2] / "data" / "llama_sp"
KINDS = ("", *sum(GROUPS, ()))


def asked(*values):
    return {name: value for name, value in zip((BOTH, KEYS, VALUES, HINT), values, strict=True) if value}


@pytest.mark.parametrize(
    ("kinds", "found"),
    [
        (("", "", ""), {}),
        (("u8", "", ""), {}),
        (("", "u4", ""), {KEYS: "u4", VALUES: "u8"}),
        (("", "", "u4"), {KEYS: "u8", VALUES: "u4"}),
        (("", "f16", ""), {KEYS: "f16", VALUES: "f16"}),
        (("", "", "bf16"), {KEYS: "bf16", VALUES: "bf16"}),
        (("", "", "F32"), {KEYS: "f32", VALUES: "f32", HINT: "f32"}),
        (("f16", "bf16", ""), {}),
        (("u4", "u8", "u8"), {}),
        (("f32", "", ""), {HINT: "f32"}),
        (("u8", "f16", "f16"), {}),
    ],
)
def test_what_is_not_named_goes_with_what_is(kinds, found):
    assert cache_properties(asked(*kinds, "")) == found


@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        (
            ("", "f16", "u8", ""),
            "--key_cache_precision f16, --value_cache_precision u8: .* supported combinations are u8 or u4",
        ),
        (("u8", "f16", "", ""), "--kv_cache_precision u8, --key_cache_precision f16"),
        (("", "f32", "f16", ""), "keys in f32 and values in f16"),
        (
            ("f32", "", "", "bf16"),
            "--kv_cache_precision f32 is not supported if INFERENCE_PRECISION_HINT of --plugin_config is bf16",
        ),
        (("", "bf16", "", "f32"), "--key_cache_precision bf16 is not .* is f32"),
        (("", "u3", "", ""), "--key_cache_precision must be one of: u8, u4, f16, bf16, f32, not u3"),
    ],
)
def test_a_cache_that_there_is_not_names_its_options(kinds, message):
    with pytest.raises(StartError, match=message):
        cache_properties(asked(*kinds))


@pytest.mark.model
def test_every_cache_that_is_not_refused_loads():
    capable = "BF16" in ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    tried, refused = set(), 0
    for kinds in product(KINDS, KINDS, KINDS, ("", "f32", "bf16")):
        properties = asked(*kinds)
        try:
            properties |= cache_properties(properties)
        except StartError:
            refused += 1
            continue
        pair = (properties.get(KEYS) or properties.get(BOTH), properties.get(VALUES) or properties.get(BOTH))
        case = (*pair, properties.get(HINT))
        if case in tried or ("bf16" in case and not capable):
            continue
        tried.add(case)
        PagedModel(open_weights(LLAMA / "openvino_model.xml"), "CPU", properties).allocate(2, 0)
    assert refused > 0 < len(tried)
