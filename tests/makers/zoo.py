"""Tiny models with random weights, one of each architecture, as OpenVINO IR: the fixtures of tests/data/zoo.

Each is a NAME.tar.xz with config.json, openvino_model.xml and openvino_model.bin, of 35 to 90 KB. Weights are multiples
of 1/16, which compresses well, and large, so that a wrong mask, position or cache changes the tokens. Sliding windows
are shorter than the tests' prompts.

python -m tests.makers.zoo DIR [NAME...]   (needs torch, transformers and optimum-intel)
"""

from __future__ import annotations

import io
import json
import math
import os
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

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
QWEN_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
SHARED_EXPERT = {**QWEN_EXPERTS, "shared_expert_intermediate_size": 32}
CONV = {"layer_types": ["conv", "full_attention"]}
DELTA_NET = {
    "head_dim": 32,
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "layer_types": ["linear_attention", "full_attention"],
}
MAMBA = {
    "layer_types": ["mamba", "attention"],
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_state": 16,
    "mamba_n_groups": 1,
    "mamba_chunk_size": 16,
    "shared_intermediate_size": 32,
}
DENSE = {"num_local_experts": 0, "shared_intermediate_size": 32}
MODELS: dict[str, dict[str, object]] = {
    "afmoe": {"head_dim": 32, "num_dense_layers": 1, "num_local_experts": 4, **QWEN_EXPERTS, **MIXED},
    "arcee": {},
    "cohere": {"logit_scale": 0.25},
    "cohere2": {"logit_scale": 0.25, **MIXED},
    "exaone4": {"sliding_window_pattern": 2, **MIXED},
    "falcon": {"ffn_hidden_size": 32, "new_decoder_architecture": False, "multi_query": True},
    "gemma": {"head_dim": 32},
    "gemma2": {
        "head_dim": 32,
        "query_pre_attn_scalar": 32,
        "tie_word_embeddings": False,
        "attn_logit_softcapping": 4.0,
        **MIXED,
    },
    "gemma3_text": {"head_dim": 32, "query_pre_attn_scalar": 32, "tie_word_embeddings": False, **MIXED},
    "glm": {"head_dim": 32},
    "glm4": {"head_dim": 32},
    "gpt_neox": {"rotary_pct": 0.5},
    "gpt_oss": {"head_dim": 32, **MIXED, **EXPERTS},
    "granite": {"logits_scaling": 2.0, "residual_multiplier": 0.7, "embedding_multiplier": 2.0},
    "granitemoe": EXPERTS,
    "granitemoehybrid": {**MAMBA, **EXPERTS},
    "granitemoehybrid-rope": {"layer_types": ["attention"] * 2, "position_embedding_type": "rope", **DENSE},
    "hunyuan_v1_dense": {"head_dim": 32},
    "lfm2": {"block_auto_adjust_ff_dim": False, **CONV},
    "lfm2_moe": {"num_dense_layers": 1, **QWEN_EXPERTS, **CONV},
    "llama": {},
    "mistral": {"head_dim": 32, **WINDOW},
    "mixtral": EXPERTS,
    "olmo": {},
    "olmo2": {},
    "phi": {"num_key_value_heads": 2},
    "phi3": {"original_max_position_embeddings": 2048},
    "qwen2": {},
    "qwen2_moe": SHARED_EXPERT,
    "qwen3": {"head_dim": 32},
    "qwen3_5_moe_text": {**DELTA_NET, **SHARED_EXPERT},
    "qwen3_5_text": DELTA_NET,
    "qwen3_moe": {"head_dim": 32, **QWEN_EXPERTS},
    "qwen3_next": {**DELTA_NET, **SHARED_EXPERT},
    "smollm3": {"no_rope_layers": [1, 0]},
    "stablelm": {},
    "starcoder2": WINDOW,
}
"""The differences from COMMON by transformers' model_type; the part after a "-" distinguishes variants.

optimum-intel 2.2.0 can export each model only with some versions of transformers. Made with 5.2.0: lfm2, lfm2_moe,
qwen3_5_text, qwen3_5_moe_text; with 4.57.6: exaone4, gemma, glm, glm4, qwen3_next; with 5.0 or older: gemma2,
gemma3_text; with 5.5.4: the others.
"""


def network(name: str) -> Any:
    """Returns the model in torch. With the same versions of torch and transformers, the weights are always the same."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(1)
    config = AutoConfig.for_model(name.partition("-")[0], **{**COMMON, **MODELS[name]})
    model = AutoModelForCausalLM.from_config(config, **attention(config)).float().eval()
    with torch.no_grad():
        for weights in model.parameters():
            # With equal scores in afmoe's router, any experts would be right.
            if weights.ndim > 1 and not weights.any():
                weights.normal_(std=0.3)
            weights.copy_((weights * 16).round() / 16)
    return model


def attention(config: Any) -> dict[str, str]:
    """Returns the attention implementation for from_config: torch's own operation, the default, ignores a soft cap."""
    return {"attn_implementation": "eager"} if getattr(config, "attn_logit_softcapping", None) else {}


def make(name: str, target: Path) -> None:
    """Writes NAME.tar.xz into the folder."""
    import openvino as ov
    from optimum.intel import OVModelForCausalLM

    model = network(name)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        exported = OVModelForCausalLM.from_pretrained(folder, export=True, load_in_8bit=False, compile=False)
        ov.save_model(exported.model, Path(folder) / "openvino_model.xml", compress_to_fp16=True)
        (Path(folder) / "config.json").write_text(json.dumps(_finite(model.config.to_dict()), default=str))
        files = ("config.json", "openvino_model.xml", "openvino_model.bin")
        pack([Path(folder) / file for file in files], target / f"{name}.tar.xz")


def pack(files: Iterable[Path], archive: Path, root: Path | None = None) -> None:
    """Writes an archive without times and owners, so that the same model gives the same file.

    Names in it are relative to `root`; if that is None, they are only the file names.
    """
    with tarfile.open(archive, "w:xz", preset=9) as packed:
        for path in files:
            data = path.read_bytes()
            entry = tarfile.TarInfo(str(path.relative_to(root)) if root else path.name)
            entry.size = len(data)
            packed.addfile(entry, io.BytesIO(data))


def record(file: Path, names: Iterable[str], entry: Callable[[str], Any], usage: str) -> int:
    """Records the models of the command line, or all, in a JSON file. Other models keep their entries.

    Args:
        file: The file of the records.
        names: The names of all models.
        entry: Makes the record of a model.
        usage: The message for wrong usage.

    Returns:
        The exit status: 2 for wrong usage.
    """
    argv, every = sys.argv[1:], [*names]
    if not {*argv} <= {*every}:
        print(usage, file=sys.stderr)
        return 2
    known = json.loads(file.read_text()) if file.is_file() else {}
    for name in argv or every:
        known[name] = entry(name)
        print(name, flush=True)
    lines = [f"{json.dumps(each)}: {json.dumps(known[each], separators=(',', ':'))}" for each in sorted(known)]
    file.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    return 0


def _finite(value: Any) -> Any:
    """Removes infinity (granitemoehybrid's time_step_limit), which openvino_genai's JSON parser does not support."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def main(argv: list[str]) -> int:
    """Runs the command line. Returns the exit status: 2 for wrong usage."""
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
    os.environ["HF_HUB_OFFLINE"] = "1"
    sys.exit(main(sys.argv[1:]))
