"""graph.pbtxt: the LLM node's options are parsed strictly, everything else may be anything."""

from __future__ import annotations

import pytest

from lean_ovms.errors import StartError
from lean_ovms.features.ovms_files.pbtxt import node_options
from tests.features.ovms_files.graphs import EVERY_OPTION, graph


def test_every_option_of_the_node_is_read() -> None:
    assert node_options(graph(EVERY_OPTION))[1] == {
        "models_path": "./model",
        "max_num_batched_tokens": 512,
        "cache_size": 2,
        "max_num_seqs": 64,
        "dynamic_split_fuse": False,
        "device": "HETERO:GPU,CPU",
        "plugin_config": '{"PERFORMANCE_HINT": "LATENCY", "prompt_lookup": false, '
        '"DEVICE_PROPERTIES": {"NPU": {"MAX_PROMPT_LEN": 2048}}}',
        "best_of_limit": 10,
        "max_tokens_limit": 4000,
        "enable_prefix_caching": True,
        "draft_models_path": "draft",
        "draft_device": "CPU",
        "draft_max_num_batched_tokens": 128,
        "draft_cache_size": 1,
        "draft_block_size": 32,
        "draft_max_num_seqs": 16,
        "draft_dynamic_split_fuse": True,
        "draft_eagle3_mode": False,
        "pipeline_type": "LM_CB",
        "cache_eviction_config": {
            "aggregation_mode": "SUM",
            "start_size": 32,
            "recent_size": 128,
            "max_cache_size": 672,
            "apply_rotation": True,
            "snapkv_window_size": 16,
            "kv_crush_config": {"budget": 8, "anchor_point_mode": "ALTERNATING", "rng_seed": 3},
        },
        "tool_parser": "hermes3",
        "reasoning_parser": "qwen3",
        "enable_tool_guided_generation": True,
        "sparse_attention_config": {
            "mode": "XATTENTION", "num_last_dense_tokens_in_prefill": 100,
            "num_retained_start_tokens_in_cache": 128, "num_retained_recent_tokens_in_cache": 1920,
            "xattention_threshold": 0.5, "xattention_block_size": 64, "xattention_stride": 8,
        },
        "cache_interval_multiplier": 4,
        "chat_template_mode": "JINJA",
        "generation_config_path": "other.json",
    }  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        graph().replace("googleapis.com / mediapipe", "googleapis.com/mediapipe"),
        graph().replace("node: {", "node {").replace("node_options: {", "node_options {"),
        graph('models_path: "./";'),
        graph("models_path: './'"),
        graph()
        .replace("Options]: {", "Options] <")
        .replace('models_path: "./"\n      }', 'models_path: "./"\n      >'),
        graph(head="# OVMS_GRAPH_QUEUE_MAX_SIZE: AUTO\n# { [ an unbalanced comment\n"),
        graph(head='max_queue_size: 3 executor { name: "" type: "ThreadPool" options { [a.b.ext] { x: [1, 2] } } }\n'),
        graph(head='node { calculator: "Own" node_options: { [type.googleapis.com / own.Options]: { x: 1 } } }\n'),
        'node { calculator: "HttpLLMCalculator" options { [mediapipe.LLMCalculatorOptions.ext] { models_path: "./" }}}',
    ],
)
def test_every_way_to_write_a_graph_is_understood(text: str) -> None:
    assert node_options(text)[1] == {"models_path": "./"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (graph('models_path: "./" max_num_seq: 3'), r"no option 'max_num_seq'; did you mean max_num_seqs\?"),
        (graph('models_path: "./" utterly_new: 3'), "no option 'utterly_new'$"),
        (graph('models_path: "./" cache_eviction_config { begin: 3 }'), "no option 'begin'"),
        (graph('models_path: "./" cache_eviction_config { start_size: 3 }'), "cache_eviction_config.recent_size"),
        (graph("cache_size: 1"), "does not set models_path"),
        (graph('models_path: "./" pipeline_type: FAST'), "FAST"),
        (graph('models_path: "./" cache_size: -1'), "Couldn't parse integer: -1|-1"),
        (graph('models_path: "./" cache_size: "x"'), "its LLM node"),
        (graph("models_path: unquoted"), "its LLM node"),
        (graph() + "}", "line 3[0-9]: "),
        ("", "no LLM node .*; its calculators: none"),
        ('node { calculator: "ImageGenCalculator" }', "no node_options .*ImageGenCalculatorOptions$"),
        ('node { calculator: "S2tCalculator" }', "no node_options .*S2tCalculatorOptions$"),
        ('node { calculator: "EmbeddingsCalculatorOV" }', "no node_options .*EmbeddingsCalculatorOVOptions$"),
        ('node { calculator: "RerankCalculator" }', "RerankCalculator belongs to an older OVMS"),
        ('node { calculator: "Own" }', "its calculators: Own"),
        ('node { calculator: "HttpLLMCalculator" }', "no node_options of the type mediapipe.LLMCalculatorOptions"),
        ("node {" + "a {" * 20_000, "it is nested too deeply"),
    ],
)
def test_what_is_wrong_with_a_graph_is_said(text: str, message: str) -> None:
    with pytest.raises(StartError, match=message) as caught:
        node_options(text)[1]
    assert "/" not in caught.value.reason
