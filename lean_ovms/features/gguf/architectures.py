"""Lists how the architectures of GGUF files differ from a plain decoder, with one row for each name in the files.

Differences that the names of the tensors show are not listed: biases, norms of queries and keys or after a block,
joined matrices. A new architecture is a row in ARCHITECTURES or ENCODERS. What no field of a row expresses is computed
in child/, and tests/makers/zoo_gguf.py records the answers of a tiny file with it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

LAYER = re.compile(r"blk\.(\d+)\.(.+)")
"""The name of a tensor of a layer: the number of the layer, and the tensor's name in it."""
WHOLE = {
    *("token_embd.weight", "output.weight", "output_norm.weight", "dense_2.weight", "dense_3.weight"),
    *("token_embd_norm.weight", "position_embd.weight", "cls.output.weight", "output.bias"),
    *("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"),
}
"""The names of the tensors that belong to no layer."""
LAYERS = {
    *(f"attn_{name}.{kind}" for name in ("q", "k", "v", "qkv", "output") for kind in ("weight", "bias")),
    *("attn_norm.weight", "attn_q_norm.weight", "attn_k_norm.weight", "post_attention_norm.weight"),
    *("ffn_norm.weight", "post_ffw_norm.weight", "ffn_gate_up_exps.weight"),
    *(f"ffn_{name}.{kind}" for name in ("gate", "up", "down") for kind in ("weight", "bias")),
    *(f"ssm_{name}.weight" for name in ("in", "conv1d", "norm", "out", "beta", "alpha", "ba")),
    *("ssm_a", "ssm_d", "ssm_dt.bias", "ssm_conv1d.bias", "attn_gate.weight", "ffn_gate_inp_shexp.weight"),
    *(f"ffn_{name}_shexp.weight" for name in ("gate", "up", "down")),
    *(f"shortconv.{name}.weight" for name in ("conv", "in_proj", "out_proj")),
    *("attn_sinks.weight", "exp_probs_b.bias", "ffn_gate_inp.weight", "ffn_gate_inp.bias"),
    *(f"ffn_{name}_exps.{kind}" for name in ("gate", "up", "down") for kind in ("weight", "bias")),
}
"""The names of the tensors of a decoder's layer."""
PER_LAYER = {
    *(f"per_layer_{name}.weight" for name in ("token_embd", "model_proj", "proj_norm")),
    *(f"{name}.weight" for name in ("inp_gate", "proj", "post_norm")),
}
"""The names of the tensors of per-layer embeddings, those of layers included."""
ENCODER_WHOLE = {
    *("token_embd.weight", "position_embd.weight", "token_types.weight"),
    *("token_embd_norm.weight", "token_embd_norm.bias"),
    *(f"{name}.{kind}" for name in ("cls", "cls.output") for kind in ("weight", "bias")),
}


def _with_biases(*names: str) -> set[str]:
    """Returns the names of the weights and of the biases of these layers."""
    return {f"{name}.{kind}" for name in names for kind in ("weight", "bias")}


ENCODER_LAYERS = _with_biases(
    *("attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output", "attn_output_norm"),
    *("ffn_up", "ffn_down", "ffn_gate", "layer_output_norm"),
)
"""The names of the tensors of encoders: those that belong to no layer, and those of a layer."""
CENTRED = {
    *(f"{name}_norm.bias" for name in ("attn", "ffn", "output", "token_embd", "attn_q", "attn_k")),
}
"""The names of the biases of decoders' norms that subtract the mean."""
LATENT = {f"attn_{name}.weight" for name in ("q_a", "q_a_norm", "q_b", "kv_a_mqa", "kv_a_norm", "k_b", "v_b", "kv_b")}
"""The names of the tensors of multi-head latent attention."""
SELECTING = {"ssm_x.weight", "ssm_dt.weight"}
"""The names of the tensors from which Mamba-1 has what changes with each token."""
OWN = {
    "dbrx": {"attn_output_norm.weight"},
    "deepseek2": LATENT,
    "falcon": _with_biases("attn_norm_2"),
    "falcon-h1": {"ffn_norm"},
    "gemma3n": {
        *PER_LAYER,
        *(f"altup_{name}.weight" for name in ("proj", "unembd_proj", "router", "router_norm", "predict_coef")),
        *(f"altup_correct_{name}.weight" for name in ("coef", "scale")),
        *(f"laurel_{name}.weight" for name in ("l", "r", "post_norm")),
    },
    "gemma4": {
        *PER_LAYER,
        "layer_output_scale.weight",
        *(f"{name}.weight" for name in ("pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2")),
        *("ffn_gate_inp.scale", "ffn_down_exps.scale"),
    },
    "hy_v3": {"exp_probs_b"},
    "jamba": {*SELECTING, *(f"ssm_{name}_norm.weight" for name in ("dt", "b", "c"))},
    "jina-bert-v2": _with_biases("attn_q_norm", "attn_k_norm", "attn_norm_2"),
    "modern-bert": _with_biases("attn_norm", "ffn_norm", "output_norm", "cls.norm"),
    "mistral4": LATENT,
    "nemotron_h_moe": {"ffn_latent_down.weight", "ffn_latent_up.weight"},
    "mamba": SELECTING,
    "minicpm3": LATENT,
    "nomic-bert-moe": {f"ffn_{name}.weight" for name in ("gate_inp", "up_exps", "down_exps")},
    "plamo3": {"post_attention_norm", "post_ffw_norm"},
}
"""The names of the tensors that only networks of one architecture have, those of layers included."""
NO_PERIOD = 1 << 16
"""A period of layers with full attention that no network reaches."""
MANY = 128
"""The number of experts of Llama 4 Maverick, which unlike Scout has no norms of queries and keys."""
SCALINGS = ("none", "linear", "longrope", "yarn")
"""The kinds of scaling of positions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """The differences of an architecture's networks from a plain decoder."""

    pairs: bool = False
    """Whether RoPE rotates adjacent elements of queries and keys; otherwise it pairs elements of the two halves of a
    head."""
    permuted: bool = False
    """Whether llama.cpp's converter permuted the rows so that the pairs are adjacent; otherwise transformers has them
    so, too."""
    activation: str = "silu"
    """The activation function of the gate, or of a feed-forward network without gates: "silu", "gelu"
    (approximated by tanh), "exact_gelu", "relu", "squared_relu", or "xielu", whose numbers are in the file."""
    gated: bool = True
    """Whether feed-forward networks and experts multiply the activated values by a second projection."""
    alternating: bool = False
    """Whether layers may lack a token mixer or a feed-forward network; otherwise each layer has both."""
    scaled_embeddings: bool = False
    """Whether token embeddings are multiplied by the square root of their width."""
    embedding_scale: float = 1.0
    """The factor of token embeddings if the file has none."""
    depth_scale: float = 0.0
    """The factor of what layers add if the file has none: this number divided by the square root of the number of
    layers; 0 for no factor."""
    base_width: int = 0
    """The width at which logits are not scaled if the file has no scale: they are divided by the multiple of it that
    the network's width is. 0 if logits are not scaled."""
    window_period: int = 0
    """The period of layers with full attention; the layers between have a sliding window. 0 if all have full attention,
    and NO_PERIOD if none has. A file may state another period, or list the layers."""
    window: int = 0
    """The size of the sliding window if the file has none."""
    longest: int = 0
    """The number of tokens of the longest text that the network computes, since its attention is in chunks beyond that;
    0 if only the file limits it."""
    local_base: float = 0.0
    """The base of RoPE in layers with a sliding window, where it is not scaled; 0 for that of the other layers."""
    unscaled_windows: bool = False
    """Whether RoPE is not scaled in layers with a sliding window, although it has the base of the other layers."""
    unrotated: int = 0
    """The period of layers without RoPE; 0 if all layers have it. A file may list the layers."""
    first: bool = False
    """Whether these layers are the first ones of their periods, with full attention or without RoPE; otherwise they are
    the last ones."""
    half_rotated: bool = False
    """Whether layers without a sliding window rotate half as many elements as the file says."""
    rotated_windows: bool = False
    """Whether only layers with a sliding window have RoPE, and those before the first experts."""
    windowed: bool = False
    """Whether all layers have RoPE in models without a sliding window, whatever `unrotated` says."""
    switched: bool = False
    """Whether no layer has RoPE if the file says that the model was not trained with it."""
    scales_by_width: int = 0
    """The number of layers of the model size whose attention scale follows from the width per head (0 if no size has
    that)."""
    attention_scale: float = 0.0
    """The factor of the dot products of queries and keys; 0 if it follows from the size of a head."""
    attention_power: float = -0.5
    """The power of the size of a head that is this factor otherwise."""
    slope: float = 0.0
    """The negative logarithm to base 2 of the smallest slope of ALiBi, which replaces RoPE, if the file has none; 0 if
    there is no ALiBi."""
    sloped_depth: int = 0
    """The number of layers of the model size that has ALiBi; 0 if all sizes have it."""
    gate: str = "sigmoid"
    """The function of the gates of the attention's results: "sigmoid" or "softplus"."""
    attention_cap: float | None = None
    """The soft cap of attention logits if the file has none; None if the networks have no cap, whatever a file says."""
    logits_cap: float | None = None
    """The soft cap of the final logits if the file has none (0 for no cap); None if the networks have no cap, whatever
    a file says."""
    late_norms: bool = False
    """Whether the norms of queries and keys come after RoPE."""
    unit_keys: bool = False
    """Whether queries and keys have a norm without weights after RoPE, if there are fewer than MANY experts."""
    unit_values: bool = False
    """Whether values have a norm without weights. In a layer without a value projection, the values are the projected
    keys."""
    altup: bool = False
    """Whether the network has several streams of hidden states (AltUp), and learned residual layers (LAuReL)."""
    causal: bool = True
    """Whether attention is causal if the file does not say it."""
    projected: bool = False
    """Whether vectors go through final projections (dense_2, dense_3), which some files lack."""
    centred_norms: bool = False
    """Whether norms subtract the mean before they divide by the deviation (LayerNorm); otherwise they do not."""
    bare_norms: bool = False
    """Whether the norms before the parts of a layer and the last norm have no weights."""
    parallel: bool = False
    """Whether the feed-forward network reads the same input as the token mixer; otherwise it reads the sum of the input
    and the mixer's result."""
    states_parallel: bool = False
    """Whether the file says so instead."""
    beside: bool = False
    """Whether each layer has attention beside its state spaces, whose results are added."""
    multiplied_logits: bool = False
    """Whether logits are multiplied by their scale; otherwise they are divided by it."""
    forward_norm: str = "ffn_norm"
    """The name of the norm before the feed-forward network in the file."""
    last_norm: str = "output_norm"
    """The name of the norm after the last layer in the file."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """The names of layers in transformers, by the usual names, if they differ; "" for a layer that is part of another
    there. Adapters find their layers by these names."""
    sums_to_one: bool = True
    """Whether the weights of a token's experts are normalized to sum to 1; otherwise they are the softmax over all
    experts."""
    always_normed: bool = False
    """Whether weights of experts that are chosen with a bias or by sigmoids sum to 1 even if the file says that they do
    not, as files do that llama.cpp itself has saved."""
    averaged: bool = False
    """Whether the results of experts and of the shared expert are averaged; otherwise they are added."""
    sigmoids: bool = False
    """Whether each expert has its sigmoid as its weight if the file does not say it."""
    softmax: bool = False
    """Whether the weights of experts that are chosen with a bias are the softmax over all experts; otherwise they are
    sigmoids."""
    weighted_inputs: bool = False
    """Whether the weight of an expert multiplies its input, instead of its result; each token has one expert then,
    whose weight is a sigmoid."""
    routed_early: bool = False
    """Whether a token's experts are chosen by the input of the layer; otherwise by that of the experts."""
    one_by_one: bool = False
    """Whether a token's experts are chosen one after the other, each with its share among the remaining ones that have
    nearly its score (SparseMixer)."""
    tiled: bool = True
    """Whether the value heads of delta nets are in the order of repeated key heads: all of them, then all again.
    Otherwise value heads that share a key head are neighbours."""
    clamped: bool = False
    """Whether experts have biases and clamp gate and up values, as gpt-oss does."""
    interleaved: bool = False
    """Whether the pairs of elements that rows and columns turn alternate with those of the time, where images have
    these positions; otherwise they follow each other."""
    whole_images: bool = False
    """Whether the tokens of an image attend to each other in both directions."""
    whole_in_windows: bool = False
    """Whether they do so in layers with a sliding window only."""
    whole_ramp: bool = True
    """Whether the ends of YaRN's ramp between scaled and unscaled frequencies are rounded to whole indices."""

    def path(self, layer: int, place: str) -> str:
        """Returns the name in transformers of a part of a layer, or "" if it has none there."""
        name = self.renamed.get(place, place)
        return name and f"model.layers.{layer}.{name}"


PARTS = ("gate", "up", "down")
"""The layers of a feed-forward network."""
SHARED_EXPERTS = {f"mlp.shared_expert.{part}_proj": f"mlp.shared_experts.{part}_proj" for part in PARTS}
"""The second names of the layers of the shared expert, which all tokens use."""
LFM2 = Architecture(
    last_norm="token_embd_norm",
    always_normed=True,
    renamed={
        "self_attn.o_proj": "self_attn.out_proj",
        "mlp.gate_proj": "feed_forward.w1",
        "mlp.up_proj": "feed_forward.w3",
        "mlp.down_proj": "feed_forward.w2",
    },
)
NEMOTRON_H = Architecture(
    activation="squared_relu",
    gated=False,
    alternating=True,
    unrotated=1,
    forward_norm="attn_norm",
    renamed={
        **{f"self_attn.{letter}_proj": f"mixer.{letter}_proj" for letter in "qkvo"},
        **{f"mamba.{part}_proj": f"mixer.{part}_proj" for part in ("in", "out")},
        **{f"mlp.{part}_proj": f"mixer.{part}_proj" for part in PARTS},
        **{f"mlp.shared_expert.{part}_proj": f"mixer.shared_experts.{part}_proj" for part in PARTS},
    },
)
MINICPM: dict[str, Any] = {"embedding_scale": 12.0, "depth_scale": 1.4, "base_width": 256}
"""The scales of MiniCPM's models, which only newer files state."""
UNNAMED = {**{f"self_attn.{letter}_proj": "" for letter in "qkvo"}, **{f"mlp.{part}_proj": "" for part in PARTS}}
"""The layers of networks whose layers have other names in transformers, and which adapters do not know."""
LIKE_GPT: dict[str, Any] = {
    "gated": False, "centred_norms": True, "unrotated": 1, "renamed": UNNAMED
}  # fmt: skip
GPT2 = Architecture(**LIKE_GPT, activation="gelu")
GPT_NEOX = {
    **dict.fromkeys((f"self_attn.{letter}_proj" for letter in "qkv"), ""),
    "self_attn.o_proj": "attention.dense",
    "mlp.up_proj": "mlp.dense_h_to_4h",
    "mlp.down_proj": "mlp.dense_4h_to_h",
}
MAMBA = Architecture(
    alternating=True, renamed={f"mamba.{part}_proj": f"mixer.{part}_proj" for part in ("in", "x", "dt", "out")}
)
COHERE: dict[str, Any] = {
    "pairs": True, "centred_norms": True, "parallel": True, "multiplied_logits": True, "forward_norm": "attn_norm"
}  # fmt: skip
ARCHITECTURES = {
    "afmoe": Architecture(scaled_embeddings=True, window_period=4, unrotated=4, renamed=SHARED_EXPERTS),
    "apertus": Architecture(activation="xielu", gated=False),
    "arcee": Architecture(pairs=True, permuted=True, activation="squared_relu", gated=False),
    "baichuan": Architecture(pairs=True, permuted=True, slope=8.0, sloped_depth=40, renamed=UNNAMED),
    "bailingmoe": Architecture(pairs=True, permuted=True, sums_to_one=False, renamed=SHARED_EXPERTS),
    "bailingmoe2": Architecture(renamed=SHARED_EXPERTS),
    "bloom": Architecture(**LIKE_GPT, activation="gelu", slope=8.0),
    "chatglm": Architecture(pairs=True),
    "codeshell": Architecture(activation="gelu", gated=False, centred_norms=True, renamed=UNNAMED),
    "cohere2": Architecture(**COHERE, window_period=4, unrotated=4),
    "cohere2moe": Architecture(
        **COHERE, window_period=4, first=True, rotated_windows=True, averaged=True, sigmoids=True
    ),
    "command-r": Architecture(**COHERE),
    "dbrx": Architecture(centred_norms=True, forward_norm="attn_output_norm", renamed=UNNAMED),
    "deci": Architecture(pairs=True, permuted=True, alternating=True),
    "deepseek": Architecture(pairs=True, permuted=True, sums_to_one=False, renamed=SHARED_EXPERTS),
    "deepseek2": Architecture(pairs=True, sums_to_one=False, renamed=SHARED_EXPERTS),
    "dots1": Architecture(renamed=SHARED_EXPERTS),
    "ernie4_5": Architecture(pairs=True),
    "ernie4_5-moe": Architecture(pairs=True, softmax=True, always_normed=True, renamed=SHARED_EXPERTS),
    "eurobert": Architecture(causal=False),
    "exaone": Architecture(),
    "exaone-moe": Architecture(window_period=4, unrotated=4, windowed=True, renamed=SHARED_EXPERTS),
    "exaone4": Architecture(window_period=4, unrotated=4, windowed=True),
    "falcon-h1": Architecture(beside=True, renamed={f"mlp.{part}_proj": f"feed_forward.{part}_proj" for part in PARTS}),
    "falcon": Architecture(
        activation="exact_gelu",
        gated=False,
        centred_norms=True,
        parallel=True,
        forward_norm="attn_norm",
        renamed=GPT_NEOX,
    ),
    "gemma": Architecture(activation="gelu", scaled_embeddings=True),
    "gemma-embedding": Architecture(
        activation="gelu", scaled_embeddings=True, window_period=6, local_base=10000.0, causal=False, projected=True
    ),
    "gemma2": Architecture(
        activation="gelu",
        scaled_embeddings=True,
        window_period=2,
        window=4096,
        scales_by_width=46,
        attention_cap=50.0,
        logits_cap=30.0,
    ),
    "gemma3": Architecture(
        activation="gelu",
        scaled_embeddings=True,
        window_period=6,
        local_base=10000.0,
        scales_by_width=62,
        logits_cap=0.0,
        whole_images=True,
    ),
    "gemma3n": Architecture(
        activation="gelu",
        scaled_embeddings=True,
        window_period=5,
        local_base=10000.0,
        attention_scale=1.0,
        logits_cap=30.0,
        unit_values=True,
        altup=True,
    ),
    "gemma4": Architecture(
        activation="gelu",
        scaled_embeddings=True,
        local_base=10000.0,
        attention_scale=1.0,
        logits_cap=0.0,
        unit_values=True,
        whole_images=True,
        whole_in_windows=True,
    ),
    "glm4": Architecture(pairs=True),
    "glm4moe": Architecture(
        forward_norm="post_attention_norm",
        renamed=SHARED_EXPERTS,
    ),
    "gpt-oss": Architecture(window_period=2, forward_norm="post_attention_norm", clamped=True, whole_ramp=False),
    "gpt2": GPT2,
    "gptneox": Architecture(
        activation="exact_gelu", gated=False, centred_norms=True, states_parallel=True, renamed=GPT_NEOX
    ),
    "granite": Architecture(pairs=True, permuted=True, switched=True),
    "granite_swa": Architecture(pairs=True, permuted=True),
    "granitehybrid": Architecture(
        pairs=True,
        permuted=True,
        switched=True,
        renamed={f"mlp.{place}{part}_proj": "" for place in ("", "shared_expert.") for part in PARTS},
    ),
    "granitemoe": Architecture(pairs=True, permuted=True),
    "hunyuan-dense": Architecture(late_norms=True),
    "hunyuan-moe": Architecture(
        late_norms=True,
        renamed={f"mlp.shared_expert.{part}_proj": f"mlp.shared_mlp.{part}_proj" for part in PARTS},
    ),
    "hy_v3": Architecture(renamed=SHARED_EXPERTS),
    "internlm2": Architecture(pairs=True, permuted=True),
    "jais": Architecture(**{**LIKE_GPT, "gated": True}, slope=8.0, attention_power=-1.0),
    "jais2": Architecture(centred_norms=True, activation="squared_relu", gated=False),
    "jamba": Architecture(
        sums_to_one=False, unrotated=1, renamed={f"mlp.{part}_proj": f"feed_forward.{part}_proj" for part in PARTS}
    ),
    "laguna": Architecture(
        window_period=4, first=True, unscaled_windows=True, gate="softplus", sigmoids=True, renamed=SHARED_EXPERTS
    ),
    "lfm2": LFM2,
    "lfm2moe": LFM2,
    "llama": Architecture(pairs=True, permuted=True),
    "llama4": Architecture(
        pairs=True,
        unrotated=4,
        longest=8191,
        unit_keys=True,
        weighted_inputs=True,
        renamed={
            f"mlp.{place}{part}_proj": f"feed_forward.{place}{part}_proj"
            for place in ("", "shared_expert.")
            for part in PARTS
        },
    ),
    "llama-embed": Architecture(pairs=True, permuted=True, causal=False),
    "maincoder": Architecture(pairs=True, late_norms=True),
    "mamba": MAMBA,
    "mamba2": MAMBA,
    "mellum": Architecture(window_period=4, unscaled_windows=True),
    "mimo2": Architecture(unscaled_windows=True, sigmoids=True, always_normed=True),
    "minicpm": Architecture(pairs=True, permuted=True, **MINICPM),
    "minicpm3": Architecture(**MINICPM),
    "minimax-m2": Architecture(always_normed=True),
    "mistral3": Architecture(pairs=True, permuted=True),
    "mistral4": Architecture(pairs=True, sums_to_one=False, renamed=SHARED_EXPERTS),
    "mpt": Architecture(**LIKE_GPT, activation="exact_gelu"),
    "nemotron": Architecture(centred_norms=True, activation="squared_relu", gated=False),
    "nemotron_h": NEMOTRON_H,
    "nemotron_h_moe": NEMOTRON_H,
    "olmo": Architecture(pairs=True, permuted=True, centred_norms=True, bare_norms=True),
    "olmo2": Architecture(window_period=4, unscaled_windows=True),
    "olmoe": Architecture(sums_to_one=False),
    "openelm": Architecture(renamed=UNNAMED),
    "orion": Architecture(centred_norms=True),
    "paddleocr": Architecture(),
    "pangu-embedded": Architecture(),
    "phi2": Architecture(
        activation="gelu",
        gated=False,
        centred_norms=True,
        parallel=True,
        forward_norm="attn_norm",
        renamed={"self_attn.o_proj": "self_attn.dense", "mlp.up_proj": "mlp.fc1", "mlp.down_proj": "mlp.fc2"},
    ),
    "phi3": Architecture(window_period=NO_PERIOD),
    "phimoe": Architecture(window_period=NO_PERIOD, centred_norms=True, one_by_one=True),
    "plamo": Architecture(parallel=True, forward_norm="attn_norm"),
    "plamo3": Architecture(window_period=8, unscaled_windows=True, renamed=UNNAMED),
    "qwen": Architecture(renamed=UNNAMED),
    "qwen2": Architecture(),
    "qwen2moe": Architecture(sums_to_one=False),
    "qwen2vl": Architecture(),
    "qwen3": Architecture(),
    "qwen35": Architecture(forward_norm="post_attention_norm", interleaved=True),
    "qwen35moe": Architecture(forward_norm="post_attention_norm", interleaved=True),
    "qwen3moe": Architecture(),
    "qwen3next": Architecture(forward_norm="post_attention_norm", tiled=False),
    "qwen3vl": Architecture(interleaved=True),
    "qwen3vlmoe": Architecture(interleaved=True),
    "refact": Architecture(slope=8.0, renamed=UNNAMED),
    "seed_oss": Architecture(forward_norm="post_attention_norm"),
    "smallthinker": Architecture(
        activation="relu",
        window_period=4,
        unrotated=4,
        first=True,
        windowed=True,
        routed_early=True,
        always_normed=True,
    ),
    "smollm3": Architecture(pairs=True, permuted=True, unrotated=4),
    "spark2_5": Architecture(activation="gelu", unscaled_windows=True),
    "stablelm": Architecture(centred_norms=True),
    "starcoder": GPT2,
    "starcoder2": Architecture(centred_norms=True, activation="gelu", gated=False),
    "step35": Architecture(half_rotated=True, unscaled_windows=True, sigmoids=True, renamed=SHARED_EXPERTS),
    "xverse": Architecture(pairs=True, permuted=True),
}
"""The architectures of decoders by their names in files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder:
    """The differences of an architecture's encoders from BERT.

    Differences that the names and shapes of the tensors show are not listed: gates, biases, embeddings of positions.
    """

    rotary: bool = False
    """Whether queries and keys are rotated by RoPE."""
    sloped: bool = False
    """Whether attention logits fall with the distance of two tokens, by another slope in each head (ALiBi)."""
    early_norms: bool = False
    """Whether the norms are before attention and feed-forward network, and not after their sums with the input."""
    activation: str = "gelu"
    """The name of the activation function by transformers, if the file has none."""
    window_period: int = 0
    """The period of layers with full attention, the first of which is the first layer; the layers between have a window
    in both directions. 0 if all layers have full attention."""
    local_base: float = 0.0
    """The base of RoPE in layers with a window, if the file has none."""
    mean_classified: bool = False
    """Whether a classifier reads the mean of all tokens if the file does not say so; otherwise it reads the first."""


ENCODERS = {
    "bert": Encoder(),
    "jina-bert-v2": Encoder(sloped=True),
    "jina-bert-v3": Encoder(rotary=True),
    "modern-bert": Encoder(rotary=True, early_norms=True, window_period=3, local_base=10000.0, mean_classified=True),
    "nomic-bert": Encoder(rotary=True, activation="silu"),
    "nomic-bert-moe": Encoder(rotary=True),
}
"""The architectures of encoders by their names in files."""


def longest(architecture: str, length: int) -> int:
    """Returns how many tokens a text may have in a network of the architecture whose file says `length`."""
    row = ARCHITECTURES.get(architecture)
    return length if row is None else min(length, row.longest or length)


def is_known(architecture: str, layers: int, name: str) -> bool:
    """Returns whether a tensor can be loaded, since networks of the architecture use it or may ignore it.

    Args:
        architecture: The architecture.
        layers: The number of layers; tensors of layers after these are ignored.
        name: The name of the tensor.
    """
    whole, parts = (ENCODER_WHOLE, ENCODER_LAYERS) if architecture in ENCODERS else (WHOLE, LAYERS)
    found, own, row = LAYER.fullmatch(name), OWN.get(architecture, set()), ARCHITECTURES.get(architecture)
    if row is not None and row.centred_norms:
        own = own | CENTRED
    return name in whole | own if found is None else int(found[1]) >= layers or found[2] in parts | own
