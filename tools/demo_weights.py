"""Reads the weights of the demo model, or of a model exported like it, as the engine computes with them: int8 times
scale."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov

DEMO = Path(__file__).parents[1] / "lean_ovms" / "demo_model"
LAYERS = r"(?:self|__module)\.model\.layers\.(\d+)\."
MATRICES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}  # fmt: skip
NORMS = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
}
"""The parts of a layer by their names in torch, with their names in GGUF. MATRICES has the linear layers."""


@cache
def weights(folder: Path = DEMO) -> dict[str, np.ndarray]:
    """Returns every tensor in f32 by its GGUF name. The rows of a linear layer are its outputs."""
    nodes: dict[str, Any] = {}
    for node in ov.Core().read_model(folder / "openvino_model.xml").get_ops():
        name = node.get_friendly_name()
        if node.get_type_name() == "Multiply" and "/fq_weights_" in name:
            nodes["token_embd" if "embed_tokens" in name else _layer(name, MATRICES)] = node
        elif node.get_type_name() == "Multiply" and "norm/aten::mul/Multiply_1" in name:
            nodes["output_norm" if "layers" not in name else _layer(name, NORMS)] = _constant(node)
    folded = ov.Core().compile_model(ov.Model([n.output(0) for n in nodes.values()], [], "weights"), "CPU")([])
    arrays = [np.array(folded[i], dtype=np.float32) for i in range(len(nodes))]
    return {f"{n}.weight": a.reshape(-1) if "norm" in n else a for n, a in zip(nodes, arrays, strict=True)}


def _layer(name: str, kinds: dict[str, str]) -> str:
    found = re.match(LAYERS, name)
    assert found, name
    rest = name[found.end() :]
    return f"blk.{found[1]}.{next(new for old, new in kinds.items() if rest.startswith(old))}"


def _constant(node: Any) -> Any:
    return next(n for n in (node.input_value(i).get_node() for i in (0, 1)) if n.get_type_name() == "Constant")
