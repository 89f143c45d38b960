"""Flags of OVMS that are no options here: those that a command line may keep, and those that stop the start.

A flag is let through with a warning when it stands in ordinary commands for generative serving and its absence changes
no answer; it is refused when whoever gives it would wait in vain for what it sets.
https://github.com/openvinotoolkit/model_server/blob/main/docs/parameters.md
"""

from __future__ import annotations

IGNORED = {
    "port": "there is no gRPC service here; REST is on --rest_port",
    "rest_workers": "one event loop serves all connections; --max_connections bounds them",
    "verbose_response": "answers have no __verbose object",
    "custom_node_resources_cleaner_interval_seconds": "there are no custom nodes to clean up after",
    "sequence_cleaner_poll_wait_minutes": "there are no idle sequences to clean up",
}
"""Why each has no effect."""

_GRPC = "this server has no gRPC service; use REST (--rest_port, --rest_bind_address)"
_CLASSIC = "it is for models that are not generative, which this server does not serve"
_OTHER_TASK = "it is for a task that this server does not serve; text_generation is the one"

REFUSED = {
    **dict.fromkeys(
        ("grpc_bind_address", "grpc_workers", "grpc_max_threads", "grpc_memory_quota", "grpc_channel_arguments"), _GRPC
    ),
    **dict.fromkeys(
        (
            "batch_size", "shape", "layout", "mean", "scale", "color_format", "precision", "model_version_policy",
            "nireq", "stateful", "idle_sequence_cleanup", "low_latency_transformation", "max_sequence_number",
        ),
        _CLASSIC,
    ),
    **dict.fromkeys(
        (
            "resolution", "max_resolution", "default_resolution", "max_num_images_per_prompt", "num_images_per_prompt",
            "guidance_scale", "default_num_inference_steps", "max_num_inference_steps", "num_streams", "normalize",
            "truncate", "pooling", "max_allowed_chunks", "model_type", "source_loras",
        ),
        _OTHER_TASK,
    ),
    "cpu_extension": "libraries of own CPU layers are not loaded here",
    "trace_path": "it needs a build of OVMS with tracing; --log_level TRACE tells most",
}  # fmt: skip
"""Why each is refused, and what to use instead."""
