"""Flags of OVMS that are not options here: some are ignored, others stop the start.

A flag is ignored, with a warning, if common commands for generative serving have it and no response depends on it. It
is refused if ignoring it would change what the user expects.
https://github.com/openvinotoolkit/model_server/blob/main/docs/parameters.md
"""

from __future__ import annotations

IGNORED = {
    "rest_workers": "one event loop serves all connections; --max_connections bounds them",
    "verbose_response": "responses have no __verbose object",
    "custom_node_resources_cleaner_interval_seconds": "there are no custom nodes to clean up after",
    "model_type": "the files of a text-to-speech model show its type",
    "sequence_cleaner_poll_wait_minutes": "there are no idle sequences to clean up",
}
"""Each ignored flag, with the reason."""

_GRPC = "this server has no gRPC service; use REST (--rest_port, --rest_bind_address)"
_CLASSIC = "it is for models that are not generative, which this server does not serve"
_OTHER_TASK = "it is for a task that this server does not serve"

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
            "guidance_scale", "default_num_inference_steps", "max_num_inference_steps", "source_loras",
        ),
        _OTHER_TASK,
    ),
    "cpu_extension": "libraries with custom CPU layers are not supported",
    "trace_path": "it needs a build of OVMS with tracing; use --log_level TRACE",
}  # fmt: skip
"""Each refused flag, with the reason and what to use instead."""
