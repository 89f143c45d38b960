"""What the architectures of GGUF files do otherwise than a plain decoder: one row each, found by the name in the file.

What shows by the tensors is not said here: biases, norms of queries and keys or behind a block, joined matrices.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """What differs in an architecture."""

    pairs: bool = False
    """Whether a rotation turns neighbours among a head's rows of queries and keys."""
    permuted: bool = False
    """Whether llama.cpp's converter made that order; else it is transformers' as well."""
    activation: str = "silu"
    """The function of the gate: silu or gelu."""
    scaled_embeddings: bool = False
    """Whether embeddings are multiplied by the square root of their width."""
    window_period: int = 0
    """Every so many layers one sees all tokens, and the others those in the sliding window; 0: all layers see all."""
    local_base: float = 0.0
    """The base of the rotations in layers with a sliding window, which are not scaled; 0: that of all layers."""
    unrotated: int = 0
    """Every so many layers one has no positions; 0: all have them."""
    scales_by_width: int = 0
    """The number of layers with which attention is scaled by the width of the model for each head; 0: never."""


ARCHITECTURES = {
    "gemma": Architecture(activation="gelu", scaled_embeddings=True),
    "gemma3": Architecture(
        activation="gelu", scaled_embeddings=True, window_period=6, local_base=10000.0, scales_by_width=62
    ),
    "glm4": Architecture(pairs=True),
    "granite": Architecture(pairs=True, permuted=True),
    "llama": Architecture(pairs=True, permuted=True),
    "olmo2": Architecture(),
    "phi3": Architecture(),
    "qwen2": Architecture(),
    "qwen3": Architecture(),
    "smollm3": Architecture(pairs=True, permuted=True, unrotated=4),
}
"""The architectures by their names in files."""
