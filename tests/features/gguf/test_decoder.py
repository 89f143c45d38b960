"""Networks built from GGUF files: OpenVINO recognizes norms and rotations, and adapters find their layers."""

import os
from collections import Counter

import pytest

pytest.importorskip("gguf")

import gguf
import numpy as np
import openvino as ov

from lean_ovms.errors import StartError
from lean_ovms.features.gguf import header
from lean_ovms.features.gguf.architectures import ARCHITECTURES
from lean_ovms.features.gguf.child import layers, network, tensors
from lean_ovms.features.gguf.child.blocks import BLOCKS, GROUP, in_eight_bits
from lean_ovms.features.gguf.child.layers import whole
from lean_ovms.features.gguf.child.tensors import TensorRows, Tensors, opened
from lean_ovms.features.lora.child.adapter_layers import insert
from tests.makers import zoo_gguf

FLOATS = {"INFERENCE_PRECISION_HINT": "f32"}
pytestmark = pytest.mark.slow
RECORDED = zoo_gguf.recorded()
BUILT = sorted({*RECORDED} - {*zoo_gguf.EMBEDDING})
WITHOUT_POSITIONS = (
    *("afmoe", "cohere2", "cohere2moe", "exaone4", "exaone_moe", "granite_swa", "granitemoehybrid", "llama4_text"),
    *("smallthinker", "smollm3"),
)
"""Models of which one layer has no positions."""
MOVED = ("cohere", "cohere2", "cohere2moe", "maincoder", "ernie4_5", "ernie4_5_moe", "glm", "glm4", "llama4_text")
"""Models whose queries and keys have their rows in another order."""
COUNTED = {
    "PagedAttention": "attn_output",
    "PagedCausalConv1D": ("ssm_conv1d", "shortconv.conv"),
    "PagedGatedDeltaNet": ("ssm_alpha", "ssm_ba"),
    "PagedSelectiveSSM": "ssm_d",
    "RMS": "norm",
}
"""The ends of tensors' names by the operations of which there is one for each of these tensors."""
OTHER = {
    "deci": {"PagedAttention": 2, "RoPE": 4},
    "gemma2": {"PagedAttention": 0, "Reference": 4},
    "gemma3n_text": {"RoPE": 10, "RMS": 64},
    "gemma4_text": {"RoPE": 10, "RMS": 46},
    "gemma4_text-equal": {"RMS": 43},
    "gemma4_text-moe": {"RMS": 67},
    "llama4_text": {"RMS": 15},
    "falcon_mamba": {"RMS": 9},
    "plamo": {"RMS": 4},
}
"""The numbers of operations that the names do not show: attention with a soft cap, norms without weights, and rotations
of keys that layers share."""
PROJECTIONS = {f"self_attn.{letter}_proj" for letter in "qkvo"} | {
    f"mlp.{name}_proj" for name in ("gate", "up", "down")
}


STATE_SPACES = {f"0.mixer.{part}_proj" for part in ("in", "out")}
ATTENTION = {f"2.mixer.{letter}_proj" for letter in "qkvo"}
SELECTING = {f"{layer}.mixer.{part}_proj" for layer in "01" for part in ("in", "x", "dt", "out")}
SHARED_PART = {f"1.mixer.shared_experts.{part}_proj" for part in ("up", "down")}
ALTERNATING = {
    **dict.fromkeys(("mamba", "falcon_mamba"), SELECTING),
    "mamba2": {name for name in SELECTING if name.endswith(("in_proj", "out_proj"))},
    "nemotron_h": {*STATE_SPACES, "1.mixer.up_proj", "1.mixer.down_proj", *ATTENTION},
    **dict.fromkeys(("nemotron_h-moe", "nemotron_h-latent"), STATE_SPACES | SHARED_PART | ATTENTION),
}
"""The layers that adapters know in the first three layers of models of which a layer has only one part."""


def operations(compiled):
    """Returns the number of operations of each kind in a compiled network."""
    return Counter(str(op.get_rt_info()["layerType"].astype(str)) for op in compiled.get_runtime_model().get_ops())


def assert_fused(name, compiled):
    """Checks that each norm and each rotation is one operation in the compiled network."""
    kinds = operations(compiled)
    tensors, row = [*RECORDED[name]["tensors"]], ARCHITECTURES[RECORDED[name]["architecture"]]
    names = [tensor.removesuffix(".weight") for tensor in tensors]
    wanted = {kind: sum(each.endswith(ends) for each in names) for kind, ends in COUNTED.items()}
    rotated = wanted["PagedAttention"] - (name in WITHOUT_POSITIONS)
    rotated = 0 if row.unrotated == 1 or (row.slope and not row.sloped_depth) else rotated
    wanted |= {"RoPE": 2 * rotated}
    wanted |= {"RMS": 0} if row.centred_norms else {}
    wanted["PagedAttention"] = wanted["PagedAttention"] or 1  # one that adds nothing, if there is no other
    products = 3 if row.gated and not row.clamped else 2
    wanted |= {"GatherMatmul": products * sum(each.endswith("ffn_down_exps") for each in names)} | OTHER.get(name, {})
    assert {kind: kinds[kind] for kind in wanted} == wanted


def test_a_file_that_takes_long_is_told_of_while_it_is_read(tmp_path, caplog, monkeypatch):
    path = zoo_gguf.write(tmp_path / "x.gguf", "llama")
    with caplog.at_level("INFO", "lean_ovms.gguf"):
        network.read(path)
        assert not caplog.messages
        monkeypatch.setattr(tensors, "PROGRESS_S", -1)
        network.read(path)
    *told, end = caplog.messages
    percent = [int(line.removeprefix("x.gguf: ").split(" % of ")[0]) for line in told]
    assert (percent, percent[0] > 0, percent[-1]) == (sorted(percent), True, 100)
    assert end.endswith("; OpenVINO is compiling it")


@pytest.mark.parametrize("name", BUILT)
def test_layers_have_the_names_that_adapters_know(name, tmp_path):
    model = network.read(zoo_gguf.write(tmp_path / "x.gguf", name), adapted=True)
    found = {layer for group in insert(model, ov.Type.f32).groups for layer in group}
    other = {"self_attn.q_proj", "self_attn.k_proj"} if name in MOVED else set()
    tensors = {tensor.removeprefix("blk.1.") for tensor in RECORDED[name]["tensors"]}
    if name == "gemma4_text-equal":
        other = {"self_attn.v_proj"}  # its keys are the values, too
    if "ffn_down_exps.weight" in tensors and "ffn_down.weight" not in tensors:
        other |= {layer for layer in PROJECTIONS if layer.startswith("mlp.")}
    if name == "deci":  # its second layer has no attention
        other |= {f"self_attn.{letter}_proj" for letter in "qkvo"}
    if "attn_kv_a_mqa.weight" in tensors:
        other |= {f"self_attn.{letter}_proj" for letter in "qkv"}
    row = ARCHITECTURES[RECORDED[name]["architecture"]]
    other |= set() if row.gated else {"mlp.gate_proj"}
    renamed = row.renamed
    wanted = {renamed.get(layer, layer) for layer in PROJECTIONS - other} - {""}
    if "ffn_down_shexp.weight" in tensors:
        shared = {layer.replace("mlp.", "mlp.shared_expert.") for layer in other if layer.startswith("mlp.")}
        wanted |= {renamed.get(layer, layer) for layer in shared} - {""}
    if "attn_gate.weight" in tensors:
        wanted.add("self_attn.gate_proj")
    if row.beside:
        wanted |= {f"mamba.{part}_proj" for part in ("in", "out")}
    if name in ALTERNATING:
        known = (layer.removeprefix("model.layers.") for layer in found)
        assert {layer for layer in known if layer[0] in "012"} == ALTERNATING[name]
        return
    assert {layer.removeprefix("model.layers.1.") for layer in found if ".1." in layer} == wanted


PARTLY = {"granitehybrid.rope.dimension_count": 8, "granitehybrid.rope.scaling.finetuned": True}
"""A part of each head is rotated, as in Bamba."""


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        *((name, {}) for name in ("gemma3_text", "granite", "llama", "ministral3", "qwen3_5_text", "smollm3")),
        ("granitemoehybrid", PARTLY),
    ],
)
def test_rows_of_queries_and_keys_are_in_the_order_of_transformers(name, changes, tmp_path):
    """Adapters change the rows in this order."""
    known = RECORDED[name]
    model = network.read(zoo_gguf.write(tmp_path / "x.gguf", name, "F32", **changes), adapted=True)
    products = {node.get_friendly_name(): node for node in model.get_ops() if node.get_type_name() == "MatMul"}
    for letter, heads in (("q", "head_count"), ("k", "head_count_kv")):
        stored = known["tensors"].get(f"blk.1.attn_{letter}.weight")
        if stored is None:  # one projection for all three
            continue
        values = zoo_gguf.values(f"blk.1.attn_{letter}.weight", stored)
        if known["architecture"] in zoo_gguf.PERMUTED:
            count = np.max(known["metadata"][f"{known['architecture']}.attention.{heads}"])  # a list in hybrids
            values = values.reshape(count, -1, 2, stored[1]).swapaxes(1, 2).reshape(stored)
        node = products[f"__module.model.layers.1.self_attn.{letter}_proj/aten::linear/MatMul"]
        assert (node.input_value(1).get_node().data == values).all()


def stored(path, values, kind):
    """Writes a file with tensors of a type. Returns its path and header."""
    writer = gguf.GGUFWriter(path, "llama")
    for name, data in values.items():
        writer.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType(kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path, header.parse(path.read_bytes())


@pytest.mark.parametrize("change", [lambda path: os.utime(path, ns=(0, 0)), lambda path: os.truncate(path, 1 << 20)])
def test_a_file_that_is_overwritten_while_it_is_read_is_refused(tmp_path, change):
    file = stored(tmp_path / "m.gguf", {"token_embd.weight": np.zeros((4, 64), np.float32)}, 0)

    def read():
        with opened(*file) as found:
            assert not found.numbers("token_embd.weight").any()
            change(tmp_path / "m.gguf")

    with pytest.raises(StartError, match="was overwritten while"):
        read()


@pytest.mark.skipif(not layers.FUSES_NORMS, reason="this machine's OpenVINO has no such operation")
@pytest.mark.parametrize("precision", ["f32", "bf16"])
@pytest.mark.parametrize("shape", [[-1, 1, 64], [-1, 3, 1, 64]])
def test_a_norm_is_what_openvino_makes_of_its_formula(shape, precision, monkeypatch):
    weight, x = np.random.RandomState(0).rand(64).astype(np.float32), ov.opset13.parameter(shape, np.float32)
    values = np.random.RandomState(1).randn(*[abs(each) * 2 if each < 0 else each for each in shape])
    found = []
    for fuses in (True, False):
        monkeypatch.setattr(layers, "FUSES_NORMS", fuses)
        norm = layers.norm(ov.opset13.relu(x), weight, 1e-6)
        model = ov.Model([ov.opset13.relu(norm)], [x])
        assert fuses is ("RMS" in {node.get_type_name() for node in model.get_ops()})
        compiled = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": precision})
        assert operations(compiled)["RMS"] == 1
        found.append(compiled(values.astype(np.float32))[0])
    assert np.array_equal(*found)


@pytest.mark.parametrize("kind", BLOCKS)
def test_blocks_stand_for_their_values_exactly(kind):
    """The blocks are random bytes; some have scales that are not finite."""
    known, (elements, size) = BLOCKS[kind], header.BLOCK_SIZES[kind]
    data = np.random.RandomState(kind).randint(0, 256, (300, size)).astype(np.uint8)
    with np.errstate(all="ignore"):
        numbers, scale, offset = known.read(data)
        found = numbers * scale[..., None] + (0 if offset is None else offset[..., None])
        wanted = gguf.quants.dequantize(data, gguf.GGMLQuantizationType(kind)).reshape(found.shape)
    assert gguf.GGMLQuantizationType(kind).name == known.name
    assert numbers.shape[1:] == (elements // known.group, known.group)
    finite = np.isfinite(wanted).all(-1)
    assert finite.mean() > 0.5
    most = np.abs(wanted[finite]).max(-1, keepdims=True)
    assert (np.abs(found[finite] - wanted[finite]) <= most * 3e-7).all()


@pytest.mark.parametrize(
    ("kind", "group"), [*((kind, GROUP) for kind in (3, 7, 11, 12, 13, 14)), (7, 96), (13, 768), (14, 768)]
)
def test_numbers_of_eight_bits_stand_for_nearly_the_same(kind, group):
    """The blocks are random bytes. Some scales are 0, and some of those with a sign are negative. A group may be a
    row."""
    known, (_, size) = BLOCKS[kind], header.BLOCK_SIZES[kind]
    data = np.random.RandomState(kind).randint(0, 256, (300, size)).astype(np.uint8) & 0x3B
    if known.name == "Q6_K":
        data[::2, 192:208] |= 0x80
    data[::7, :2] = 0
    numbers, scale, offset = parts = known.read(data)
    found, steps = in_eight_bits(parts, known, group)
    moved = 0 if offset is None else offset[..., None]
    wanted = (numbers * scale[..., None] + moved).reshape(-1, group)
    ends = np.array([numbers.min(), numbers.max()], np.float32) * scale[..., None] + moved
    most = np.abs(ends).reshape(len(wanted), -1).max(-1, keepdims=True)
    assert (np.abs(found * steps[:, None] - wanted) <= most / 200).all()


@pytest.mark.parametrize("name", ["Q4_1", "Q4_K", "Q5_K", "Q6_K"])
def test_large_matrices_are_rounded_to_eight_bits(name, tmp_path):
    kind = gguf.GGMLQuantizationType[name]
    elements, size = header.BLOCK_SIZES[kind]
    data = np.random.RandomState(kind).randint(0, 256, (1024, 256 // elements, size)).astype(np.uint8) & 0x3B
    data = data.reshape(1024, -1)
    path, found = stored(tmp_path / "x.gguf", {"x": data}, kind)
    errors, has_offsets = [], []
    for exact, rows in ((False, slice(None)), (True, slice(None)), (False, slice(512))):
        with Tensors(path, found, exact=exact) as mapped:
            matrix = mapped.matrix(TensorRows("x", rows))
            values = ov.Core().compile_model(ov.Model([whole(matrix)], [], "x"), "CPU", FLOATS)([])[0]
        wanted = gguf.quants.dequantize(data, kind)[rows]
        errors.append(float(np.sqrt(np.square(values - wanted).mean() / np.square(wanted).mean())))
        has_offsets.append(matrix.offsets is not None)
    assert 1e-5 < errors[0] < 0.01
    assert max(errors[1:]) < 1e-6
    assert has_offsets == [False, BLOCKS[kind].offsets, BLOCKS[kind].offsets]


ROUNDINGS = {
    "Q4_1": [("i8", 32), ("i4", 32)],
    "Q5_0": [("i8", 32), ("i8", 32)],
    "Q5_1": [("i8", 256), ("i8", 256)],
    "Q6_K": [("i8", 256), ("i8", 256)],
    "Q6_K uneven": [("i8", 32), ("i8", 32)],
}


@pytest.mark.parametrize("name", ROUNDINGS)
def test_rows_of_eight_bits_have_one_scale_where_that_changes_them_little(name, tmp_path, monkeypatch):
    """They keep their scales if some groups are much larger than others, and in types that are fast as they are.

    Matrices of 4 bits that would take much memory stay as they are: the second one is larger.
    """
    monkeypatch.setattr(tensors, "ROUNDED", range(1 << 14, 1 << 15))
    kind = gguf.GGMLQuantizationType[name.split()[0]]
    elements, size = header.BLOCK_SIZES[kind]
    data = np.random.RandomState(0).randint(0, 128, (128, 256 // elements, size)).astype(np.uint8)
    scale = np.frombuffer(np.array([0.1, 0.1], np.float16).tobytes(), np.uint8)
    if kind == gguf.GGMLQuantizationType.Q6_K:
        data[..., 192:208], data[..., 208:] = 10, scale[:2]
        data[..., 195] = 100 if "uneven" in name else 10
    else:
        data[..., :4] = scale
    path, found = stored(tmp_path / "x.gguf", {"x": data.reshape(128, -1)}, kind)
    with Tensors(path, found) as mapped:
        matrices = [mapped.matrix(TensorRows("x", slice(rows))).weights.get_node() for rows in (64, 128)]
    assert [*map(numbers_of, matrices)] == ROUNDINGS[name]


def numbers_of(node):
    """Returns the integer type of a matrix, and how many of its numbers share a scale."""
    while node.get_type_name() != "Constant":
        node = node.input_value(0).get_node()
    return node.get_element_type().to_string(), node.get_output_shape(0)[-1]


def test_a_group_without_a_scale_is_its_offset(tmp_path):
    block = np.full(20, 0x5A, np.uint8)
    block[:4] = np.frombuffer(np.array([0, 0.375], np.float16).tobytes(), np.uint8)
    tensors = {"token_embd.weight": np.tile(block, (64, 2))}
    path = zoo_gguf.write(tmp_path / "x.gguf", "llama", "Q4_1", tensors)
    found = header.parse(path.read_bytes())
    with Tensors(path, found) as mapped:
        matrix = whole(mapped.matrix(TensorRows("token_embd.weight")))
        values = ov.Core().compile_model(ov.Model([matrix], [], "x"), "CPU", FLOATS)([])[0]
        assert (values == 0.375).all()
        assert (mapped.numbers("token_embd.weight") == 0.375).all()


@pytest.mark.parametrize("kind", [*BLOCKS, 0, 1, 30])
def test_experts_of_every_type_are_what_they_stand_for(kind, tmp_path):
    """The rows of two tensors alternate, and one group has no scale."""
    elements, size = header.BLOCK_SIZES[kind]
    dice = np.random.RandomState(kind)
    data = dice.randint(0, 256, (2, 3, 4, 256 // elements, size)).astype(np.uint8) & 0x3B
    name = gguf.GGMLQuantizationType(kind).name
    if name in ("Q4_1", "Q5_1", "Q4_K", "Q5_K"):
        data[0, 0, 0, 0, :2] = 0
    data = data.reshape(2, 3, 4, -1)
    wanted = gguf.quants.dequantize(data, gguf.GGMLQuantizationType(kind))
    assert np.isfinite(wanted).all()
    names = ("gate", "up")
    path, found = stored(tmp_path / "x.gguf", dict(zip(names, data, strict=True)), kind)
    with Tensors(path, found) as mapped:
        matrix = mapped.experts(*names)
        values = ov.Core().compile_model(ov.Model([matrix], [], "x"), "CPU", FLOATS)([])[0]
    wanted = wanted.swapaxes(0, 1).swapaxes(1, 2).reshape(3, 8, 256)
    assert np.abs(values - wanted).max() <= np.abs(wanted).max() * 3e-7


@pytest.mark.parametrize(
    ("changes", "tensor", "said"),
    [
        ({"llama.rope.scaling.type": "su"}, "", "positions are scaled by su, which is not supported, only linear, lon"),
        ({}, "blk.1.ffn_gate_tid2eid.weight", "tensor blk.1.ffn_gate_tid2eid.weight belongs to a part of llama net"),
    ],
)
def test_a_part_that_is_not_known_is_named(changes, tensor, said, tmp_path):
    path = zoo_gguf.write(tmp_path / "x.gguf", "llama", **changes)
    found = header.parse(path.read_bytes())
    if tensor:
        found.tensors[tensor] = [1]
    with pytest.raises(header.Unsupported, match=said):
        header._check(found)
