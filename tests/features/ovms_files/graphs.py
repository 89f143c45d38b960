"""Graphs and configuration files as OVMS's documentation, exporter and own tests write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SKELETON = """\
input_stream: "HTTP_REQUEST_PAYLOAD:input"
output_stream: "HTTP_RESPONSE_PAYLOAD:output"

node: {
  name: "LLMExecutor"
  calculator: "HttpLLMCalculator"
  input_stream: "LOOPBACK:loopback"
  input_stream: "HTTP_REQUEST_PAYLOAD:input"
  input_side_packet: "LLM_NODE_RESOURCES:llm"
  input_side_packet: "LLM_NODE_EXECUTION_CONTEXTS:llm_ctx"
  output_stream: "LOOPBACK:loopback"
  output_stream: "HTTP_RESPONSE_PAYLOAD:output"
  input_stream_info: {
    tag_index: 'LOOPBACK:0',
    back_edge: true
  }
  node_options: {
      [type.googleapis.com / mediapipe.LLMCalculatorOptions]: {
OPTIONS
      }
  }
  input_stream_handler {
    input_stream_handler: "SyncSetInputStreamHandler",
    options {
      [mediapipe.SyncSetInputStreamHandlerOptions.ext] {
        sync_set {
          tag_index: "LOOPBACK:0"
        }
      }
    }
  }
}
"""

EVERY_OPTION = """\
          models_path: "./model", # the comment of a user
          max_num_batched_tokens: 512,
          cache_size: 2,
          max_num_seqs: 64,
          dynamic_split_fuse: false,
          device: "HETERO:GPU,CPU",
          plugin_config: '{"PERFORMANCE_HINT": "LATENCY", "prompt_lookup": false, '
                         '"DEVICE_PROPERTIES": {"NPU": {"MAX_PROMPT_LEN": 2048}}}',
          best_of_limit: 10,
          max_tokens_limit: 4000,
          enable_prefix_caching: true,
          draft_models_path: "draft",
          draft_device: "CPU",
          draft_max_num_batched_tokens: 128,
          draft_cache_size: 1,
          draft_block_size: 32,
          draft_max_num_seqs: 16,
          draft_dynamic_split_fuse: true,
          draft_eagle3_mode: false,
          pipeline_type: LM_CB,
          cache_eviction_config: {
            aggregation_mode: SUM
            start_size: 32
            recent_size: 128
            max_cache_size: 672
            apply_rotation: true
            snapkv_window_size: 16
            kv_crush_config { budget: 8 anchor_point_mode: ALTERNATING rng_seed: 3 }
          },
          tool_parser: "hermes3",
          reasoning_parser: "qwen3",
          enable_tool_guided_generation: true,
          sparse_attention_config {
            mode: XATTENTION
            num_last_dense_tokens_in_prefill: 100
            num_retained_start_tokens_in_cache: 128
            num_retained_recent_tokens_in_cache: 1920
            xattention_threshold: 0.5
            xattention_block_size: 64
            xattention_stride: 8
          },
          cache_interval_multiplier: 4,
          chat_template_mode: JINJA,
          generation_config_path: "other.json"
"""


def graph(options: str = 'models_path: "./"', head: str = "") -> str:
    """Returns a graph with these options of its LLM node."""
    return head + SKELETON.replace("OPTIONS", options)


def write_config(directory: Path, **root: Any) -> Path:
    """Writes a config.json with these keys."""
    path = directory / "config.json"
    path.write_text(json.dumps(root))
    return path
