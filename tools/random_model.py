"""python -m tools.random_model FOLDER makes a chat model of about 200 million random parameters: for measuring only.

It has the demo model's tokenizer and chat template, Qwen3's architecture and int8 weights, so it costs what a small
real model costs per step (tens of milliseconds on two cores) and says nothing of meaning. Needs the extra `train`.
The same seed gives the same weights. `python -m bench ... --model_path FOLDER --ignore_eos` measures with it.

--hybrid: Qwen3.5's architecture instead, with the layers of Qwen3.5-0.8B: of each four, three are gated delta nets.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from tools.demo_model import model as networks
from tools.demo_model.export import save
from tools.demo_model.tokenizer import wrapped

TOKENIZER = Path(__file__).parents[1] / "lean_ovms" / "demo_model" / "tokenizer.json"
SIZES = {
    "hidden_size": 1024,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 3072,
}

HYBRID = {
    "hidden_size": 1024,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "intermediate_size": 3584,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "max_position_embeddings": 32768,
}


def hybrid(tokenizer: PreTrainedTokenizerFast, layers: int) -> PreTrainedModel:
    kinds = ["linear_attention" if layer % 4 < 3 else "full_attention" for layer in range(layers)]
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None}
    sizes = {"vocab_size": len(tokenizer), "num_hidden_layers": layers, "layer_types": kinds, **HYBRID, **ends}
    return AutoModelForCausalLM.from_config(AutoConfig.for_model("qwen3_5_text", **sizes)).float().eval()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.random_model", description=__doc__)
    parser.add_argument("folder", type=Path, help="is made if it is not there")
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--layers", type=int, default=SIZES["num_hidden_layers"], help="12 million parameters each")
    parser.add_argument("--hybrid", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    tokenizer = wrapped(TOKENIZER)
    if args.hybrid:
        network = hybrid(tokenizer, args.layers)
    else:
        network = networks.build(tokenizer.backend_tokenizer, {**SIZES, "num_hidden_layers": args.layers})
    count = sum(parameter.numel() for parameter in network.parameters())
    print(f"{count / 1e6:.0f} million parameters, {save(network, tokenizer, args.folder):,} bytes in {args.folder}")


if __name__ == "__main__":
    main()
