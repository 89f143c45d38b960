"""A written graph is read back as the options that it was made of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lean_ovms.config import Config
from lean_ovms.errors import StartError
from lean_ovms.features.ovms_files import graph, graph_writer
from lean_ovms.features.ovms_files.pbtxt import node_options

EVICTION = {"start_size": 32, "recent_size": 128, "max_cache_size": 672, "aggregation_mode": "SUM",
            "apply_rotation": True, "kv_crush_config": {"budget": 8, "anchor_point_mode": "MEAN"}}  # fmt: skip
SPARSE = {"mode": "XATTENTION", "xattention_threshold": 0.5, "num_last_dense_tokens_in_prefill": 10}


def written(models_path: str = "./", draft: str = "", **options: Any) -> str:
    return graph_writer.text(Config(**options), models_path, {"draft_model_path": draft}, "1.0")


def test_what_ovms_always_writes_is_there() -> None:
    options = node_options(written())[1]
    assert options == {"models_path": "./", "device": "CPU", "max_num_seqs": 256, "cache_size": 0,
                       "enable_prefix_caching": True}  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [
        {"max_num_seqs": 4, "cache_size": 7, "enable_prefix_caching": False, "dynamic_split_fuse": False},
        {"target_device": "HETERO:GPU.0,CPU", "max_num_batched_tokens": 1024, "pipeline_type": "LM_CB"},
        {"tool_parser": "hermes3", "reasoning_parser": "none", "enable_tool_guided_generation": True},
        {"best_of_limit": 3, "max_tokens_limit": 100, "cache_interval_multiplier": 2},
        {"cache_eviction_config": json.dumps(EVICTION)},
        {"sparse_attention_config": json.dumps(SPARSE)},
        {"plugin_config": json.dumps({"NUM_STREAMS": "1", "it's": 'a "quote"\n\\', "n": {"x": 1}, "ü": "日"})},
    ],
)
def test_options_come_back_as_they_were(options: dict[str, Any], tmp_path: Path) -> None:
    config = Config(model_path="./", **options)
    text = written(**options)
    read = graph.applied(Config(model_path="x"), text, tmp_path / "graph.pbtxt", Path())
    for name, value in options.items():
        got = read.value(name)
        assert (json.loads(got) if name.endswith("_config") else got) == (
            json.loads(value) if name.endswith("_config") else value
        )
    assert read.model_path == "."
    rest = graph_writer.written_options(Config())
    assert config.replace(**rest) == Config(model_path="./")


@pytest.mark.parametrize(
    ("task", "options"),
    [
        ("embeddings", {}),
        ("embeddings", {"pooling": "MEAN", "normalize": "false", "truncate": True, "target_device": "GPU"}),
        ("embeddings", {"normalize": "true"}),
        ("embeddings", {"max_model_len": 77}),
        ("rerank", {"max_allowed_chunks": 7, "max_position_embeddings": 512}),
        ("image_generation", {"max_resolution": "512x512", "default_num_inference_steps": 9, "target_device": "GPU"}),
        ("speech2text", {}),
        ("speech2text", {"enable_word_timestamps": True, "target_device": "GPU"}),
    ],
)
def test_a_graph_for_another_task_comes_back_too(task: str, options: dict[str, Any]) -> None:
    text = written(task=task, **options)
    read = graph.applied(Config(model_path="x"), text, Path("graph.pbtxt"), Path())
    assert read == Config(task=task, model_path=".", **options)
    rest = graph_writer.written_options(Config(task=task))
    assert Config(model_path="./", task=task, **options).replace(**rest) == Config(model_path="./", task=task)


def test_a_graph_of_a_model_that_speaks_comes_back() -> None:
    voices = json.dumps({"ada": "voices/ada.bin", 'b "x"': "b.bin"})
    options: dict[str, Any] = {"voices": voices, "speed_min": 0.5, "speed_max": 2.0, "target_device": "GPU"}
    text = written(task="text2speech", **options)
    assert 'calculator: "T2sCalculator"' in text
    assert 'input_side_packet: "TTS_NODE_RESOURCES:t2s_servable"' in text
    read = graph.applied(Config(model_path="x"), text, Path("graph.pbtxt"), Path("/m"))
    assert json.loads(read.value("voices")) == {"ada": "/m/voices/ada.bin", 'b "x"': "/m/b.bin"}
    assert read.replace(voices=voices) == Config(task="text2speech", model_path="/m", **options)
    rest = graph_writer.written_options(Config(task="text2speech"))
    assert Config(model_path="./", task="text2speech", **options).replace(**rest) == Config(
        model_path="./", task="text2speech"
    )


def test_speeds_of_a_graph_that_cannot_be_are_refused() -> None:
    text = written(task="text2speech", speed_min=3.0)
    with pytest.raises(StartError, match="--speed_min must not be above --speed_max"):
        graph.applied(Config(model_path="x"), text + "", Path("g"), Path("/m")) and graph.applied(
            Config(model_path="x"), text.replace("speed_min: 3.0", "speed_min: 5"), Path("g"), Path("/m")
        )
    with pytest.raises(StartError, match="must be a finite number"):
        graph.applied(Config(model_path="x"), text.replace("speed_min: 3.0", "speed_min: nan"), Path("g"), Path("/m"))


def test_streams_are_written_as_a_property() -> None:
    assert node_options(written(task="rerank", num_streams=4))[1]["plugin_config"] == '{"NUM_STREAMS": 4}'


def test_ovms_knows_three_ways_of_pooling() -> None:
    with pytest.raises(StartError, match="Only CLS, LAST and MEAN"):
        written(task="embeddings", pooling="MAX")
    with pytest.raises(StartError, match="OVMS does not support this task"):
        written(task="classify")


def test_properties_of_the_plugin_are_gathered() -> None:
    text = written(
        plugin_config='{"NUM_STREAMS": "2"}', kv_cache_precision="u8", max_prompt_len=4096, cache_dir="/var/cache",
        model_distribution_policy="TENSOR_PARALLEL",
    )  # fmt: skip
    assert json.loads(node_options(text)[1]["plugin_config"]) == {
        "NUM_STREAMS": "2",
        "KV_CACHE_PRECISION": "u8",
        "MAX_PROMPT_LEN": 4096,
        "CACHE_DIR": "/var/cache",
        "MODEL_DISTRIBUTION_POLICY": "TENSOR_PARALLEL",
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"plugin_config": "{"}, "--plugin_config is not valid JSON"),
        ({"plugin_config": "[]"}, "--plugin_config is not a JSON object"),
        ({"pipeline_type": "PAGED"}, "PAGED cannot be written"),
        ({"plugin_config": '{"KV_CACHE_PRECISION": "u8"}', "kv_cache_precision": "f16"}, "cannot be used together"),
    ],
)
def test_properties_that_cannot_be_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(StartError, match=message):
        written(**options)


def test_a_draft_and_a_gguf_file_are_named() -> None:
    options = node_options(written("./Q4/a.gguf", "org-draft", draft_model_path="/elsewhere", draft_device="GPU"))[1]
    assert (options["models_path"], options["draft_models_path"]) == ("./Q4/a.gguf", "org-draft")
    assert options["draft_device"] == "GPU"


def test_the_frame_is_what_ovms_requires_around_it() -> None:
    text = written()
    for line in ('calculator: "HttpLLMCalculator"', "LLM_NODE_RESOURCES:llm", "LLM_NODE_EXECUTION_CONTEXTS:llm_ctx",
                 "SyncSetInputStreamHandler", "back_edge: true"):  # fmt: skip
        assert line in text
    assert "OVMS_GRAPH_QUEUE_MAX_SIZE: AUTO" in text
