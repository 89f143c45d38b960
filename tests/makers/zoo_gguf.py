"""Tiny GGUF files with random weights, one of each architecture, and the answers of transformers in torch.

A file is written from tests/data/zoo/gguf.json, which has its metadata, the shapes of its tensors and the answers. The
weights depend on the tensors' names, so they are not stored. They are multiples of 1/16, exact in F16, and large, so
that a wrong mask, position or cache changes the tokens. Sliding windows are shorter than the prompts.

python -m tests.makers.zoo_gguf [NAME...]   records the answers again (needs torch, transformers and the package gguf;
models of which transformers has no code need llama-server, whose path is in the environment variable LLAMA_SERVER)
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from math import inf
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import gguf
import numpy as np

from lean_ovms.repository.model_file import parts
from tests.makers import zoo
from tests.makers.make_gguf import pack
from tests.makers.zoo import COMMON, attention
from tests.makers.zoo_gguf_models import EXPERTS, FACTORS, HEADS, KEY_HEADS, MODELS, OF_LLAMA, VALUE_HEADS, XIELU
from tests.makers.zoo_torch import TOKENS, Answer, prompts

FILE = Path(__file__).parents[2] / "tests" / "data" / "zoo" / "gguf.json"
OWN_CODE = ("jina_bert", "jina_bert-code", "nomic_bert-moe")
"""Models that transformers does not have. They were recorded once (README.md)."""
BIDIRECTIONAL = ("lfm2-embedding", "llama-embed")
"""Models of which all tokens see each other, unlike in transformers."""
EMBEDDING = (
    *("bert", "eurobert", "gemma3_text-embedding", "jina_embeddings_v3", "modernbert", "modernbert-biased"),
    *("nomic_bert", *BIDIRECTIONAL, *OWN_CODE),
)
"""Models that generate no text. The vectors of their last tokens are recorded."""
POOLED = ("gemma2", "gemma3_text", "lfm2", "qwen3", *EMBEDDING)
"""Models of which these vectors are recorded."""
ADAPTED = ("llama", "qwen3")
"""Models whose answers with an adapter are recorded."""
RANK, STRENGTH = 4, 0.5
FOLDED = {"minicpm3": {"token_embd": 12.0, "attn_output": 1.4 / 2**0.5, "ffn_down": 1.4 / 2**0.5, "output": 256 / 64}}
"""Factors that the networks of an architecture apply, and which are in the weights of the model in torch."""
ELEMENTS = ("jamba", "mamba")
"""Architectures in whose state spaces each element has a state of its own (Mamba-1)."""
UNGATED = ("bailingmoe", "deepseek")
"""Architectures whose shared experts have no gate, unlike those of the model in torch."""
PROJECTIONS = {
    **{f"self_attn.{letter}_proj": f"attn_{letter}" for letter in "qkv"},
    "self_attn.o_proj": "attn_output",
    **{f"mlp.{name}_proj": f"ffn_{name}" for name in ("gate", "up", "down")},
}
"""Layers by their names in torch, with their names in files."""
DENSE = {"gemma3_text-embedding": {"dense_2.weight": [96, 64], "dense_3.weight": [64, 96]}}
"""Projections after the hidden states, which are not parameters in torch: rows and columns."""
PERMUTED = (
    *("arcee", "bailingmoe", "deepseek", "granite", "granitehybrid", "granitemoe", "internlm2", "llama", "minicpm"),
    *("baichuan", "llama-embed", "mistral3", "olmo", "smollm3", "xverse"),
)
"""Architectures in whose files the rows of queries and keys have another order than in transformers: pairs are
adjacent."""
FORWARD = ((1, "up"), (2, "down"))
RENAMED = {
    **{f"post_attention_layernorm.{kind}": f"attn_output_norm.{kind}" for kind in ("weight", "bias")},
    **{f"post_mlp_layernorm.{kind}": f"layer_output_norm.{kind}" for kind in ("weight", "bias")},
    **{f"self_attn.{letter}_proj.{kind}": f"attn_qkv.{kind}" for letter in "qkv" for kind in ("weight", "bias")},
    **{f"mlp.fc{number}.{kind}": f"ffn_{part}.{kind}" for number, part in FORWARD for kind in ("weight", "bias")},
}
"""The tensors of NomicBERT and Jina's third model by the suffixes of their names in torch, which the package gguf does
not know."""
ROUTERS = {".router.scale": "ffn_gate_inp.scale", ".router.per_expert_scale": "ffn_down_exps.scale"}
"""The factors of Gemma 4's routers by the suffixes of their names in torch."""
SCALE = "layer_scalar"
"""The suffix of the name of a factor by which the results of a Gemma 4 layer are multiplied."""
CORRECTIONS = ("e_score_correction_bias", "expert_bias")
"""The suffixes of the names of terms that are added to the weights of experts when these are selected."""
CHARACTERS = [chr(code) for code in range(ord("!"), ord("!") + COMMON["vocab_size"] - 3)]  # type: ignore[operator]
WORDS = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "qwen2",
    "tokenizer.ggml.tokens": ["<s>", "</s>", "<pad>", *CHARACTERS[:-1], "AB"],
    "tokenizer.ggml.token_type": [3, 3, 3] + [1] * len(CHARACTERS),
    "tokenizer.ggml.merges": ["A B"],
    "tokenizer.ggml.bos_token_id": 0,
    "tokenizer.ggml.eos_token_id": 1,
    "tokenizer.ggml.padding_token_id": 2,
}


@cache
def recorded() -> dict[str, Any]:
    """Returns the entries of all models: architecture, metadata, shapes of tensors and answers."""
    known: dict[str, Any] = json.loads(FILE.read_text())
    return known


def weights(name: str) -> dict[str, np.ndarray]:
    """Returns the tensors of a recorded model."""
    return {tensor: values(tensor, shape) for tensor, shape in recorded()[name]["tensors"].items()}


def write(
    path: Path, name: str, kind: str = "F16", tensors: dict[str, np.ndarray] | None = None, **changes: Any
) -> Path:
    """Writes the file of a recorded model.

    Args:
        path: The file to write.
        name: The model.
        kind: The type of the matrices.
        tensors: The tensors of the file; by default those of the model.
        **changes: Other metadata by key; None leaves a key out.

    Returns:
        The path.
    """
    known, tensors = recorded()[name], weights(name) if tensors is None else tensors
    return pack(path, known["architecture"], {**known["metadata"], **WORDS, **changes}, tensors.items(), kind)


def write_parts(first: Path, name: str) -> None:
    """Writes the file of a recorded model like llama-gguf-split: all metadata in the first part, tensors in all
    parts."""
    known = recorded()[name]
    names, files = list(known["tensors"]), parts(first)
    for number, file in enumerate(files):
        split = {"split.no": number, "split.count": len(files), "split.tensors.count": len(names)}
        tensors = {tensor: values(tensor, known["tensors"][tensor]) for tensor in names[number :: len(files)]}
        metadata = {} if number else {**known["metadata"], **WORDS}
        pack(file, known["architecture"], {**metadata, **split}, tensors.items(), "F16")


def values(tensor: str, shape: list[int]) -> np.ndarray:
    """Returns the weights of a tensor, which are cached, and the same with every version of numpy."""
    return _values(tensor, tuple(shape))


@cache
def _values(tensor: str, shape: tuple[int, ...]) -> np.ndarray:
    for factors in FACTORS.values():
        if tensor in factors:
            return np.asarray(factors[tensor], np.float32)
    dice = np.random.RandomState(zlib.crc32(tensor.encode()))
    ones = ("norm" in tensor or "layer_output_scale" in tensor) and tensor.endswith("weight")
    data = dice.standard_normal(shape) * 0.3 + (1.0 if ones else 0.0)
    if tensor.endswith("altup_router.weight"):  # of inputs that are divided by their width
        data *= 16
    if tensor.endswith("ssm_a"):
        data = -abs(data) - 0.0625
    return np.asarray((data * 16).round() / 16, np.float32)


def network(name: str) -> tuple[Any, dict[str, list[int]]]:
    """Returns a model in torch with the weights of its file, and the shapes of the file's tensors."""
    import torch
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

    architecture, changes, _ = MODELS[name]
    sizes: dict[str, Any] = {**COMMON, **HEADS, **changes}
    config = AutoConfig.for_model(name.partition("-")[0], **sizes)
    kind = AutoModel if name in EMBEDDING else AutoModelForCausalLM
    model = kind.from_config(config, **attention(config)).float().eval()
    tensors: dict[str, list[int]] = {}
    for module in model.modules() if name in BIDIRECTIONAL else ():
        if hasattr(module, "is_causal"):
            module.is_causal = False
        if isinstance(module, torch.nn.Conv1d):
            module.padding = (module.kernel_size[0] // 2,)
    if name == "deepseek_v2":  # transformers 5.5.4 reads this attribute, but does not set it
        model.model.layers[-1].mlp.num_experts = config.n_routed_experts
    if name == "nemotron_h":  # transformers has this MLP only as a part of layers with experts
        from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHMLP

        for block in model.model.layers:
            block.mixer = NemotronHMLP(config) if block.block_type == "moe" else block.mixer

    if architecture in UNGATED:
        for layer in model.model.layers:
            layer.mlp.shared_expert_gate = torch.nn.Threshold(inf, inf)  # whose sigmoid is 1

    def tensor(name: str, shape: list[int]) -> np.ndarray:
        tensors[name] = shape
        return values(name, shape)

    for tensor_name, factors in FACTORS.get(name, {}).items():
        tensors[tensor_name] = [len(factors)]
    tensors.update(DENSE.get(name, {}))
    number = next(number for number, text in gguf.MODEL_ARCH_NAMES.items() if text == architecture)
    names = gguf.get_tensor_name_map(number, config.num_hidden_layers)
    with torch.no_grad():
        biases = [(each, values) for each, values in model.named_buffers() if each.endswith((*CORRECTIONS, SCALE))]
        for torch_name, weights in [*model.named_parameters(), *biases]:
            if torch_name.startswith("pooler."):
                continue
            usual = (
                torch_name.replace("model.", "backbone.", 1) if architecture.startswith("nemotron_h") else torch_name
            )
            usual = f"model.{usual}" if name == "lfm2-embedding" else usual
            usual = usual.removeprefix("transformer.") if architecture == "bloom" else usual
            target = names.get_name(usual, try_suffixes=(".weight", ".bias"))
            found = from_gguf(torch_name, target, list(weights.shape), architecture, config, tensor)
            weights.copy_(torch.tensor(found))
    tied = model.config.tie_word_embeddings or name in EMBEDDING
    if not tied and "output.weight" not in tensors:
        raise ValueError(f"{name}: no output layer")
    return model, tensors


def record(name: str) -> dict[str, Any]:
    """Returns the entry of a model: the answers of transformers with these weights."""
    if name in OF_LLAMA:
        return record_of_llama(name)
    import torch

    architecture, _, more = MODELS[name]
    model, tensors = network(name)
    numbers = metadata(model.config, architecture, more)
    known = {"architecture": architecture, "metadata": numbers, "tensors": tensors}
    if name not in EMBEDDING:
        known["answers"] = answers(model)
    if name in POOLED:
        known["vectors"] = vectors(name, model)
    if name in ADAPTED:
        with torch.no_grad():
            for layer, (down, up) in adapter(tensors).items():
                model.get_submodule(layer).weight += STRENGTH * torch.tensor(up @ down)
        known["adapted"] = answers(model)
    return known


def record_of_llama(name: str) -> dict[str, Any]:
    """Returns the entry of a model that llama-server answers."""
    architecture, base, more, changes = OF_LLAMA[name]
    known = recorded()[base]
    layers = range(changes.get("block_count", 2))
    more = {tensor.replace("*", str(layer)): shape for layer in layers for tensor, shape in more.items()} | {
        tensor: shape for tensor, shape in more.items() if "*" not in tensor
    }
    copied = {
        tensor.replace("blk.1.", f"blk.{max(layer, 1)}."): shape
        for layer in layers
        for tensor, shape in known["tensors"].items()
    }
    tensors = {tensor: shape for tensor, shape in (copied | more).items() if shape is not None}
    numbers = {key.split(".", 1)[1]: value for key, value in known["metadata"].items()} | changes
    metadata = {f"{architecture}.{key}": value for key, value in numbers.items() if value is not None}
    with tempfile.TemporaryDirectory() as folder:
        weights = ((tensor, values(tensor, shape)) for tensor, shape in tensors.items())
        path = pack(Path(folder) / "x.gguf", architecture, {**metadata, **WORDS}, weights, "F32")
        with llama_server(path) as ask:
            found = [_answer_of_llama(ask, ids) for ids in prompts()]
    return {"architecture": architecture, "metadata": metadata, "tensors": tensors, "answers": found}


@contextmanager
def llama_server(path: Path) -> Iterator[Callable[[list[int]], tuple[int, float]]]:
    """Runs llama-server, the program in the environment variable LLAMA_SERVER, with a file.

    Yields a function that returns the most likely token after a text, and its log probability.
    """
    options = ["--port", "9581", "-np", "1", "-c", "2048", "-fa", "off", "-ctk", "f32", "-ctv", "f32", "--no-warmup"]
    process = subprocess.Popen([os.environ["LLAMA_SERVER"], "-m", str(path), *options], stderr=subprocess.DEVNULL)
    address = "http://127.0.0.1:9581"

    def ask(ids: list[int]) -> tuple[int, float]:
        body = {"prompt": ids, "n_predict": 1, "temperature": 0, "n_probs": 1, "cache_prompt": False, "samplers": []}
        request = Request(f"{address}/completion", json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urlopen(request) as answer:
            [best] = json.load(answer)["completion_probabilities"][0]["top_logprobs"]
        return best["id"], best["logprob"]

    try:
        while not _is_ready(f"{address}/health"):
            if process.poll() is not None:
                raise RuntimeError("llama-server did not start")
            time.sleep(0.1)
        yield ask
    finally:
        process.terminate()
        process.wait()


def _is_ready(address: str) -> bool:
    try:
        with urlopen(address):
            return True
    except OSError:
        return False


def _answer_of_llama(ask: Callable[[list[int]], tuple[int, float]], ids: list[int]) -> Answer:
    text, logprobs = list(ids), list[float]()
    for _ in range(TOKENS):
        token, logprob = ask(text)
        text.append(token)
        logprobs.append(round(logprob, 4))
    return text[len(ids) :], logprobs


def metadata(config: Any, architecture: str, more: dict[str, Any]) -> dict[str, Any]:
    """Returns the sizes of a model as metadata. `config` is that of transformers, `more` has further values by key."""
    numbers = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": head_size(config),
        "attention.value_length": head_size(config),
        "rope.dimension_count": head_size(config),
        "attention.layer_norm_rms_epsilon": getattr(config, "rms_norm_eps", 1e-5),
        "rope.freq_base": float(rope_base(config)),
        "vocab_size": config.vocab_size,
        **{key: getattr(config, field) for key, field in EXPERTS if hasattr(config, field)},
        **more,
    }
    known = {key: value for key, value in numbers.items() if value is not None}
    return {key if key in XIELU else f"{architecture}.{key}": value for key, value in known.items()}


def head_size(config: Any) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def rope_base(config: Any) -> float:
    found = getattr(config, "rope_parameters", None) or {"rope_theta": 10000.0}
    return (found.get("full_attention") or found)["rope_theta"]


def from_gguf(
    torch_name: str,
    target: str | None,
    shape: list[int],
    architecture: str,
    config: Any,
    tensor: Callable[[str, list[int]], np.ndarray],
) -> np.ndarray:
    """Returns the values of a torch parameter. `tensor` returns those of a tensor of the file by name and shape."""

    if ".act_fn.alpha" in torch_name:
        return np.asarray(XIELU[f"xielu.{torch_name.split('.')[-1]}"][int(torch_name.split(".")[2])], np.float32)
    if architecture == "gpt2" and torch_name.endswith(("attn.weight", "proj.weight", "fc.weight")):
        return tensor(target or "", shape[::-1]).T
    if torch_name.split(".")[-2] == "query_key_value":
        return by_heads(tensor(target or "", shape), architecture, config)
    if torch_name.endswith("kv_b_proj.weight") and architecture == "deepseek2":
        layer, heads, (_, rank) = torch_name.split(".")[2], config.num_attention_heads, shape
        keys = tensor(f"blk.{layer}.attn_k_b.weight", [heads, rank, config.qk_nope_head_dim])
        rows = [keys.swapaxes(1, 2), tensor(f"blk.{layer}.attn_v_b.weight", [heads, config.v_head_dim, rank])]
        return np.concatenate(rows, 1).reshape(shape)
    if torch_name.endswith(tuple(ROUTERS)):
        _, _, layer, _, part = torch_name.split(".")
        return tensor(f"blk.{layer}.{ROUTERS[f'.router.{part}']}", shape)
    if ".experts.gate_up_proj" in torch_name and architecture == "gemma4":
        return tensor(f"blk.{torch_name.split('.')[2]}.ffn_gate_up_exps.weight", shape)
    if ".experts." in torch_name and architecture == "llama4":
        return experts(torch_name, [shape[0], *shape[:0:-1]], False, tensor).swapaxes(1, 2)
    if ".experts." in torch_name:
        return experts(torch_name, shape, architecture == "gpt-oss", tensor)
    if target is None:
        target = RENAMED.get(torch_name.split(".", 2)[-1])
        target = target and f"blk.{torch_name.split('.')[1]}.{target}"
    if target and ".attn_qkv." in target and architecture in ("jina-bert-v3", "nomic-bert"):
        place = "qkv".index(torch_name.split(".")[-2][0])
        return tensor(target, [3 * shape[0], *shape[1:]])[place * shape[0] : (place + 1) * shape[0]]
    if ".altup_" in torch_name:
        name = torch_name.split(".")[1].replace("jections", "j").replace("unembed", "unembd")
        return tensor(f"{name}.weight", [config.altup_num_inputs - 1, *shape])[int(torch_name.split(".")[2])]
    if torch_name.endswith("altup.correct_output_scale"):
        return tensor(f"{target}.weight", shape)
    if torch_name.endswith(SCALE):
        return tensor(f"blk.{torch_name.split('.')[2]}.layer_output_scale.weight", shape)
    if torch_name.endswith(CORRECTIONS):
        return tensor(f"blk.{torch_name.split('.')[2]}.exp_probs_b.bias", shape)
    if torch_name.endswith("input_linear.weight"):
        end, axis = ("shexp", 0) if "shared" in torch_name else ("exps", 1)
        half = [size // 2 if place == axis else size for place, size in enumerate(shape)]
        names = [f"blk.{torch_name.split('.')[2]}.ffn_{part}_{end}.weight" for part in ("gate", "up")]
        return np.concatenate([tensor(name, half) for name in names], axis)
    if (
        architecture in ("bailingmoe2", "chatglm")
        and (letter := torch_name.split(".")[-2][0]) in "qkv"
        and "proj" in torch_name
    ):
        sizes = [config.head_dim * count for count in (config.num_attention_heads, *[config.num_key_value_heads] * 2)]
        end = torch_name.split(".")[-1]
        joined = tensor(f"blk.{torch_name.split('.')[2]}.attn_qkv.{end}", [sum(sizes), *shape[1:]])
        return np.split(joined, np.cumsum(sizes)[:-1])["qkv".index(letter)]
    if torch_name.endswith("A_log") and architecture == "qwen3next":
        return np.log(-tensor(target or "", shape))
    if ".linear_attn." in torch_name and architecture != "qwen3next":
        return delta_net(torch_name, target, shape, tensor)
    if architecture in ELEMENTS and torch_name.endswith((".A_log", ".conv1d.weight")):
        data = tensor(target or "", [shape[0], shape[-1]])
        return np.log(-data) if torch_name.endswith("A_log") else data[:, None]
    if torch_name.endswith(".dt_bias") or (
        target and ".ssm_" in target and architecture not in ("qwen3next", *ELEMENTS)
    ):
        return mamba(torch_name, target, shape, tensor, getattr(config, "n_groups", 1))
    if architecture == "nemotron" and target and target.endswith("norm.weight"):
        return tensor(target, shape) - 1
    if architecture in ("qwen35", "qwen35moe", "qwen3next") and "norm" in target and "ssm_norm" not in target:
        return tensor(target, shape) - 1
    if target and target.endswith(("shortconv.conv.weight", "ssm_conv1d.weight")):
        return tensor(target, [shape[0], shape[2]])[:, None]
    if torch_name.endswith(".sinks"):
        target = f"{target}.weight"
    if target is None:
        raise ValueError(f"GGUF has no name for {torch_name}")
    data = tensor(target, shape)
    if architecture.startswith("gemma") and architecture not in ("gemma3n", "gemma4") and "norm" in target:
        return data - 1
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    part = target.split(".")[-2]
    if architecture in PERMUTED and part in heads:
        rows = data.reshape(heads[part], -1, 2, *shape[1:])
        return rows.swapaxes(1, 2).reshape(shape)
    return data * np.float32(FOLDED.get(architecture, {}).get(part, 1.0))


def by_heads(data: np.ndarray, architecture: str, config: Any) -> np.ndarray:
    """Returns the rows of queries, keys and values in the order of GPT-NeoX or Falcon: in groups that share a key."""
    heads = config.num_attention_heads
    groups = (
        heads if architecture in ("bloom", "gptneox") else config.num_kv_heads if config.new_decoder_architecture else 1
    )
    size = config.hidden_size // heads
    parts = np.split(data, [heads * size, (heads + groups) * size])
    parts = [part.reshape(groups, -1, *data.shape[1:]) for part in parts]
    return np.concatenate(parts, 1).reshape(data.shape)


def delta_net(
    torch_name: str, target: str | None, shape: list[int], tensor: Callable[[str, list[int]], np.ndarray]
) -> np.ndarray:
    """Returns the values of a parameter of a gated delta net, whose value heads have another order in files."""
    layer, part = torch_name.split(".")[2], torch_name.split(".", 4)[-1]
    if part == "dt_bias":
        return grouped(tensor(f"blk.{layer}.ssm_dt.bias", shape), 0, 1)
    assert target is not None
    if part == "A_log":
        return np.log(-grouped(tensor(target, shape), 0, 1))
    data = tensor(target, [shape[0], shape[-1]] if part == "conv1d.weight" else shape)
    if part in ("in_proj_qkv.weight", "conv1d.weight"):
        keys = shape[0] // 2  # as many rows as those of values
        data = np.concatenate([data[:keys], grouped(data[keys:], 0, keys // VALUE_HEADS)])
        return data[:, None] if part == "conv1d.weight" else data
    if part == "out_proj.weight":
        return grouped(data, 1, shape[1] // VALUE_HEADS)
    return data if part == "norm.weight" else grouped(data, 0, shape[0] // VALUE_HEADS)


def mamba(
    torch_name: str, target: str | None, shape: list[int], tensor: Callable[[str, list[int]], np.ndarray], groups: int
) -> np.ndarray:
    """Returns the values of a parameter of selective state spaces, whose heads are in `groups`."""
    layer, part = torch_name.split(".")[2], torch_name.split(".", 4)[-1]
    if part == "dt_bias":
        return tensor(f"blk.{layer}.ssm_dt.bias", shape)
    assert target is not None
    if part in ("A_log", "D"):
        data = tensor(target, [*shape, 1])[:, 0]
        return np.log(-data) if part == "A_log" else data
    if part == "conv1d.weight":
        return tensor(target, [shape[0], shape[-1]])[:, None]
    by_group = [groups, shape[0] // groups] if part == "norm.weight" else shape
    return tensor(target, by_group).reshape(shape)


def grouped(data: np.ndarray, axis: int, size: int) -> np.ndarray:
    """Returns rows or columns of heads of this size. Those with the same key head become adjacent."""
    before, behind = list(data.shape[:axis]), list(data.shape[axis + 1 :])
    parts = data.reshape([*before, VALUE_HEADS // KEY_HEADS, KEY_HEADS, size, *behind])
    return parts.swapaxes(axis, axis + 1).reshape(data.shape)


def experts(
    torch_name: str, shape: list[int], moved: bool, tensor: Callable[[str, list[int]], np.ndarray]
) -> np.ndarray:
    """Returns the values of a layer's experts in torch. With `moved`, rows of gate and up projection alternate, after
    columns."""
    _, _, layer, *_, part = torch_name.split(".")
    kind = "bias" if part.endswith("_bias") else "weight"
    names = [f"blk.{layer}.ffn_{name}_exps.{kind}" for name in ("gate", "up", "down") if name in part]
    matrix = moved and kind == "weight"
    shape = [shape[0], shape[2], shape[1]] if matrix else shape
    found = [tensor(name, [shape[0], shape[1] // len(names), *shape[2:]]) for name in names]
    data = np.stack(found, 2).reshape(shape) if moved else np.concatenate(found, 1)
    return data.swapaxes(1, 2) if matrix else data


def adapter(tensors: dict[str, list[int]]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Returns an adapter of all layers: the matrices A and B by the layers' names in torch. `tensors` has shapes by
    name."""
    found = {}
    for name, shape in tensors.items():
        for place, part in PROJECTIONS.items():
            if name.endswith(f".{part}.weight"):
                layer = f"model.layers.{name.split('.')[1]}.{place}"
                found[layer] = values(f"{layer}.A", [RANK, shape[1]]), values(f"{layer}.B", [shape[0], RANK])
    return found


def answers(model: Any) -> list[Answer]:
    """Returns a torch model's tokens and log probabilities. Each token is computed from the whole text before it."""
    import torch

    cached = needs_cache(model.config)
    found = list[Answer]()
    for ids in prompts():
        text, logprobs = list(ids), list[float]()
        with torch.no_grad():
            for _ in range(TOKENS):
                line = model(torch.tensor([text]), use_cache=cached).logits[0, -1].double().log_softmax(-1)
                text.append(int(line.argmax()))
                logprobs.append(round(float(line.max()), 4))
        found.append((text[len(ids) :], logprobs))
    return found


def needs_cache(config: Any) -> bool:
    """Returns whether layers share keys and values. In transformers 5.5.4, Gemma 3n's do so only with a cache."""
    return bool(getattr(config, "num_kv_shared_layers", 0))


def vectors(name: str, model: Any) -> list[list[float]]:
    """Returns the hidden state of the last token of each prompt, after the last normalization and projections."""
    import torch

    inner = model if name in EMBEDDING else model.model
    with torch.no_grad():
        found = [inner(torch.tensor([ids])).last_hidden_state[0, -1] for ids in prompts()]
    for tensor, shape in DENSE.get(name, {}).items():
        found = [torch.tensor(values(tensor, shape)) @ vector for vector in found]
    return [[round(float(value), 4) for value in vector] for vector in found]


if __name__ == "__main__":
    sys.exit(zoo.record(FILE, [*MODELS, *OF_LLAMA], record, __doc__ or ""))
