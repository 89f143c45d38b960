"""Flags of llama.cpp's server alone that have no option here: some are ignored, others stop the start. See other_flags.

https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md
"""

from __future__ import annotations

from .vllm_flags import ALWAYS, MEMORY, SPECULATIVE, each

_THREADS = "OpenVINO places its threads; --plugin_config sets their number"
_PLACES = "a model runs on one device whole: --target_device"
_DRAFTS = "a request says how many tokens are drafted: num_assistant_tokens"
_LOG = "--log_level and --log_format say what the log has"
_PREFIXES = "the cache of a prompt is found by its tokens, for every request: --enable_prefix_caching"
_IMAGES = "the image encoder is part of the model's directory"
_DEFAULTS = "give request defaults as JSON: --override_generation_config"
_SAMPLERS = "there is no such sampler; fields.md has those that are served"
_TOOLS = "functions are called by clients; there are no built-in tools"
_POSITIONS = "positions are scaled at the conversion"
_PULL = "name the model of a hub: --source_model"
_FIELD = "send it with each request"

IGNORED = {
    **each(
        "-C cpu_mask -Cr cpu_range cpu_strict prio poll -Cb cpu_mask_batch -Crb cpu_range_batch cpu_strict_batch "
        "prio_batch poll_batch numa spec_draft_threads -td threads_draft spec_draft_threads_batch -tbd "
        "threads_batch_draft spec_draft_cpu_mask -Cd cpu_mask_draft spec_draft_cpu_range -Crd cpu_range_draft "
        "spec_draft_cpu_strict cpu_strict_draft spec_draft_prio prio_draft spec_draft_poll poll_draft "
        "spec_draft_cpu_mask_batch -Cbd cpu_mask_batch_draft spec_draft_cpu_strict_batch cpu_strict_batch_draft "
        "spec_draft_prio_batch prio_batch_draft spec_draft_poll_batch poll_batch_draft",
        _THREADS,
    ),
    **each(
        "-kvo kv_offload -nkvo repack -nr no_host -ot override_tensor -cmoe cpu_moe -ncmoe n_cpu_moe -ncffn n_cpu_ffn "
        "op_offload mmproj_offload -mmdev mmproj_device spec_draft_override_tensor -otd override_tensor_draft "
        "spec_draft_cpu_moe -cmoed cpu_moe_draft spec_draft_n_cpu_moe spec_draft_ncmoe -ncmoed n_cpu_moe_draft "
        "spec_draft_ngl -ngld gpu_layers_draft n_gpu_layers_draft",
        _PLACES,
    ),
    **each("-fit -fitt fit_target -fitc fit_ctx -lm load_mode -lzm lazy_mode -dt defrag_thold", MEMORY),
    **each(
        "spec_draft_n_max spec_draft_n_min draft draft_n draft_max draft_min draft_n_min spec_draft_p_split "
        "draft_p_split spec_draft_p_min draft_p_min spec_draft_backend_sampling",
        _DRAFTS,
    ),
    **each(
        "log_disable log_jsonl log_colors -lv verbosity log_verbosity log_prefix log_timestamps perf no_perf "
        "log_prompts_dir",
        _LOG,
    ),
    **each(
        "slot_save_path -sps slot_prompt_similarity cache_idle_slots -ctxcp ctx_checkpoints swa_checkpoints -cms "
        "checkpoint_min_step kv_unified_per_slot -no-kvu no_kv_unified cache_prompt no_cache_prompt",
        _PREFIXES,
    ),
    **each("mmproj_auto no_mmproj no_mmproj_auto image_min_tokens image_max_tokens mtmd_batch_max_tokens", _IMAGES),
    **each("ui warmup props -nocb no_agent -no-ag check_tensors no_ui_mcp_proxy no_webui_mcp_proxy", ALWAYS),
    **each("spec_draft_type_k -ctkd cache_type_k_draft spec_draft_type_v -ctvd cache_type_v_draft", "as the model's"),
    **each("-ctv cache_type_v", "keys and values are of one type: --kv_cache_precision"),
    **each("-bs backend_sampling samplers sampler_seq sampling_seq", "the samplers have a fixed order"),
    **each("ui_config webui_config ui_config_file webui_config_file", "the page has no settings of the server"),
    **each("-e escape no_escape", "prompts are as they are sent"),
    **each("video_fps video_timestamp_interval video_ffmpeg_dir", "there are no videos among the inputs"),
    **each(
        "prefill_assistant", "an assistant message at the end is continued where continue_final_message asks for it"
    ),
    "tags": "models have names only: --model_aliases",
    "lora_init_without_apply": "a request names its adapter as the model",
    "embd_normalize": "--normalize, or a request's own field",
}
"""Flags whose absence changes no response, each with the reason."""

WITH_PATHS = frozenset({"slot_save_path", "log_prompts_dir", "video_ffmpeg_dir", "ui_config_file", "webui_config_file"})
"""Ignored flags whose values are paths."""

REFUSED = {
    **each("-s ignore_eos -l logit_bias -r reverse_prompt", _FIELD),
    **each("typical typical_p repeat_last_n top_nsigma top_n_sigma xtc_probability xtc_threshold", _SAMPLERS),
    **each("dry_multiplier dry_base dry_allowed_length dry_penalty_last_n dry_sequence_breaker", _SAMPLERS),
    **each("adaptive_target adaptive_decay dynatemp_range dynatemp_exp mirostat mirostat_lr mirostat_ent", _SAMPLERS),
    **each("tools tools_runtime mcp_servers_config mcp_servers_json -ag agent ui_mcp_proxy webui_mcp_proxy", _TOOLS),
    **each("rope_scale yarn_orig_ctx yarn_ext_factor yarn_attn_factor yarn_beta_slow yarn_beta_fast", _POSITIONS),
    **each("-mu model_url -dr docker_repo -mm -mmu mmproj_url", _PULL),
    **each("spec_type spec_default spec_draft_device -devd device_draft spec_synth_len spec_synth_rates", SPECULATIVE),
    **each("-lcs lookup_cache_static -lcd lookup_cache_dynamic", SPECULATIVE),
    **each("control_vector control_vector_scaled control_vector_layer_range override_kv", "the model is used as it is"),
    **each("-j grammar_file -jf json_schema_file", "send a grammar or a schema with each request"),
    "lora_scaled": "use --lora_modules name=path",
    "rpc": "one process computes",
    "path": "only the server's own page is served; put a proxy in front",
    **each("-sp special", "send skip_special_tokens: false with each request"),
    **each("embd_gemma_default gpt_oss_20b_default gpt_oss_120b_default vision_gemma_4b_default", _PULL),
    **each("vision_gemma_12b_default fim_qwen_3b_default fim_qwen_7b_default fim_qwen_30b_default", _PULL),
    **each("fim_qwen_7b_spec fim_qwen_14b_spec", _PULL),
    "reasoning_effort": 'use --default_chat_template_kwargs \'{"reasoning_effort": "low"}\'',
    "reasoning_budget_message": "send thinking_token_budget with a request; its text is the model's own",
}
"""Flags that cannot be ignored, each with what to use instead."""
