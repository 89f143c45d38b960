"""Encoders that transformers does not have, in torch, by the formulas and with the parameter names of their own code.

NomicBERT with experts (nomic-embed-text-v2-moe) and JinaBERT v2 (jina-embeddings-v2), of which the model for code has
other layers. They compute one text at a time.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu


class Encoder(nn.Module):
    """Embeddings and layers of an encoder; `config` has transformers' names of sizes."""

    def __init__(self, **sizes: Any) -> None:
        super().__init__()
        self.config = SimpleNamespace(**sizes, tie_word_embeddings=True)
        self.embeddings = nn.Module()
        self.embeddings.word_embeddings = nn.Embedding(self.config.vocab_size, self.config.hidden_size)
        self.embeddings.token_type_embeddings = nn.Embedding(2, self.config.hidden_size)
        self.encoder = nn.Module()

    def embedded(self, ids: Tensor) -> Tensor:
        return self.embeddings.word_embeddings(ids) + self.embeddings.token_type_embeddings.weight[0]


class NomicBert(Encoder):
    """NomicBERT, in which every second layer has experts."""

    def __init__(self, **sizes: Any) -> None:
        super().__init__(**sizes)
        self.emb_ln = nn.LayerNorm(self.config.hidden_size, 1e-12)
        self.encoder.layers = nn.ModuleList(
            NomicLayer(self.config, layer % 2 == 1) for layer in range(self.config.num_hidden_layers)
        )

    def forward(self, input_ids: Tensor) -> SimpleNamespace:
        x = self.emb_ln(self.embedded(input_ids))
        for layer in self.encoder.layers:
            x = layer(x)
        return SimpleNamespace(last_hidden_state=x)


class NomicLayer(nn.Module):
    """A layer of NomicBERT."""

    def __init__(self, config: Any, mixed: bool) -> None:
        super().__init__()
        width = config.hidden_size
        self.heads = config.num_attention_heads
        self.attn = nn.Module()
        self.attn.Wqkv, self.attn.out_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = Experts(config) if mixed else Dense(config)
        self.norm1, self.norm2 = nn.LayerNorm(width, 1e-12), nn.LayerNorm(width, 1e-12)

    def forward(self, x: Tensor) -> Tensor:
        batch, count, width = x.shape
        q, k, v = self.attn.Wqkv(x).view(batch, count, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        found = (rotated(q) @ rotated(k).transpose(2, 3) * (width // self.heads) ** -0.5).softmax(-1) @ v
        x = self.norm1(self.attn.out_proj(found.transpose(1, 2).reshape(batch, count, width)) + x)
        return self.norm2(self.mlp(x) + x)


def rotated(x: Tensor) -> Tensor:
    """Applies RoPE to queries or keys [texts, heads, tokens, size]."""
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[2])[:, None] * 10000.0 ** (-torch.arange(half) / half)
    first, second = x[..., :half], x[..., half:]
    found = torch.cat([first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()], -1)
    return found.to(x.dtype)


class Dense(nn.Module):
    """A feed-forward network without a gate."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.fc1 = nn.Linear(config.hidden_size, config.intermediate_size)
        self.fc2 = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(gelu(self.fc1(x)))


class Experts(nn.Module):
    """NomicBERT's experts, whose weights are the softmax over all experts and do not sum to 1."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.used, self.count = config.num_experts_per_tok, config.num_experts
        self.router = nn.Module()
        self.router.layer = nn.Linear(config.hidden_size, self.count, bias=False)
        self.experts = nn.Module()
        self.experts.mlp = nn.Module()
        for name in ("w1", "w2"):
            rows = torch.empty(self.count * config.intermediate_size, config.hidden_size)
            self.experts.mlp.register_parameter(name, nn.Parameter(rows))

    def forward(self, x: Tensor) -> Tensor:
        rows = x.view(-1, x.shape[-1])
        weights, ids = self.router.layer(rows).softmax(-1).topk(self.used, -1)
        first, last = (each.view(self.count, -1, x.shape[-1]) for each in (self.experts.mlp.w1, self.experts.mlp.w2))
        return torch.stack(
            [
                sum(share * (gelu(row @ first[one].T) @ last[one]) for share, one in zip(shares, own, strict=True))
                for row, shares, own in zip(rows, weights, ids, strict=True)
            ]
        ).view(x.shape)


class JinaBert(Encoder):
    """JinaBERT v2, whose attention logits fall with the distance of two tokens, or the one for code."""

    def __init__(self, *, code: bool, **sizes: Any) -> None:
        super().__init__(**sizes)
        self.embeddings.LayerNorm = nn.LayerNorm(self.config.hidden_size, 1e-12)
        self.encoder.layer = nn.ModuleList(JinaLayer(self.config, code) for _ in range(self.config.num_hidden_layers))

    def forward(self, input_ids: Tensor) -> SimpleNamespace:
        places = torch.arange(input_ids.shape[1])
        fallen = (
            -torch.tensor(slopes(self.config.num_attention_heads))[:, None, None]
            * (places[:, None] - places[None]).abs()
        )
        x = self.embeddings.LayerNorm(self.embedded(input_ids))
        for layer in self.encoder.layer:
            x = layer(x, fallen)
        return SimpleNamespace(last_hidden_state=x)


class JinaLayer(nn.Module):
    """A layer of JinaBERT."""

    def __init__(self, config: Any, code: bool) -> None:
        super().__init__()
        width, inner = config.hidden_size, config.intermediate_size
        self.code, self.heads = code, config.num_attention_heads
        self.attention, self.mlp = nn.Module(), nn.Module()
        self.attention.self, self.attention.output = nn.Module(), nn.Module()
        for name in ("query", "key", "value"):
            self.attention.self.add_module(name, nn.Linear(width, width))
        self.attention.output.dense = nn.Linear(width, width)
        self.attention.output.LayerNorm = nn.LayerNorm(width, 1e-12)
        if code:
            self.attention.self.layer_norm_q = nn.LayerNorm(width, 1e-12)
            self.attention.self.layer_norm_k = nn.LayerNorm(width, 1e-12)
            self.layer_norm_1, self.layer_norm_2 = nn.LayerNorm(width, 1e-12), nn.LayerNorm(width, 1e-12)
            self.mlp.up_gated_layer = nn.Linear(width, 2 * inner, bias=False)
            self.mlp.down_layer = nn.Linear(inner, width)
        else:
            self.mlp.gated_layers = nn.Linear(width, 2 * inner, bias=False)
            self.mlp.wo = nn.Linear(inner, width)
            self.mlp.layernorm = nn.LayerNorm(width, 1e-12)

    def forward(self, x: Tensor, fallen: Tensor) -> Tensor:
        batch, count, width = x.shape
        own = self.attention.self
        query, key = own.query(x), own.key(x)
        if self.code:
            query, key = own.layer_norm_q(query), own.layer_norm_k(key)
        q, k, v = (each.view(batch, count, self.heads, -1).transpose(1, 2) for each in (query, key, own.value(x)))
        found = (q @ k.transpose(2, 3) / math.sqrt(width // self.heads) + fallen).softmax(-1).to(v.dtype) @ v
        found = self.attention.output.dense(found.transpose(1, 2).reshape(batch, count, width))
        after = self.attention.output.LayerNorm(found + x)
        if self.code:
            after = self.layer_norm_1(x + after)
            up, gated = self.mlp.up_gated_layer(after).chunk(2, -1)
            return self.layer_norm_2(after + self.mlp.down_layer(up * gelu(gated)))
        gated, up = self.mlp.gated_layers(after).chunk(2, -1)
        return self.mlp.layernorm(after + self.mlp.wo(gelu(gated) * up))


def slopes(heads: int) -> list[float]:
    """Returns ALiBi's slopes, as the paper's code computes them."""
    if math.log2(heads).is_integer():
        start = 2 ** (-(2 ** -(math.log2(heads) - 3)))
        return [start * start**number for number in range(heads)]
    whole = 2 ** math.floor(math.log2(heads))
    return slopes(whole) + slopes(2 * whole)[::2][: heads - whole]
