"""Makes heads for multi-token prediction for models in tests/data/zoo_vision, and torch's draft tokens.

Each is a NAME.tar.xz in the folder heads there, with the network that optimum-intel exports. A head is trained on a few
texts of its model until most of its draft tokens are right. answers.json has these texts, with the likeliest first
draft token after each token and its log probability, from the head in torch.

python -m tests.makers.zoo_mtp DIR [NAME...]   (needs torch, transformers 5.2.0 and optimum-intel, as for these models)
"""

from __future__ import annotations

import copy
import json
import os
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tests.makers.zoo import pack
from tests.makers.zoo_vision import FIRST_LATER, SPECIAL, network

NAMES = ("qwen3_5", "qwen3_5_moe")
TEXTS, PROMPT, LENGTH, ROUNDS = 4, 40, 100, 150

Compute = Callable[[Any, Any], tuple[Any, Any]]
"""A head: computes logits and its own hidden states from hidden states and tokens."""


def texts(model: Any) -> Any:
    """Returns random prompts with the model's greedy answers, [texts, tokens]."""
    import torch

    torch.manual_seed(2)
    ids = torch.randint(len(SPECIAL), FIRST_LATER, (TEXTS, PROMPT))
    for _ in range(LENGTH - PROMPT):
        following = model(input_ids=ids).logits[:, -1].argmax(-1)
        ids = torch.cat([ids, following[:, None]], 1)
    return ids


def logits(model: Any, head: Any, hidden: Any, ids: Any) -> tuple[Any, Any]:
    """Returns the head's logits and its own hidden states, from hidden states and the tokens after these."""
    import torch

    places = torch.arange(ids.shape[1])[None].expand(ids.shape)
    found = head(hidden, model.get_input_embeddings()(ids), torch.ones_like(ids), places)["last_hidden_state"]
    return model.lm_head(found), found


def draft(compute: Compute, hidden: Any, ids: Any) -> tuple[Any, Any]:
    """Returns the logits of the first draft token after each token but the last, and of the second.

    All second tokens are computed at once, so each sees the head's own hidden states in place of the model's.
    """
    first, again = compute(hidden[:, :-1], ids[:, 1:])
    second, _ = compute(again[:, :-1], ids[:, 2:])
    return first, second


def train(head: Any, compute: Compute, hidden: Any, ids: Any) -> None:
    import torch

    optimizer = torch.optim.Adam(head.parameters(), 3e-3)
    for _ in range(ROUNDS):
        first, second = draft(compute, hidden, ids)
        loss = torch.nn.functional.cross_entropy(first[:, :-1].flatten(0, 1), ids[:, 2:].flatten())
        loss = loss + torch.nn.functional.cross_entropy(second[:, :-1].flatten(0, 1), ids[:, 3:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        for weights in head.parameters():
            weights.copy_(weights.half())


def make(name: str, target: Path) -> dict[str, Any]:
    """Writes NAME.tar.xz into the folder. Returns its entry in answers.json."""
    import openvino as ov
    import torch
    from optimum.exporters.openvino import export, model_configs, model_patcher

    kind = "Qwen3_5Moe" if "moe" in name else "Qwen3_5"
    model = network(name)
    with torch.no_grad():
        ids = texts(model)
        hidden = model.model(input_ids=ids).last_hidden_state
    torch.manual_seed(3)
    head = getattr(model_patcher, f"{kind}MTPModule")(model.config.text_config).float()
    for weights in head.parameters():
        if weights.ndim > 1:
            torch.nn.init.normal_(weights, std=0.1)
    compute = partial(logits, model, head)
    train(head, compute, hidden, ids)
    with torch.no_grad():
        first = draft(compute, hidden, ids)[0].log_softmax(-1).max(-1)
    print(f"{name}: {(first.indices[:, :-1] == ids[:, 2:])[:, PROMPT:].float().mean():.0%} of first draft tokens right")
    head.config = copy.deepcopy(head.config)
    head.config.model_type = "qwen3_5_mtp"  # like the exporter's own from_pretrained_model, which reads a checkpoint
    with tempfile.TemporaryDirectory() as folder:
        exported, small = Path(folder) / "exported.xml", Path(folder) / "openvino_mtp_model.xml"
        export(head.eval(), getattr(model_configs, f"{kind}MTPOpenVINOConfig")(model.config), exported)
        ov.save_model(ov.Core().read_model(exported), small, compress_to_fp16=True)
        pack([small.with_suffix(".bin"), small], target / f"{name}.tar.xz")
    logprobs = [[round(value, 5) for value in line] for line in first.values.tolist()]
    return {"prompt": PROMPT, "texts": ids.tolist(), "tokens": first.indices.tolist(), "logprobs": logprobs}


if __name__ == "__main__":
    if len(sys.argv) < 2 or not set(sys.argv[2:]) <= set(NAMES):
        sys.exit(__doc__)
    os.environ["HF_HUB_OFFLINE"] = "1"
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    found = {each: make(each, folder) for each in sys.argv[2:] or NAMES}
    (folder / "answers.json").write_text(json.dumps(found) + "\n")
