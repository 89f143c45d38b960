"""python -m tools.random_model FOLDER makes a chat model of about 200 million random parameters: for measuring only.

It has the demo model's tokenizer and chat template, Qwen3's architecture and int8 weights, so it costs what a small
real model costs per step (tens of milliseconds on two cores) and says nothing of meaning. Needs the extra `train`.
The same seed gives the same weights. `python -m bench ... --model_path FOLDER --ignore_eos` measures with it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

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


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.random_model", description=__doc__)
    parser.add_argument("folder", type=Path, help="is made if it is not there")
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--layers", type=int, default=SIZES["num_hidden_layers"], help="12 million parameters each")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    tokenizer = wrapped(TOKENIZER)
    network = networks.build(tokenizer.backend_tokenizer, {**SIZES, "num_hidden_layers": args.layers})
    count = sum(parameter.numel() for parameter in network.parameters())
    print(f"{count / 1e6:.0f} million parameters, {save(network, tokenizer, args.folder):,} bytes in {args.folder}")


if __name__ == "__main__":
    main()
