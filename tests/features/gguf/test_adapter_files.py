"""LoRA adapters in GGUF files: names and order of their tensors, and what is refused."""

import numpy as np
import pytest

pytest.importorskip("gguf")
pytest.importorskip("openvino_genai")

from lean_ovms.errors import StartError
from lean_ovms.features.gguf import header
from lean_ovms.features.gguf.adapter_file import GgufAdapter
from lean_ovms.features.lora import files
from lean_ovms.features.lora.child.reading import read
from lean_ovms.features.lora.modules import LoraModule, dumps, parse
from tests.makers.make_lora import in_pairs, write_gguf

BASE = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "model_type": "llama"}
START = "model.layers.1"
DICE = np.random.default_rng(5)


def pair(height, width=32, rank=2):
    return DICE.normal(size=(rank, width)).astype(np.float32), DICE.normal(size=(height, rank)).astype(np.float32)


def made(path, tensors, architecture="llama", base=BASE, alpha=0.0, stated=None, **changes):
    """Returns the scale and the layers of an adapter with these tensors in layer 1."""
    named = {f"blk.1.{name}.weight": value for name, value in tensors.items()}
    file = write_gguf(path / "a.gguf", architecture, named, alpha, **changes)
    return read(dumps(LoraModule("a", str(file), stated)), base)


def test_layers_have_the_names_and_the_rows_of_transformers(tmp_path):
    parts = {"attn_q": pair(32), "attn_k": pair(16), "attn_v": pair(16), "attn_output": pair(32), "ffn_down": pair(32)}
    stored = {**parts, **{f"attn_{name}": (parts[f"attn_{name}"][0], in_pairs(parts[f"attn_{name}"][1], heads))
        for name, heads in (("q", 4), ("k", 2))}}  # fmt: skip
    scale, layers = made(tmp_path, stored)
    names = {"ffn_down": "mlp.down_proj", "attn_output": "self_attn.o_proj"}
    names |= {f"attn_{letter}": f"self_attn.{letter}_proj" for letter in "qkv"}
    assert scale == 1.0
    assert layers.keys() == {f"{START}.{name}" for name in names.values()}
    for part, (down, up) in parts.items():
        found = layers[f"{START}.{names[part]}"]
        np.testing.assert_array_equal(found[0], down)
        np.testing.assert_array_equal(found[1], up)


def test_a_joined_matrix_is_one_of_queries_one_of_keys_and_one_of_values(tmp_path):
    down, up = pair(64)
    _, layers = made(tmp_path, {"attn_qkv": (down, up)}, "phi3", {**BASE, "model_type": "phi3"})
    for letter, rows in (("q", up[:32]), ("k", up[32:48]), ("v", up[48:])):
        found = layers[f"{START}.self_attn.{letter}_proj"]
        np.testing.assert_array_equal(found[0], down)
        np.testing.assert_array_equal(found[1], rows)


def test_a_matrix_with_gate_and_up_is_two(tmp_path):
    down, up = pair(96)
    base = {**BASE, "model_type": "phi3", "intermediate_size": 48}
    _, layers = made(tmp_path, {"ffn_up": (down, up)}, "phi3", base)
    for place, rows in (("gate", up[:48]), ("up", up[48:])):
        found = layers[f"{START}.mlp.{place}_proj"]
        np.testing.assert_array_equal(found[0], down)
        np.testing.assert_array_equal(found[1], rows)
    _, layers = made(tmp_path, {"ffn_up": (down, up)}, "phi3", {**base, "intermediate_size": 96})
    assert [*layers] == [f"{START}.mlp.up_proj"]


def test_the_factor_is_alpha_through_the_rank_of_each_layer_unless_the_option_states_one(tmp_path):
    parts = {"attn_v": pair(16), "ffn_down": pair(32, rank=4)}
    for alpha, stated, factors in ((8.0, None, (4, 2)), (0.0, None, (1, 1)), (8.0, 0.5, (1, 1))):
        scale, layers = made(tmp_path, parts, alpha=alpha, stated=stated)
        assert scale == (1.0 if stated is None else stated)
        for place, part, factor in zip(("self_attn.v_proj", "mlp.down_proj"), parts, factors, strict=True):
            np.testing.assert_array_equal(layers[f"{START}.{place}"][1], parts[part][1] * np.float32(factor))
    [module] = parse('{"name": "a", "path": "%s", "scale": -0.5}' % (tmp_path / "a.gguf"))
    assert files.scale(module) == -0.5


@pytest.mark.parametrize("kind", ["F16", "Q8_0", "BF16"])
def test_matrices_have_any_type_of_the_converter(tmp_path, kind):
    parts = {"ffn_up": pair(64)}
    _, layers = made(tmp_path, parts, kind=kind)
    np.testing.assert_allclose(layers[f"{START}.mlp.up_proj"][0], parts["ffn_up"][0], atol=0.03)
    file = GgufAdapter(tmp_path / "a.gguf", BASE)
    assert [kind for kind, _ in file.parts(lambda name: "lora_A" in name)] == [kind.replace("Q8_0", "F16")]
    assert files.pairs(file) == {f"{START}.mlp.up_proj": (32, 64)}
    files._check_numbers(file, files.layer)


@pytest.mark.parametrize(
    ("tensors", "changes", "error"),
    [
        ({"ffn_gate_exps": pair(32)}, {}, "blk.1.ffn_gate_exps.weight.lora_a changes a layer that takes no adapters"),
        ({"attn_norm": pair(32)}, {}, "blk.1.attn_norm.weight.lora_a changes a layer that takes no adapters"),
        ({"attn_q": pair(30)}, {}, "blk.1.attn_q.weight.lora_b has 30 rows, and not 4 heads of 8"),
        ({"attn_qkv": pair(48)}, {}, "blk.1.attn_qkv.weight.lora_b has 48 rows, and 4 heads with 2 for keys need more"),
        ({"attn_v": pair(16)}, {"kind": "Q4_0"}, "blk.1.attn_v.weight.lora_a is not lora_a or lora_b of a linear"),
        ({"attn_v": pair(16)}, {"general": "model"}, "it is no LoRA adapter, since general.type is model"),
        ({"attn_v": pair(16)}, {"method": "dora"}, "adapter.type is dora"),
        ({"attn_v": pair(16)}, {"tokens": [1]}, "it is an activated LoRA (aLoRA), which is not supported"),
        ({"attn_v": pair(16)}, {"architecture": "qwen2"}, "it is for models of the architecture qwen2"),
        ({"attn_v": pair(16)}, {"architecture": "rwkv7"}, "adapters of the architecture rwkv7 are not supported"),
        ({"attn_q": pair(16)}, {"base": {}}, "its rows cannot be ordered, since the model does not state its heads"),
        ({"attn_qkv": pair(64), "attn_v": pair(16)}, {}, "blk.1.attn_v.weight.lora_a changes a layer that blk.1"),
        ({"attn_v": pair(16)}, {"alpha": float("inf")}, "its adapter.lora.alpha is inf"),
        ({"attn_v": (pair(16)[0], pair(16, rank=3)[1])}, {}, "lora_A and lora_B of model.layers.1.self_attn.v_proj"),
    ],
)  # fmt: skip
def test_what_is_no_adapter_of_the_model_is_refused_with_its_tensor(tmp_path, tensors, changes, error):
    with pytest.raises(StartError) as found:
        made(tmp_path, tensors, **changes)
    assert error in str(found.value)
    assert str(tmp_path / "a.gguf") in str(found.value)


def test_a_factor_that_cannot_be_used_is_refused_at_the_start_and_one_of_too_large_results_when_read(tmp_path):
    parts = {"blk.1.attn_v.weight": pair(16)}
    file = write_gguf(tmp_path / "a.gguf", "llama", parts, float("nan"))
    with pytest.raises(StartError, match=r"a\.gguf cannot be used: its adapter\.lora\.alpha is nan"):
        files.check(LoraModule("a", str(file)), tmp_path)
    with pytest.raises(StartError, match=f"a.gguf is not a readable adapter: {files.NOT_FINITE}"):
        made(tmp_path, {"attn_v": pair(16)}, alpha=1e9)


def test_an_adapter_is_no_model_and_a_cut_file_no_adapter(tmp_path):
    made(tmp_path, {"attn_v": pair(16)})
    with pytest.raises(
        StartError, match="it is a LoRA adapter, to be served beside its model: --lora_modules NAME=FILE"
    ):
        header.read(tmp_path / "a.gguf")
    data = (tmp_path / "a.gguf").read_bytes()
    for size in (3, 60, 300, len(data) - 1):
        (tmp_path / "a.gguf").write_bytes(data[:size])
        with pytest.raises(StartError, match=r"a\.gguf cannot be used: "):
            read(dumps(LoraModule("a", str(tmp_path / "a.gguf"))), BASE)
