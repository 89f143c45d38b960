"""The models of tests/makers/zoo_gguf.py: their sizes in torch, and the metadata of their files."""

from __future__ import annotations

from math import inf
from statistics import NormalDist
from typing import Any

from tests.makers.zoo import DELTA_NET, MAMBA, QWEN_EXPERTS, SHARED_EXPERT

Shape = list[int] | None
"""The shape of a tensor; None if a file lacks it."""
WINDOW = 24
GEMMA = {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": WINDOW}
GEMMA4 = {
    "head_dim": 16,
    "global_head_dim": 32,
    "sliding_window": WINDOW,
    "num_hidden_layers": 6,
    "layer_types": ["sliding_attention", "full_attention"] * 3,
    "final_logit_softcapping": 20.0,
    "tie_word_embeddings": False,
}
GEMMA4_SIZES = {
    **{f"attention.{name}_length": 32 for name in ("key", "value")},
    **{f"attention.{name}_length_swa": 16 for name in ("key", "value")},
    "rope.dimension_count": 32,
    "rope.dimension_count_swa": 16,
    "rope.freq_base_swa": 10000.0,
    "attention.sliding_window": WINDOW,
    "attention.sliding_window_pattern": [True, False] * 3,
    "final_logit_softcapping": 20.0,
}
PROPORTIONAL = [1.0] * 4 + [1e30] * 12
"""The divisors of frequencies in Gemma 4's layers without a window: only a quarter of the pairs is rotated."""
SPARSITY = [0.95, 0.8, 0.0, 0.0, 0.4, 0.0]
"""The share of elements that become 0 in the gates of Gemma 3n's layers."""
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
"""There is more than one key head, because openvino's frontend takes llama's single one for the token axis."""
GRANITE = {
    "logits_scaling": 2.0, "residual_multiplier": 0.7, "embedding_multiplier": 2.0, "attention_multiplier": 0.3
}  # fmt: skip
GRANITE_SCALES = {"logit_scale": 2.0, "residual_scale": 0.7, "embedding_scale": 2.0, "attention.scale": 0.3}
EXPERTS = (
    *(("expert_count", "num_experts"), ("expert_count", "num_local_experts")),
    ("expert_used_count", "num_experts_per_tok"),
)
ENCODER = {"type_vocab_size": 2, "num_key_value_heads": 4}
LAYER_NORM = {"attention.layer_norm_epsilon": 1e-12}
EPSILON = {"attention.layer_norm_epsilon": 1e-5}
POSITIONS = {**EPSILON, **dict.fromkeys(("attention.head_count_kv", "rope.dimension_count", "rope.freq_base"))}
APART = {"expert_gating_func": 2, "leading_dense_block_count": 1}
ONE_SHARED = {"expert_feed_forward_length": 32, "expert_shared_count": 1, "expert_weights_scale": 1.0}
MAMBA_SIZES = {
    "ssm.conv_kernel": 4, "ssm.state_size": 16, "ssm.group_count": 1, "ssm.time_step_rank": 8, "ssm.inner_size": 128,
    "attention.head_count_kv": [0, 2], "rope.scaling.finetuned": False
}  # fmt: skip
NO_ATTENTION = {
    "attention.head_count": 0,
    "feed_forward_length": 0,
    **dict.fromkeys(("attention.head_count_kv", "attention.key_length", "attention.value_length", "rope.freq_base")),
    **dict.fromkeys(("rope.dimension_count", "rope.scaling.finetuned")),
}
"""The metadata that networks without attention lack."""
NEMOTRON = {
    "layers_block_type": ["mamba", "moe", "attention", "mamba", "moe"],
    "head_dim": 32,
    "ssm_state_size": 16,
    "n_groups": 2,
    "mamba_num_heads": 8,
    "mamba_head_dim": 16,
    "chunk_size": 128,
    "time_step_min": 1e-9,
}
"""One chunk and no limit of time steps: transformers 5.5.4 without kernels is wrong after the first chunk, and
limits steps."""
NEMOTRON_SIZES: dict[str, Any] = {
    **MAMBA_SIZES, "ssm.group_count": 2, "attention.head_count_kv": [0, 0, 2, 0, 0], "rope.dimension_count": 16
}  # fmt: skip
NEMOTRON_EXPERTS: dict[str, Any] = {
    **NEMOTRON,
    "layers_block_type": ["mamba", "moe", "attention"],
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "moe_shared_expert_intermediate_size": 48,
    "routed_scaling_factor": 2.5,
}
NEMOTRON_EXPERT_SIZES = {
    **NEMOTRON_SIZES, "attention.head_count_kv": [0, 0, 2], "feed_forward_length": [0, 32, 0], "expert_count": 8,
    "expert_weights_norm": True, "expert_weights_scale": 2.5, "expert_group_count": 1,
    "expert_feed_forward_length": 32, "expert_shared_feed_forward_length": 48
}  # fmt: skip
KEY_HEADS, VALUE_HEADS = 2, 4
DELTAS = {**DELTA_NET, "linear_num_key_heads": KEY_HEADS, "linear_num_value_heads": VALUE_HEADS}
DELTA_SIZES = {
    "ssm.conv_kernel": 4, "ssm.state_size": 16, "ssm.group_count": KEY_HEADS, "ssm.time_step_rank": VALUE_HEADS,
    "ssm.inner_size": 16 * VALUE_HEADS, "rope.dimension_count": 8
}  # fmt: skip
MIXTRAL = {"num_local_experts": 4, "num_experts_per_tok": 2}
MIXED = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
WINDOWED = {"attention.sliding_window": WINDOW}
YARN: dict[str, Any] = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 48
}  # fmt: skip
OSS = {**YARN, "rope_theta": 150000.0, "factor": 32.0, "truncate": False, "original_max_position_embeddings": 64}
MINISTRAL = {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}
SECTIONS = {"rope.dimension_sections": [8, 4, 4, 0]}
HOTTER = {"rope.scaling.yarn_log_multiplier": 1.0, "attention.temperature_scale": 0.1}
LONG: dict[str, Any] = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "attention_factor": 1.25,
    "long_factor": [1.0 + pair / 4 for pair in range(8)],
    "short_factor": [1.0] * 8,
}


def scaled(yarn: dict[str, Any]) -> dict[str, Any]:
    """Returns the metadata of positions that are scaled by YaRN."""
    original = yarn["original_max_position_embeddings"]
    scaling = {"type": "yarn", "factor": yarn["factor"], "original_context_length": original}
    return {f"rope.scaling.{key}": value for key, value in scaling.items()}


HEAD_16 = {f"attention.{name}_length": 16 for name in ("key", "value")} | {"rope.dimension_count": 16}
PLAIN = {"rope_type": "default", "rope_theta": 10000.0}
HALF = {**PLAIN, "partial_rotary_factor": 0.5}
ROUTED = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": 1.5,
}
"""Experts that a token chooses by sigmoid, after a dense layer and beside a shared expert."""
LATENT: dict[str, Any] = {
    "q_lora_rank": 48,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 24,
    "qk_rope_head_dim": 16,
    "v_head_dim": 20,
    "num_key_value_heads": 4,
    **ROUTED,
}
LATENT_SIZES: dict[str, Any] = {
    **APART,
    "expert_count": 4,
    "expert_weights_norm": True,
    "expert_weights_scale": 1.5,
    "attention.kv_lora_rank": 32,
    "attention.key_length": 48,
    "attention.value_length": 32,
    "attention.key_length_mla": 40,
    "attention.value_length_mla": 20,
    "attention.head_count_kv": 1,
    "rope.dimension_count": 16,
}
XIELU = {"xielu.alpha_p": [0.25, 1.0], "xielu.alpha_n": [-0.5, 0.5], "xielu.beta": [0.5] * 2, "xielu.eps": [-1e-6] * 2}
"""The numbers of xIELU in each layer, whose keys have no architecture."""
DEEPSEEK = {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}
GROUPS = {"n_routed_experts": 8, "n_group": 4, "topk_group": 2}
GROUP_SIZES: dict[str, Any] = {"expert_count": 8, "expert_group_count": 4, "expert_group_used_count": 2}


MODELS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "llama": ("llama", {}, {}),
    "llama-exaone": ("exaone", {}, {}),
    "llama-internlm": ("internlm2", {}, {}),
    "qwen2": ("qwen2", {}, {}),
    "qwen3": ("qwen3", {"head_dim": 32}, {}),
    "qwen3_moe": (
        "qwen3moe",
        {"head_dim": 32, **QWEN_EXPERTS, "norm_topk_prob": True},
        {"expert_feed_forward_length": 32},
    ),
    "gemma": ("gemma", {"head_dim": 32}, {}),
    "gemma2": (
        "gemma2",
        {**GEMMA, "attn_logit_softcapping": 4.0, "final_logit_softcapping": 20.0, "num_hidden_layers": 4},
        {"attention.sliding_window": WINDOW, "attn_logit_softcapping": 4.0, "final_logit_softcapping": 20.0},
    ),
    "gemma3_text": ("gemma3", {**GEMMA, "num_hidden_layers": 6}, {"attention.sliding_window": WINDOW}),
    "ernie4_5": ("ernie4_5", {"head_dim": 16}, {}),
    "exaone4": (
        "exaone4",
        {
            "num_hidden_layers": 4,
            "sliding_window": WINDOW,
            "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
        },
        WINDOWED,
    ),
    "gemma4_text": (
        "gemma4",
        {
            **GEMMA4,
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": 64,
            "num_kv_shared_layers": 2,
            "use_double_wide_mlp": True,
        },
        {
            **GEMMA4_SIZES,
            "attention.shared_kv_layers": 2,
            "embedding_length_per_layer_input": 8,
            "feed_forward_length": [32, 32, 32, 32, 64, 64],
        },
    ),
    "gemma4_text-equal": (
        "gemma4",
        {**GEMMA4, "hidden_size_per_layer_input": 0, "attention_k_eq_v": True, "num_global_key_value_heads": 1},
        {**GEMMA4_SIZES, "attention.head_count_kv": [2, 1] * 3},
    ),
    "gemma4_text-moe": (
        "gemma4",
        {
            **GEMMA4,
            "hidden_size_per_layer_input": 0,
            "enable_moe_block": True,
            "num_experts": 4,
            "top_k_experts": 2,
            "moe_intermediate_size": 32,
        },
        {**GEMMA4_SIZES, "expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 32},
    ),
    "gemma3n_text": (
        "gemma3n",
        {
            **GEMMA,
            "num_hidden_layers": 6,
            "layer_types": ["sliding_attention", "full_attention"] * 3,
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": 64,
            "num_kv_shared_layers": 2,
            "laurel_rank": 8,
            "activation_sparsity_pattern": SPARSITY,
            "final_logit_softcapping": 30.0,
        },
        {
            **WINDOWED,
            "attention.sliding_window_pattern": [True, False] * 3,
            "attention.shared_kv_layers": 2,
            "embedding_length_per_layer_input": 8,
            "altup.num_inputs": 4,
            "altup.active_idx": 0,
            "activation_sparsity_scale": [NormalDist().inv_cdf(share) if share else -inf for share in SPARSITY],
        },
    ),
    "glm4_moe_lite": ("deepseek2", {**LATENT, "first_k_dense_replace": 1}, {**LATENT_SIZES, "expert_gating_func": 2}),
    "deepseek_v3": (
        "deepseek2",
        {**LATENT, "q_lora_rank": None, "rope_parameters": DEEPSEEK},
        {**LATENT_SIZES, "rope.scaling.yarn_log_multiplier": 0.1, **scaled(DEEPSEEK)},
    ),
    "deepseek_v3-groups": (
        "deepseek2",
        {**LATENT, **GROUPS, "num_experts_per_tok": 3},
        {**LATENT_SIZES, **GROUP_SIZES, "expert_used_count": 3},
    ),
    "deepseek_v2": (
        "deepseek2",
        {**LATENT, **GROUPS, "num_experts_per_tok": 3, "topk_method": "group_limited_greedy"},
        {**LATENT_SIZES, **GROUP_SIZES, "expert_used_count": 3, "expert_gating_func": 1, "expert_weights_norm": False},
    ),
    "phi3": (
        "phi3",
        {"original_max_position_embeddings": 2048, "sliding_window": WINDOW},
        {"rope.scaling.original_context_length": 2048, **WINDOWED},
    ),
    "olmoe": ("olmoe", {"num_key_value_heads": 4, "num_experts": 4, "num_experts_per_tok": 2}, {}),
    "mistral": ("llama", {"head_dim": 32}, {}),
    "glm4": ("glm4", {"head_dim": 32}, {"rope.dimension_count": 16}),
    "granite": ("granite", GRANITE, GRANITE_SCALES),
    "olmo2": ("olmo2", {}, {}),
    # A text token has the same position in all sections of a vision model's rotation, so it is rotated as in a text
    # model.
    "qwen2-vision": ("qwen2vl", {}, SECTIONS),
    "qwen3-vision": ("qwen3vl", {"head_dim": 32}, SECTIONS),
    "qwen3_moe-vision": (
        "qwen3vlmoe",
        {"head_dim": 32, **QWEN_EXPERTS, "norm_topk_prob": True},
        {"expert_feed_forward_length": 32, **SECTIONS},
    ),
    "seed_oss": ("seed_oss", {"head_dim": 32, "attention_bias": True}, {}),
    "hunyuan_v1_dense": ("hunyuan-dense", {"head_dim": 32}, {}),
    "smollm3": ("smollm3", {"num_hidden_layers": 4, "no_rope_layers": [1, 1, 1, 0]}, {}),
    "mixtral": ("llama", MIXTRAL, {}),
    "glm4_moe": (
        "glm4moe",
        {"head_dim": 32, **ROUTED, "use_qk_norm": True},
        {**APART, "expert_count": 4, "expert_weights_scale": 1.5, "rope.dimension_count": 16},
    ),
    "lfm2_moe": (
        "lfm2moe",
        {
            "num_dense_layers": 1,
            "num_hidden_layers": 3,
            "layer_types": ["conv", "full_attention", "conv"],
            **QWEN_EXPERTS,
        },
        {**APART, "shortconv.l_cache": 3, "attention.head_count_kv": [0, 2, 0]},
    ),
    "arcee": ("arcee", {"head_dim": 32}, {}),
    "dots1": (
        "dots1",
        {"head_dim": 32, **ROUTED, "norm_topk_prob": True},
        {**APART, "expert_count": 4, "expert_weights_scale": 1.5},
    ),
    "exaone_moe": (
        "exaone-moe",
        {
            "head_dim": 32,
            "num_hidden_layers": 4,
            "sliding_window": WINDOW,
            "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
            **QWEN_EXPERTS,
            "num_shared_experts": 1,
            "first_k_dense_replace": 1,
            "n_group": 1,
            "topk_group": 1,
            "norm_topk_prob": True,
            "routed_scaling_factor": 1.5,
        },
        {**APART, **WINDOWED, "expert_weights_scale": 1.5},
    ),
    "ernie4_5_moe": (
        "ernie4_5-moe",
        {
            "moe_num_experts": 4,
            "moe_k": 2,
            "moe_intermediate_size": 32,
            "moe_num_shared_experts": 1,
            "moe_layer_start_index": 1,
            "moe_layer_end_index": 1,
        },
        {"expert_count": 4, "expert_used_count": 2, "leading_dense_block_count": 1, "interleave_moe_layer_step": 1},
    ),
    "hunyuan_v1_moe": (
        "hunyuan-moe",
        {"head_dim": 32, "num_experts": 4, "moe_topk": [2, 2], "num_shared_expert": [1, 1]},
        {"expert_used_count": 2},
    ),
    "minimax_m2": (
        "minimax-m2",
        {"head_dim": 32, **MIXTRAL, "rope_parameters": HALF},
        {"expert_gating_func": 2, "rope.dimension_count": 16},
    ),
    "cohere": ("command-r", {"use_qk_norm": False, "logit_scale": 0.25}, {"logit_scale": 0.25, **EPSILON}),
    "cohere2": (
        "cohere2",
        {
            "num_hidden_layers": 4,
            "logit_scale": 0.25,
            "sliding_window": WINDOW,
            "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
        },
        {"logit_scale": 0.25, **EPSILON, **WINDOWED},
    ),
    "starcoder2": ("starcoder2", {"sliding_window": None}, EPSILON),
    "stablelm": (
        "stablelm",
        {"use_qkv_bias": True, "rope_parameters": HALF},
        {**EPSILON, "rope.dimension_count": 8, "use_parallel_residual": False},
    ),
    "falcon_h1": (
        "falcon-h1",
        {
            "head_dim": 32,
            "mamba_d_ssm": 128,
            "mamba_n_heads": 8,
            "mamba_d_head": 16,
            "mamba_d_state": 16,
            "mamba_n_groups": 2,
            "mamba_chunk_size": 16,
        },
        {
            "ssm.conv_kernel": 4,
            "ssm.state_size": 16,
            "ssm.group_count": 2,
            "ssm.time_step_rank": 8,
            "ssm.inner_size": 128,
        },
    ),
    "afmoe": (
        "afmoe",
        {
            "head_dim": 32,
            "num_hidden_layers": 4,
            "sliding_window": WINDOW,
            "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
            **QWEN_EXPERTS,
            "num_dense_layers": 1,
            "num_shared_experts": 1,
            "route_scale": 2.5,
            "mup_enabled": True,
        },
        {**APART, **WINDOWED, "expert_weights_scale": 2.5},
    ),
    "nemotron": ("nemotron", {"head_dim": 32, "rope_parameters": HALF}, {**EPSILON, "rope.dimension_count": 16}),
    "glm": (
        "chatglm",
        {"head_dim": 32, "attention_bias": True, "rope_parameters": HALF, "num_key_value_heads": 2},
        {"rope.dimension_count": 16},
    ),
    "apertus": ("apertus", {"rope_parameters": PLAIN}, XIELU),
    "glm4_moe-joined": (
        "bailingmoe2",
        {
            "head_dim": 32,
            **ROUTED,
            **GROUPS,
            "num_experts_per_tok": 3,
            "use_qk_norm": True,
            "routed_scaling_factor": 2.5,
        },
        {**APART, **GROUP_SIZES, "expert_used_count": 3, "expert_weights_scale": 2.5, "rope.dimension_count": 16},
    ),
    "qwen3_next": ("qwen3next", {**DELTAS, **SHARED_EXPERT, "norm_topk_prob": True}, DELTA_SIZES),
    "granitemoe": ("granitemoe", {**MIXTRAL, **GRANITE}, GRANITE_SCALES),
    "granitemoehybrid": ("granitehybrid", {**MAMBA, **MIXTRAL, **GRANITE}, {**GRANITE_SCALES, **MAMBA_SIZES}),
    "nemotron_h": ("nemotron_h", NEMOTRON, {**NEMOTRON_SIZES, "feed_forward_length": [0, 32, 0, 0, 32]}),
    "nemotron_h-moe": ("nemotron_h_moe", NEMOTRON_EXPERTS, NEMOTRON_EXPERT_SIZES),
    "nemotron_h-latent": (
        "nemotron_h_moe",
        {**NEMOTRON_EXPERTS, "moe_latent_size": 32},
        {**NEMOTRON_EXPERT_SIZES, "moe_latent_size": 32},
    ),
    "qwen2_moe": ("qwen2moe", SHARED_EXPERT, {}),
    "qwen3_5_text": ("qwen35", DELTAS, DELTA_SIZES),
    "qwen3_5_moe_text": ("qwen35moe", {**DELTAS, **SHARED_EXPERT}, DELTA_SIZES),
    "lfm2": (
        "lfm2",
        {"block_auto_adjust_ff_dim": False, "num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"]},
        {"shortconv.l_cache": 3, "attention.head_count_kv": [0, 2, 0]},
    ),
    "gpt_oss": ("gpt-oss", {"head_dim": 32, **MIXTRAL, **MIXED, "rope_parameters": OSS}, {**WINDOWED, **scaled(OSS)}),
    "phi": ("phi2", {"num_key_value_heads": 4, "rope_parameters": HALF}, {**EPSILON, "rope.dimension_count": 8}),
    "phimoe": ("phimoe", {**MIXTRAL, "attention_bias": True, "lm_head_bias": True, "sliding_window": None}, {}),
    "granite-minicpm": (
        "minicpm",
        {
            "embedding_multiplier": 12.0,
            "residual_multiplier": 1.4 / 2**0.5,
            "attention_multiplier": 0.25,
            "logits_scaling": 64 / 256,
        },
        {},
    ),
    "deepseek_v3-minicpm": (
        "minicpm3",
        {**LATENT, "first_k_dense_replace": 2, "rope_interleave": False},
        {
            "attention.q_lora_rank": 48,
            "attention.kv_lora_rank": 32,
            "rope.dimension_count": 16,
            "attention.key_length": 40,
            "attention.value_length": 20,
        },
    ),
    "qwen2_moe-deepseek": (
        "deepseek",
        {**SHARED_EXPERT, "qkv_bias": False, "mlp_only_layers": [0]},
        {**ONE_SHARED, "leading_dense_block_count": 1},
    ),
    "qwen2_moe-bailing": (
        "bailingmoe",
        {**SHARED_EXPERT, "qkv_bias": False, "norm_topk_prob": True},
        {**ONE_SHARED, "expert_weights_norm": True},
    ),
    "jamba": (
        "jamba",
        {
            "num_hidden_layers": 3,
            "attn_layer_period": 3,
            "attn_layer_offset": 1,
            "num_experts": 4,
            "expert_layer_period": 2,
            "expert_layer_offset": 1,
            "num_experts_per_tok": 2,
            "mamba_d_state": 8,
            "mamba_dt_rank": 4,
            "use_mamba_kernels": False,
        },
        {
            "ssm.conv_kernel": 4,
            "ssm.state_size": 8,
            "ssm.time_step_rank": 4,
            "ssm.inner_size": 128,
            "attention.head_count_kv": [0, 2, 0],
        },
    ),
    "llama-pangu": ("pangu-embedded", {"attention_bias": True}, {}),
    "mamba": (
        "mamba",
        {"state_size": 8, "time_step_rank": 4, "intermediate_size": 128},
        {
            **NO_ATTENTION,
            "ssm.conv_kernel": 4,
            "ssm.state_size": 8,
            "ssm.time_step_rank": 4,
            "ssm.inner_size": 128,
            "ssm.dt_b_c_rms": False,
        },
    ),
    "falcon_mamba": (
        "mamba",
        {"state_size": 8, "time_step_rank": 4, "intermediate_size": 128, "mixer_rms_eps": 1e-5},
        {
            **NO_ATTENTION,
            "ssm.conv_kernel": 4,
            "ssm.state_size": 8,
            "ssm.time_step_rank": 4,
            "ssm.inner_size": 128,
            "ssm.dt_b_c_rms": True,
        },
    ),
    "mamba2": (
        "mamba2",
        {"state_size": 16, "num_heads": 8, "head_dim": 16, "n_groups": 1, "chunk_size": 128},
        {**MAMBA_SIZES, **NO_ATTENTION},
    ),
    "gpt2": ("gpt2", {"n_positions": 2048, "n_inner": 32}, POSITIONS),
    "gpt_bigcode": ("starcoder", {"n_positions": 2048, "n_inner": 32}, {**POSITIONS, "attention.head_count_kv": 1}),
    "gpt_neox": (
        "gptneox",
        {"num_key_value_heads": 4, "rope_parameters": HALF},
        {**EPSILON, "rope.dimension_count": 8, "use_parallel_residual": True},
    ),
    "falcon": ("falcon", {"ffn_hidden_size": 32}, {**EPSILON, "attention.head_count_kv": 1}),
    "falcon-new": (
        "falcon",
        {"ffn_hidden_size": 32, "new_decoder_architecture": True, "num_kv_heads": 2},
        {**EPSILON, "attention.head_count_kv": 2},
    ),
    "llama4_text": (
        "llama4",
        {
            "head_dim": 32,
            "num_hidden_layers": 4,
            "intermediate_size_mlp": 48,
            "interleave_moe_layer_step": 2,
            "num_local_experts": 4,
            "num_experts_per_tok": 1,
            "no_rope_layers": [1, 1, 1, 0],
        },
        {"feed_forward_length": 48, "interleave_moe_layer_step": 2, "expert_feed_forward_length": 32},
    ),
    "ministral3": ("mistral3", {"head_dim": 32, "rope_parameters": MINISTRAL}, {**HOTTER, **scaled(MINISTRAL)}),
    "qwen3-yarn": ("qwen3", {"head_dim": 32, "rope_parameters": YARN}, scaled(YARN)),
    "bert": ("bert", ENCODER, LAYER_NORM),
    "nomic_bert": ("nomic-bert", {**ENCODER, "head_dim": 16}, LAYER_NORM),
    "modernbert-biased": (
        "modern-bert",
        {
            **ENCODER,
            "num_hidden_layers": 4,
            "local_attention": WINDOW,
            "hidden_activation": "silu",
            **{f"{part}_bias": True for part in ("attention", "mlp", "norm")},
        },
        {
            **WINDOWED,
            "attention.sliding_window_pattern": [False, True, True, False],
            "hidden_activation": "silu",
            "attention.layer_norm_rms_epsilon": 1e-5,
        },
    ),
    "modernbert": (
        "modern-bert",
        {**ENCODER, "num_hidden_layers": 4, "local_attention": WINDOW},
        {**WINDOWED, "rope.freq_base_swa": 10000.0, "attention.sliding_window_pattern": 3, **EPSILON},
    ),
    "gemma3_text-embedding": (
        "gemma-embedding",
        {**GEMMA, "num_hidden_layers": 6, "use_bidirectional_attention": True},
        {"attention.sliding_window": WINDOW},
    ),
    "eurobert": ("eurobert", {}, {"attention.causal": False}),
    "llama-embed": ("llama-embed", {}, {}),
    "lfm2-embedding": (
        "lfm2",
        {"block_auto_adjust_ff_dim": False, "num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"]},
        {"shortconv.l_cache": 3, "attention.head_count_kv": [0, 2, 0], "attention.causal": False},
    ),
    "jina_embeddings_v3": ("jina-bert-v3", {**ENCODER, "type_vocab_size": 1}, EPSILON),
    "llama-baichuan": ("baichuan", {}, {}),
    "llama-xverse": ("xverse", {}, {}),
    "stablelm-orion": ("orion", {"rope_parameters": PLAIN, "partial_rotary_factor": 1.0}, EPSILON),
    "olmo": ("olmo", {"clip_qkv": 2.0}, {**EPSILON, "attention.clamp_kqv": 2.0}),
    "jais2": ("jais2", {"head_dim": 16}, EPSILON),
    "bloom": (
        "bloom",
        {"n_layer": 2, "n_head": 4},
        {**POSITIONS, "attention.head_count_kv": 4, "feed_forward_length": 256},
    ),
    "mpt": (
        "mpt",
        {"d_model": 64, "n_heads": 4, "n_layers": 2, "attn_config": {"clip_qkv": 2.0}},
        {
            **POSITIONS,
            "attention.head_count_kv": 4,
            "feed_forward_length": 256,
            "attention.max_alibi_bias": 8.0,
            "attention.clamp_kqv": 2.0,
        },
    ),
    "phi3-long": (
        "phi3",
        {"original_max_position_embeddings": 2, "rope_parameters": LONG},
        {"rope.scaling.attn_factor": LONG["attention_factor"], "rope.scaling.original_context_length": 2},
    ),
}
"""By transformers' model_type, with a suffix after "-" for variants: the architecture in GGUF, the differences from
zoo.COMMON, and further metadata."""
JOINED: dict[str, Shape] = {f"blk.*.attn_{letter}.weight": None for letter in "qkv"}
"""The projections that `attn_qkv` replaces."""
NO_NORMS: dict[str, Shape] = {f"blk.*.attn_{letter}_norm.weight": None for letter in "qk"}
NO_GATES: dict[str, Shape] = {f"blk.0.ffn_{part}_exps.weight": None for part in ("gate", "up", "down")}
DENSE_FIRST: dict[str, Shape] = {
    **NO_GATES,
    "blk.0.ffn_gate_inp.weight": None,
    **{f"blk.0.ffn_{part}.weight": shape for part, shape in (("gate", [32, 64]), ("up", [32, 64]), ("down", [64, 32]))},
}
"""A dense feed-forward network in the first layer, in place of experts."""
SHARED: dict[str, Shape] = {
    "blk.1.ffn_gate_shexp.weight": [32, 64],
    "blk.1.ffn_up_shexp.weight": [32, 64],
    "blk.1.ffn_down_shexp.weight": [64, 32],
}
DENSE_SIZES: dict[str, Any] = {"leading_dense_block_count": 1, "expert_shared_feed_forward_length": 32}
SECOND = {**WINDOWED, "attention.sliding_window_pattern": [False, True]}
OF_LLAMA: dict[str, tuple[str, str, dict[str, Shape], dict[str, Any]]] = {
    "codeshell": ("codeshell", "starcoder2", {"output.weight": [64, 64]}, {}),
    "cohere2moe": (
        *("cohere2moe", "qwen3_moe"),
        {
            **NO_NORMS,
            **DENSE_FIRST,
            **SHARED,
            "blk.*.ffn_norm.weight": None,
            **{name.replace("blk.1.", "blk.2."): shape for name, shape in SHARED.items()},
        },
        {
            **DENSE_SIZES,
            **SECOND,
            **EPSILON,
            "logit_scale": 0.25,
            "expert_shared_count": 1,
            "expert_weights_norm": False,
            "block_count": 3,
            "attention.sliding_window_pattern": [False, True, False],
            "attention.layer_norm_rms_epsilon": None,
        },
    ),
    "dbrx": (
        *("dbrx", "qwen3_moe"),
        {
            **NO_NORMS,
            **JOINED,
            "blk.*.attn_qkv.weight": [128, 64],
            "blk.*.attn_output.weight": [64, 64],
            "blk.*.ffn_norm.weight": None,
            "blk.*.attn_output_norm.weight": [64],
        },
        {**EPSILON, "attention.clamp_kqv": 2.0, **HEAD_16},
    ),
    "deci": (
        *("deci", "llama"),
        {
            **{f"blk.{layer}.attn_{letter}.weight": None for layer in (1, 2) for letter in "qkv"},
            **{f"blk.1.attn_{name}.weight": None for name in ("norm", "output")},
            **{f"blk.3.attn_{letter}.weight": [16, 64] for letter in "kv"},
        },
        {
            "block_count": 4,
            "attention.head_count": [4, 0, 4, 4],
            "attention.head_count_kv": [2, 0, 0, 1],
            "feed_forward_length": [32] * 4,
        },
    ),
    "granite_swa": (
        *("granite_swa", "granitemoe"),
        {
            "blk.*.attn_sinks.weight": [4],
            "blk.*.ffn_gate_up_exps.weight": [4, 64, 64],
            **{f"blk.*.ffn_{part}_exps.weight": None for part in ("gate", "up")},
            "blk.*.ffn_up_shexp.weight": [64, 64],
            "blk.*.ffn_down_shexp.weight": [64, 32],
        },
        {**SECOND, "attention.rope_pattern": [True, False], "expert_shared_feed_forward_length": 32},
    ),
    "hy_v3": (
        *("hy_v3", "qwen3_moe"),
        {**DENSE_FIRST, **SHARED, "blk.1.exp_probs_b": [4]},
        {**DENSE_SIZES, "expert_gating_func": 2, "expert_weights_norm": True, "expert_weights_scale": 1.5},
    ),
    "jais": (
        *("jais", "phi"),
        {
            **{f"blk.*.attn_{letter}.{kind}": None for letter in "qkv" for kind in ("weight", "bias")},
            "blk.*.attn_qkv.weight": [192, 64],
            "blk.*.attn_qkv.bias": [192],
            **{
                f"blk.*.ffn_{name}.{kind}": shape
                for name, kind, shape in (
                    ("norm", "weight", [64]),
                    ("norm", "bias", [64]),
                    ("gate", "weight", [32, 64]),
                    ("gate", "bias", [32]),
                )
            },
            "output.bias": None,
        },
        {"attention.max_alibi_bias": 8.0},
    ),
    "laguna": (
        *("laguna", "qwen3_moe"),
        {
            **DENSE_FIRST,
            **SHARED,
            "blk.1.exp_probs_b.bias": [4],
            "blk.*.attn_gate.weight": [4, 64],
            "blk.1.attn_gate.weight": [2, 64],
            "blk.1.attn_q.weight": [64, 64],
            "blk.1.attn_output.weight": [64, 64],
        },
        {
            **DENSE_SIZES,
            **WINDOWED,
            "attention.head_count": [4, 2],
            "rope.dimension_count": 16,
            "rope.dimension_count_swa": 32,
            "rope.freq_base_swa": 5000.0,
            "expert_weights_norm": True,
            "expert_weights_scale": 1.5,
            "expert_gating_func": 2,
            **scaled(YARN),
        },
    ),
    "maincoder": ("maincoder", "qwen3", {}, {}),
    "mellum": (
        *("mellum", "qwen3_moe"),
        {},
        {**WINDOWED, "attention.sliding_window_pattern": [True, False], **scaled(YARN)},
    ),
    "mimo2": (
        *("mimo2", "qwen3_moe"),
        {
            **NO_NORMS,
            **DENSE_FIRST,
            "blk.1.exp_probs_b.bias": [4],
            "blk.1.attn_sinks.weight": [4],
            "blk.0.attn_k.weight": [32, 64],
            "blk.0.attn_v.weight": [16, 64],
            "blk.1.attn_v.weight": [32, 64],
            "blk.*.attn_output.weight": [64, 64],
        },
        {
            **SECOND,
            "leading_dense_block_count": 1,
            "attention.head_count_kv": [1, 2],
            "attention.value_length": 16,
            "attention.value_scale": 0.7,
            "rope.dimension_count": 16,
            "rope.freq_base_swa": 5000.0,
        },
    ),
    "mistral4": (
        *("mistral4", "deepseek_v3"),
        {
            **{f"blk.*.attn_q{end}.weight": shape for end, shape in (("", None), ("_a", [48, 64]), ("_b", [160, 48]))},
            "blk.*.attn_q_a_norm.weight": [48],
            "blk.1.exp_probs_b.bias": None,
        },
        {
            "attention.q_lora_rank": 48,
            "expert_shared_count": 1,
            "expert_feed_forward_length": 32,
            "attention.temperature_scale": 0.1,
            "attention.temperature_length": 48,
            "expert_gating_func": 1,
        },
    ),
    "openelm": (
        *("openelm", "qwen3"),
        {
            **JOINED,
            "blk.0.attn_qkv.weight": [256, 64],
            "blk.1.attn_qkv.weight": [128, 64],
            "blk.1.attn_output.weight": [64, 64],
            "blk.1.ffn_gate.weight": [48, 64],
            "blk.1.ffn_up.weight": [48, 64],
            "blk.1.ffn_down.weight": [64, 48],
            "output.weight": None,
        },
        {"attention.head_count": [4, 2], "attention.head_count_kv": [2, 1], "feed_forward_length": [32, 48]},
    ),
    "plamo": ("plamo", "llama", {"blk.*.ffn_norm.weight": None}, {}),
    "plamo3": (
        *("plamo3", "qwen3"),
        {
            **JOINED,
            "blk.*.attn_qkv.weight": [256, 64],
            "blk.*.ffn_gate.weight": None,
            "blk.*.ffn_up.weight": [64, 64],
            "blk.*.post_attention_norm": [64],
            "blk.*.post_ffw_norm": [64],
        },
        {**WINDOWED, "attention.sliding_window_pattern": 2, "rope.freq_base_swa": 5000.0},
    ),
    "qwen": (
        *("qwen", "llama"),
        {**JOINED, "blk.*.attn_qkv.weight": [192, 64], "blk.*.attn_qkv.bias": [192]},
        {"attention.head_count_kv": 4, "feed_forward_length": 64},
    ),
    "refact": ("refact", "llama", {}, {}),
    "smallthinker": (
        *("smallthinker", "qwen3_moe"),
        NO_NORMS,
        {"attention.sliding_window": 4096, "expert_gating_func": 2},
    ),
    "spark2_5": (
        *("spark2_5", "llama"),
        {"blk.*.attn_gate.weight": [4, 64]},
        {**SECOND, "rope.freq_base_swa": 5000.0},
    ),
    "step35": (
        *("step35", "qwen3_moe"),
        {
            **DENSE_FIRST,
            **SHARED,
            "blk.1.exp_probs_b.bias": [4],
            "blk.*.attn_gate.weight": [4, 64],
            "blk.1.attn_gate.weight": [2, 64],
            "blk.1.attn_q.weight": [64, 64],
            "blk.1.attn_output.weight": [64, 64],
            "blk.1.attn_k.weight": [32, 64],
            "blk.1.attn_v.weight": [32, 64],
        },
        {
            **DENSE_SIZES,
            **SECOND,
            "attention.head_count": [4, 2],
            "attention.head_count_kv": [2, 1],
            "rope.freq_base_swa": 5000.0,
            "expert_weights_norm": True,
            "expert_weights_scale": 1.5,
            "swiglu_clamp_exp": [0.0, 0.5],
            "swiglu_clamp_shexp": [0.0, 0.75],
        },
    ),
}
"""Models that transformers does not have, and which llama-server answers: the architecture in GGUF, a model whose
tensors and metadata it has, further tensors by name, or None for one that is missing, and further metadata."""
FACTORS = {
    "phi3-long": {"rope_factors_long.weight": LONG["long_factor"]},
    **{f"gemma4_text{end}": {"rope_freqs.weight": PROPORTIONAL} for end in ("", "-equal", "-moe")},
}
"""Tensors of files that are not parameters in torch."""
