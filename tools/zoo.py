"""Tiny models with random weights, one of each architecture, as OpenVINO IR: the fixtures of tests/data/zoo.

Each is a NAME.tar.xz with config.json, openvino_model.xml and openvino_model.bin, of 35 to 65 KB. Weights are multiples
of 1/16, which compresses well, and large, so that a wrong mask, position or cache changes the tokens. Sliding windows
are shorter than the tests' prompts.

python -m tools.zoo DIR [NAME...]   (needs torch, transformers and optimum-intel)
"""

from __future__ import annotations

import io
import json
import os
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

COMMON = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 2048,
    "initializer_range": 0.3,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
WINDOW = {"sliding_window": 24}
MIXED = {**WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
MODELS: dict[str, dict[str, object]] = {
    "cohere": {"logit_scale": 0.25},
    "cohere2": {"logit_scale": 0.25, **MIXED},
    "gemma2": {"head_dim": 32, "query_pre_attn_scalar": 32, "tie_word_embeddings": False, **MIXED},
    "gemma3_text": {"head_dim": 32, "query_pre_attn_scalar": 32, "tie_word_embeddings": False, **MIXED},
    "gpt_neox": {"rotary_pct": 0.5},
    "gpt_oss": {"head_dim": 32, **MIXED, **EXPERTS},
    "granite": {"logits_scaling": 2.0, "residual_multiplier": 0.7, "embedding_multiplier": 2.0},
    "llama": {},
    "mistral": {"head_dim": 32, **WINDOW},
    "olmo": {},
    "olmo2": {},
    "phi3": {"original_max_position_embeddings": 2048},
    "qwen2": {},
    "qwen3": {"head_dim": 32},
    "qwen3_moe": {"head_dim": 32, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    "smollm3": {"no_rope_layers": [1, 0]},
}
"""What differs from COMMON, by model_type of transformers' configuration. optimum-intel 2.2.0 exports gemma2 and
gemma3_text with transformers up to 5.0 only."""


def network(name: str) -> Any:
    """The model in torch. The same weights every time, with one version of torch and transformers."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(1)
    config = AutoConfig.for_model(name, **{**COMMON, **MODELS[name]})
    model = AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():
        for weights in model.parameters():
            weights.copy_((weights * 16).round() / 16)
    return model


def make(name: str, target: Path) -> None:
    """Write NAME.tar.xz into the folder."""
    import openvino as ov
    from optimum.intel import OVModelForCausalLM

    model = network(name)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        exported = OVModelForCausalLM.from_pretrained(folder, export=True, load_in_8bit=False, compile=False)
        ov.save_model(exported.model, Path(folder) / "openvino_model.xml", compress_to_fp16=True)
        (Path(folder) / "config.json").write_text(json.dumps(model.config.to_dict(), default=str))
        with tarfile.open(target / f"{name}.tar.xz", "w:xz", preset=9) as archive:
            for file in ("config.json", "openvino_model.xml", "openvino_model.bin"):
                data = (Path(folder) / file).read_bytes()
                entry = tarfile.TarInfo(file)  # no times and owners: the same model gives the same file
                entry.size = len(data)
                archive.addfile(entry, io.BytesIO(data))


def main(argv: list[str]) -> int:
    """The exit status: 2 for wrong use."""
    if not argv or not set(argv[1:]) <= set(MODELS):
        print(__doc__, file=sys.stderr)
        return 2
    target = Path(argv[0])
    target.mkdir(parents=True, exist_ok=True)
    for name in argv[1:] or MODELS:
        make(name, target)
        print(name, (target / f"{name}.tar.xz").stat().st_size, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
