"""Makes a tiny model with an Eagle-3 head, and torch's draft tokens: tests/data/eagle3_model.tar.xz.

The archive has a Qwen3 of ten layers, and in the folder eagle3 the head that optimum-intel exports. It is trained like
those of tests/makers/zoo_mtp.py, and has its own vocabulary. As in most checkpoints of such heads, the embeddings are
missing: those in the file are zeros. The folder dflash has an untrained DFlash head. answers.json has the texts, and
after each token the likeliest first and second draft token with their log probabilities.

python -m tests.makers.zoo_eagle3 FILE   (needs torch, transformers 5.2.0 and optimum-intel)
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.makers.zoo import pack
from tests.makers.zoo_mtp import PROMPT, draft, texts, train
from tests.makers.zoo_vision import TEXT

SMALL = {**TEXT, "hidden_size": 32, "num_attention_heads": 1}
LAYERS = 10
TAPPED = 2, LAYERS // 2, LAYERS - 3
DRAFT_IDS = [token for token in range(TEXT["vocab_size"]) if token % 6]


def rounded(module: Any) -> Any:
    """Returns the module with weights that the files store exactly."""
    import torch

    with torch.no_grad():
        for weights in module.parameters():
            weights.copy_((weights * 16).round() / 16)
        for name, values in module.named_buffers():
            if name.endswith("inv_freq"):
                values.copy_(values.half())
    return module.float().eval()


def logits(head: Any, hidden: Any, ids: Any) -> tuple[Any, Any]:
    """Returns the head's logits in the model's vocabulary, and its own hidden states, from hidden states and tokens."""
    import torch

    own = []
    hook = head.model.midlayer.register_forward_hook(lambda *call: own.append(call[-1]))
    found = head(input_ids=ids, hidden_states=hidden, use_cache=False).logits
    hook.remove()
    wide = torch.full((*ids.shape, head.vocab_size), -1e4, dtype=found.dtype)
    return wide.index_copy(-1, torch.tensor(DRAFT_IDS), found), own[0]


def second(head: Any, hidden: Any, ids: Any, first: Any) -> Any:
    """Returns the log probabilities of second draft tokens, each after the likeliest first one."""
    import torch

    fused, found = head.model.fc(hidden), []
    _, own = logits(head, hidden[:, :-1], ids[:, 1:])
    for place in range(ids.shape[1] - 1):
        states = torch.cat([fused[:, : place + 1], own[:, place : place + 1]], 1)
        tokens = torch.cat([ids[:, 1 : place + 2], first[:, place : place + 1]], 1)
        found.append(logits(head, states, tokens)[0][:, -1])
    return torch.stack(found, 1).log_softmax(-1).max(-1)


def make(target: Path) -> None:
    import openvino as ov
    import torch
    from optimum.exporters.openvino import export, model_configs
    from optimum.exporters.openvino.model_patcher import LlamaEagle3ForCausalLM, Qwen3DFlashForCausalLM
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(1)
    config = AutoConfig.for_model("qwen3", **{**SMALL, "num_hidden_layers": LAYERS})
    model = rounded(AutoModelForCausalLM.from_config(config))
    kind = AutoConfig.for_model("llama", **{**SMALL, "num_hidden_layers": 1, "draft_vocab_size": len(DRAFT_IDS)})
    head = rounded(LlamaEagle3ForCausalLM(kind))
    head.model.d2t.copy_(torch.tensor(DRAFT_IDS) - torch.arange(len(DRAFT_IDS)))
    head.model.embed_tokens.weight = model.model.embed_tokens.weight
    head.model.embed_tokens.requires_grad_(False)
    with torch.no_grad():
        ids = texts(model)
        states = model(input_ids=ids, output_hidden_states=True).hidden_states
        hidden = torch.cat([states[layer] for layer in TAPPED], -1)
    train(head, lambda *inputs: logits(head, *inputs), hidden, ids)
    with torch.no_grad():
        likely = draft(lambda *inputs: logits(head, *inputs), hidden, ids)[0].log_softmax(-1).max(-1)
        again = second(head, hidden, ids, likely.indices)
    right = (likely.indices[:, :-1] == ids[:, 2:])[:, PROMPT:].float().mean()
    print(f"{right:.0%} of first draft tokens right")
    found = {"prompt": PROMPT, "texts": ids.tolist()}
    for name, drafted in (("", likely), ("second_", again)):
        found[f"{name}tokens"] = drafted.indices.tolist()
        found[f"{name}logprobs"] = [[round(value, 5) for value in line] for line in drafted.values.tolist()]
    head.model.embed_tokens.weight = torch.nn.Parameter(torch.zeros(TEXT["vocab_size"], SMALL["hidden_size"]))
    tapped = {"mask_token_id": 5, "target_layer_ids": TAPPED}
    kind = AutoConfig.for_model("qwen3", **{**SMALL, "num_hidden_layers": 1, "dflash_config": tapped})
    dflash = rounded(Qwen3DFlashForCausalLM(kind))
    files = "config.json", "openvino_model.xml", "openvino_model.bin"
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        head.config.architectures = ["LlamaForCausalLMEagle3"]  # as in checkpoints
        dflash.config.architectures = ["DFlashDraftModel"]
        for network, name, place in (
            (model, "Qwen3", root),
            (head, "Llama", root / "eagle3"),
            (dflash, "Qwen3", root / "dflash"),
        ):
            described = getattr(model_configs, f"{name}OpenVINOConfig")(
                network.config, task="text-generation", use_past=True, use_past_in_inputs=True
            )
            export(network, described, root / "exported.xml", library_name="transformers")
            place.mkdir(exist_ok=True)
            ov.save_model(ov.Core().read_model(root / "exported.xml"), place / files[1], compress_to_fp16=True)
            (place / "config.json").write_text(json.dumps(network.config.to_dict()))
        (root / "answers.json").write_text(json.dumps(found))
        names = [f"{place}{file}" for place in ("", "eagle3/", "dflash/") for file in files] + ["answers.json"]
        pack([root / name for name in names], target, root)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    os.environ["HF_HUB_OFFLINE"] = "1"
    make(Path(sys.argv[1]))
