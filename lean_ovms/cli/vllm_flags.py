"""Flags of vLLM alone that have no option here: some are ignored, others stop the start. See other_flags.

https://docs.vllm.ai/en/stable/cli/serve.html
"""

from __future__ import annotations


def each(names: str, reason: str) -> dict[str, str]:
    """A table with one reason for the flags of a text."""
    return dict.fromkeys(names.split(), reason)


DEVICES = "one process computes; --target_device and --model_distribution_policy choose devices"
ALWAYS = "it is always so here"
MEMORY = "weights stay in memory; --cache_size and --cache_memory_percent size the KV cache"
CONVERT = "quantize at the conversion: --weight_format with --source_model, or optimum-cli export openvino"
KERNELS = "OpenVINO chooses the kernels"
FILES = "models are OpenVINO IR or GGUF"
_SCHEDULER = "the server decides what a step computes; --max_num_batched_tokens and --max_num_seqs bound it"
_SHARED = "image inputs are kept in memory of the process, within limits"

IGNORED = {
    **each(
        "all2all_backend cp_kv_cache_interleave_size cpu_distributed_timeout_seconds data_parallel_address "
        "data_parallel_backend data_parallel_external_lb data_parallel_hybrid_lb data_parallel_multi_port_external_lb "
        "data_parallel_rank data_parallel_rpc_port data_parallel_size_local data_parallel_start_rank "
        "data_parallel_supervisor_port dbo_decode_token_threshold dbo_prefill_token_threshold dcp_comm_backend "
        "dcp_kv_cache_interleave_size dcp_q_replicate decode_context_parallel_size device_ids "
        "disable_nccl_for_dp_synchronization distributed_timeout_seconds dp_supervisor_probe_failure_threshold "
        "dp_supervisor_probe_interval_s dp_supervisor_probe_timeout_s dp_sync_interval elastic_ep_max_dp_size "
        "enable_dbo enable_elastic_ep enable_ep_weight_filter enable_eplb enable_nccl_comm_suspend eplb_config "
        "expert_placement_strategy master_addr master_port mm_encoder_tp_mode nnodes node_rank numa_bind "
        "numa_bind_cpus numa_bind_nodes prefill_context_parallel_size ray_workers_use_nsight "
        "enable_batch_sharded_sampling fault_tolerance_config enable_fault_tolerance aggregate_engine_logging",
        DEVICES,
    ),
    **each(
        "attention_config cudagraph_capture_sizes disable_cascade_attn enable_cumem_allocator "
        "enable_flash_late_interaction enable_flashinfer_autotune enable_hc_sp enable_mamba_cache_stochastic_rounding "
        "enable_mamba_shared_prefix_checkpoint gdn_prefill_backend ir_op_priority jit_monitor_mode "
        "jit_monitor_verbose kda_decode_backend kda_prefill_backend kernel_config kv_sharing_fast_prefill "
        "linear_backend mamba_backend mamba_block_size mamba_cache_dtype mamba_cache_mode mamba_cache_philox_rounds "
        "mamba_ssm_cache_dtype mamba_ssu_algorithm max_cudagraph_capture_size mm_device_do_normalize "
        "mm_encoder_attn_backend mm_encoder_attn_dtype mm_processor_device monokernel performance_mode "
        "replayssm_buffer_len sparse_indexer_topk_backend swa_bounded_replay use_fp64_gumbel use_replayssm "
        "additional_config specialize_active_lora lora_dtype enable_shm_tensor_arena enable_moe_shared_loras "
        "enable_mixed_moe_lora_format fully_sharded_loras enable_tower_connector_lora max_lora_cls_labels",
        KERNELS,
    ),
    **each(
        "allow_deprecated_quantization config_format ignore_patterns model_loader_extra_config pt_load_map_location "
        "safetensors_load_strategy safetensors_prefetch_block_size safetensors_prefetch_num_threads "
        "use_tqdm_on_load fail_on_environ_validation",
        FILES,
    ),
    **each(
        "cpu_offload_params device_memory_utilization disable_hybrid_kv_cache_manager kv_cache_dtype_skip_layers "
        "kv_offloading_backend kv_offloading_size num_gpu_blocks_override offload_backend offload_group_size "
        "offload_num_in_group offload_params offload_prefetch_step prefix_cache_retention_interval "
        "prefix_match_unit watermark",
        MEMORY,
    ),
    **each(
        "disable_chunked_mm_input long_prefill_token_threshold long_prefill_token_threshold_adaptive "
        "max_num_active_seqs prefill_schedule_interval scheduler_reserve_full_isl renderer_num_workers "
        "watchdog_config",
        _SCHEDULER,
    ),
    **each(
        "mm_hasher_algorithm mm_ipc_gpu_memory_gb mm_processor_cache_gb mm_processor_cache_type "
        "mm_shm_cache_max_object_size_mb mm_tensor_ipc skip_mm_profiling",
        _SHARED,
    ),
    **each(
        "cudagraph_metrics enable_layerwise_nvtx_tracing enable_logging_iteration_details enable_mfu_metrics "
        "kv_cache_metrics kv_cache_metrics_sample per_request_spec_decode_metrics profiler_config "
        "show_hidden_metrics_for_version custom_histogram_buckets",
        "--metrics_enable has the metrics that there are",
    ),
    **dict.fromkeys(("sleep_mode_backend", "sleep_mode_offload_cudagraph", "sleep_preserve_parameter_names"),
        "/sleep unloads the models, whose files have all that is needed"),
    **dict.fromkeys(("enable_log_outputs", "enable_log_deltas", "log_error_stack", "max_log_len"),
        "answers are never logged; prompts are with --log_prompts"),
    "disable_access_log_for_endpoints": "--access_log false turns the whole access log off",
    "disable_fastapi_docs": "/docs and /openapi.json have only what is public; --protect_models needs the key",
    "exclude_tools_when_tool_choice_none": ALWAYS,
    "h11_max_header_count": "--max_header_bytes bounds the headers",
    "trust_request_mm_kwargs": "mm_processor_kwargs and media_io_kwargs of requests have no effect",
    "anthropic_disabled_thinking_effort": "thinking that is disabled sets enable_thinking of the chat template",
}  # fmt: skip
"""Flags whose absence changes no response, each with the reason."""
WITH_PATHS = frozenset(("disable_access_log_for_endpoints", "ignore_patterns", "additional_config"))
"""Those of them whose value may have a slash, and is then not the model."""

_CODE = "no code but the server's own is loaded"
REVISION = "the hub's main revision is pulled; pull another one with the hub's own tool and use --model_path"
_TRANSFER = "the KV cache stays in this process"
SPECULATIVE = "use --draft_model_path, --draft_source_model or --prompt_lookup"

REFUSED = {
    **each(
        "io_processor_plugin logits_processors model_class_overrides reasoning_parser_plugin scheduler_cls worker_cls "
        "worker_extension_cls",
        _CODE,
    ),
    **each(
        "ec_manager_config ec_transfer_config kv_events_config kv_transfer_config weight_transfer_config "
        "enable_trace_replay",
        _TRANSFER,
    ),
    **dict.fromkeys(("spec_method", "spec_tokens"), SPECULATIVE),
    **dict.fromkeys(("code_revision", "tokenizer_revision"), REVISION),
    **dict.fromkeys(("enable_prompt_embeds", "enable_mm_embeds"), "prompts are texts, images or token ids"),
    **dict.fromkeys(("enable_return_routed_experts", "return_sampling_mask"), "responses have no such member"),
    **dict.fromkeys(("grpc", "grpc_port"), "use the HTTP API: --rest_port"),
    **dict.fromkeys(("headless", "tokens_only", "enable_scale_out"), "one process serves the whole API"),
    **dict.fromkeys(("otlp_traces_endpoint", "collect_detailed_traces"), "no traces are sent; use --metrics_enable"),
    **dict.fromkeys(("media_io_kwargs", "mm_processor_kwargs", "interleave_mm_strings", "video_pruning_method",
        "video_pruning_rate"), "images are processed as the model's files say"),
    **dict.fromkeys(("fingerprint_mode", "fingerprint_value"), "system_fingerprint is the server's version"),
    **dict.fromkeys(("mm_encoder_only", "mm_encoder_fp8_scale_path", "mm_encoder_fp8_scale_save_margin",
        "mm_encoder_fp8_scale_save_path", "language_model_only", "lora_target_modules", "diffusion_config",
        "engram_config", "disable_sliding_window", "skip_tokenizer_init", "hf_config_path"),
        "the model is used as its directory has it"),
    **dict.fromkeys(("cohere_format", "cohere_is_reasoning_model"), "/v2/chat needs no option"),
    "quantization_config": CONVERT,
    "default_mm_loras": "name the adapter of --lora_modules as the model of a request",
    "logprobs_mode": "log probabilities are those of the model, as with raw_logprobs",
    "max_num_queued_tokens": "use --max_queued_tokens_per_client",
    "pooler_config": "use --pooling and --normalize",
    "reasoning_config": "send thinking_token_budget with a request; its text is the model's own",
    "reasoning_effort_map": "use --default_chat_template_kwargs, or a chat template that knows the efforts",
    "ssl_ciphers": "the ciphers are those that Python's ssl takes for safe",
    "aux_output_config": "responses have no such member",
    "tool_server": "functions are called by clients; there are no built-in tools",
    "watermark_config": "texts have no watermark",
}  # fmt: skip
"""Flags that cannot be ignored, each with what to use instead."""
