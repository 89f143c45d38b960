"""--lora_modules, and checks of adapter files."""

import json
import math
import re
import struct

import numpy as np
import pytest

from lean_ovms.config import DEMO_MODEL, Config
from lean_ovms.errors import StartError
from lean_ovms.features.lora import files as lora
from lean_ovms.features.lora import modules as lora_modules
from lean_ovms.features.lora.modules import LoraModule
from lean_ovms.repository import safetensors
from tests.makers.make_lora import make, write

LAYER = "base_model.model.model.layers.0.self_attn.q_proj"


@pytest.mark.parametrize(
    ("text", "modules"),
    [
        ("", []),
        ("a=/x", [LoraModule("a", "/x")]),
        ("a=/x,0.5", [LoraModule("a", "/x", 0.5)]),
        ("a=/x,y", [LoraModule("a", "/x,y")]),
        ("a=/x=1,-2 b=y\n c=z", [LoraModule("a", "/x=1", -2.0), LoraModule("b", "y"), LoraModule("c", "z")]),
        ('{"name": "a b", "path": "/x y"}', [LoraModule("a b", "/x y")]),
        ('{"name": "a", "path": "x"} {"name": "b", "path": "y"}', [LoraModule("a", "x"), LoraModule("b", "y")]),
        ('{"name": "b", "path": "y", "alpha": 2}', [LoraModule("b", "y", 2)]),
        ('[{"name": "a", "path": "x", "base_model_name": "m"}]', [LoraModule("a", "x")]),
    ],
)
def test_both_ways_to_write_adapters_are_read(text, modules):
    assert lora_modules.parse(text) == modules
    assert lora_modules.parse(" ".join(map(lora_modules.dumps, modules))) == modules


@pytest.mark.parametrize(
    "text", ["a", "=x", "a=", "a=x a=y", "{", '{"name": "a"}', "[1]", '{"name": "a", "path": "x", "alpha": "z"}', "{}"]
)
def test_what_is_no_adapter_stops_the_start(text):
    with pytest.raises(StartError, match="--lora_modules: "):
        Config(lora_modules=text)


@pytest.fixture
def adapter(tmp_path):
    """Writes tensors, and settings if given. Returns the directory."""

    def build(tensors=(f"{LAYER}.lora_A.weight", f"{LAYER}.lora_B.weight"), **settings):
        write(tmp_path / lora.WEIGHTS, {name: np.zeros((2, 2)) for name in tensors})
        if settings:
            (tmp_path / lora.SETTINGS).write_text(json.dumps(settings))
        return tmp_path

    return build


@pytest.mark.parametrize(
    ("settings", "scale"),
    [({}, 1.0), ({"r": 4, "lora_alpha": 8}, 2.0), ({"r": 16, "lora_alpha": 8, "use_rslora": True}, 2.0)],
)
def test_an_adapter_is_as_strong_as_its_settings_say(adapter, settings, scale):
    path = adapter(**settings)
    assert lora.scale(LoraModule("a", str(path))) == scale
    assert lora.scale(LoraModule("a", str(path / lora.WEIGHTS))) == scale
    assert lora.scale(LoraModule("a", str(path), 0.25)) == 0.25


def with_more(path, **tensors):
    """Adds tensors to an adapter of the demo model. Returns its module."""
    file = make(path) / lora.WEIGHTS
    found = safetensors.tensors(file, lambda name: True)
    arrays = {name: np.frombuffer(one.data, "<f4").reshape(one.shape) for name, one in found}
    write(file, arrays | {name: np.full((2, 2), value) for name, value in tensors.items()})
    return LoraModule("a", str(path))


@pytest.mark.parametrize("layer", ["layers.77.self_attn.q_proj", "layers.0.mlp.experts.1.up_proj"])
def test_what_the_model_has_no_layer_for_is_refused_by_name(tmp_path, layer):
    """Two layers that the adapter would change are missing here."""
    names = {f"base_model.model.model.{layer}{n}.lora_{part}.weight": 1.0 for n in ("", "x", "y", "z") for part in "AB"}
    with pytest.raises(StartError, match=rf"fits only in part: it adapts model\.{layer}, .*and 1 more layer, which"):
        lora.check(with_more(tmp_path, **names), DEMO_MODEL)


def test_a_missing_layer_that_the_adapter_does_not_change_is_no_fault(tmp_path):
    names = {"base_model.model.visual.proj.lora_A.weight": 1.0, "base_model.model.visual.proj.lora_B.weight": 0.0}
    lora.check(with_more(tmp_path, **names), DEMO_MODEL)


@pytest.mark.parametrize(
    "name",
    [
        "base_model.model.lm_head.weight",
        "base_model.model.model.embed_tokens.lora_embedding_A",
        "base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector",
        "base_model.model.model.layers.0.self_attn.q_proj.lora_B.bias",
        "model.layers.0.self_attn.q_proj.lora_A.weight",
    ],
)
def test_a_tensor_that_would_have_no_effect_is_refused_by_name(tmp_path, name):
    with pytest.raises(StartError, match=rf"not lora_A or lora_B of a linear layer: {re.escape(name)}$"):
        lora.check(with_more(tmp_path, **{name: 1.0}), DEMO_MODEL)


def test_copies_of_the_models_own_weights_are_no_fault(tmp_path):
    lora.check(with_more(tmp_path, **{"base_model.model.model.embed_tokens.base_layer.weight": 1.0}), DEMO_MODEL)


@pytest.mark.parametrize(
    ("tensors", "word"),
    [
        ([f"{LAYER.replace('.0.', '.77.')}.lora_{part}.weight" for part in "AB"], "belongs to another model"),
        *(
            (names, "has no tensors named")
            for names in (["model.layers.0.self_attn.q_proj.lora_A.weight"], ["foo"], [])
        ),
    ],
)
def test_an_adapter_that_would_change_nothing_stops_the_start(adapter, tensors, word):
    """GenAI ignores tensors for which it has no layer."""
    with pytest.raises(StartError, match=word):
        lora.check(LoraModule("a", str(adapter(tensors))), DEMO_MODEL)


def test_of_a_gguf_file_the_layers_are_not_known(adapter, tmp_path):
    lora.check(LoraModule("a", str(adapter())), tmp_path / "x.gguf")


def test_a_path_without_an_adapter_stops_the_start(tmp_path):
    with pytest.raises(StartError, match=r"no adapter at .*missing"):
        lora.check(LoraModule("a", str(tmp_path)), DEMO_MODEL)
    with pytest.raises(StartError, match="no adapter at"):
        lora.check(LoraModule("a", str(tmp_path / "x")), DEMO_MODEL)
    (tmp_path / "x.bin").touch()
    with pytest.raises(StartError, match=r"not a \.safetensors"):
        lora.check(LoraModule("a", str(tmp_path / "x.bin")), DEMO_MODEL)


@pytest.mark.parametrize(
    "change",
    [
        lambda data: b"",
        lambda data: data[:7],
        lambda data: data[:-1],
        lambda data: struct.pack("<Q", 1 << 60) + data[8:],
        lambda data: struct.pack("<Q", 0) + data[8:],
        lambda data: data[:8] + b"x" * (len(data) - 8),
        lambda data: struct.pack("<Q", 2) + b"[]",
        lambda data: struct.pack("<Q", 7) + b'{"a":1}',
    ],
)
def test_a_file_that_is_not_whole_stops_the_start(adapter, change):
    file = adapter() / lora.WEIGHTS
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises(StartError, match=r"not a complete \.safetensors file"):
        lora.rows(lora.SafetensorsFile(file))


WIDE, HIGH = 160, 192  # of the demo model's q_proj


def rewritten(tmp_path, change, kind="F32"):
    """Changes the parts (header, data) of a valid adapter of one layer. Returns its module."""
    size = {"F32": 4, "F16": 2, "BF16": 2, "F64": 8, "I32": 4}[kind]
    numbers = np.linspace(-0.1, 0.1, 2 * (WIDE + HIGH), dtype=np.float32)
    raw = {"F16": numbers.astype("<f2"), "BF16": (numbers.view(np.uint32) >> 16).astype("<u2")}.get(kind, numbers)
    data = bytearray(raw.tobytes().ljust(size * numbers.size, b"\0"))
    middle = 2 * WIDE * size
    header = {
        f"{LAYER}.lora_A.weight": {"dtype": kind, "shape": [2, WIDE], "data_offsets": [0, middle]},
        f"{LAYER}.lora_B.weight": {"dtype": kind, "shape": [HIGH, 2], "data_offsets": [middle, len(data)]},
    }
    change(*header.values(), data)
    text = json.dumps(header).encode()
    (tmp_path / lora.WEIGHTS).write_bytes(struct.pack("<Q", len(text)) + text + data)
    return LoraModule("a", str(tmp_path))


def put(kind, value, at=200):
    size, code = {"F32": (4, "<f"), "F16": (2, "<e"), "BF16": (2, "<f")}[kind]
    raw = struct.pack(code, value)[-size:]
    return lambda a, b, data: data.__setitem__(slice(size * at, size * at + size), raw)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
def test_every_weight_is_finite_and_of_half_precision_s_size(tmp_path, kind):
    from lean_ovms.features.lora.child.reading import read

    most = {"F32": 32767.9, "F16": 32752.0, "BF16": 32640.0}[kind]
    for value in (0.0, -0.5, most, -most):
        module = rewritten(tmp_path, put(kind, value), kind)
        lora.check(module, DEMO_MODEL)
        assert read(lora_modules.dumps(module), {})
    for value in (math.nan, -math.nan, math.inf, -math.inf, 32768.0, -65504.0, *([3e38] if kind != "F16" else [])):
        for at in (0, 2 * WIDE - 1, 2 * (WIDE + HIGH) - 1):
            module = rewritten(tmp_path, put(kind, value, at), kind)
            for look in (lambda one: lora.check(one, DEMO_MODEL), lambda one: read(lora_modules.dumps(one), {})):
                with pytest.raises(StartError, match="a weight that is not finite, or is 32768 or more"):
                    look(module)
            (tmp_path / "image").mkdir(exist_ok=True)
            (tmp_path / "image" / "model_index.json").write_text("{}")
            with pytest.raises(StartError, match="not finite"):
                lora.check(module, tmp_path / "image")


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda a, b, data: a.update(data_offsets=[8, 4]), "outside of the file, or in the wrong order"),
        (lambda a, b, data: a.update(data_offsets=[-8, 1272]), "no valid dtype, shape and data_offsets"),
        (lambda a, b, data: a.update(data_offsets=[0, 1 << 70]), "outside of the file"),
        (lambda a, b, data: a.update(data_offsets=[0, 1276]), "does not match its shape"),
        (lambda a, b, data: a.update(data_offsets=[0.0, 1280.0]), "no valid dtype"),
        (lambda a, b, data: a.update(data_offsets=[0]), "no valid dtype"),
        (lambda a, b, data: a.update(data_offsets="ab"), "no valid dtype"),
        (lambda a, b, data: a.update(dtype=7), "no valid dtype"),
        (lambda a, b, data: a.update(shape=[2, "160"]), "no valid dtype"),
        (lambda a, b, data: a.update(shape=[True, 320]), "no valid dtype"),
        (lambda a, b, data: a.update(shape=[2, 80, 2]), "not a matrix of F32, F16, BF16"),
        (lambda a, b, data: a.update(shape=[320]), "not a matrix"),
        (lambda a, b, data: a.update(shape=[160, 2]), "different ranks"),
        (lambda a, b, data: b.update(shape=[2, 192]), "different ranks"),
        (lambda a, b, data: (a.update(shape=[4, 80]), b.update(shape=[96, 4])), "its model.* does not map 160 to 192"),
        (lambda a, b, data: (a.update(dtype="I32"), b.update(dtype="I32")), "not a matrix"),
        (lambda a, b, data: a.clear(), "no valid dtype"),
    ],
)
def test_a_tensor_that_cannot_be_read_or_does_not_fit_stops_the_start(tmp_path, change, word):
    with pytest.raises(StartError, match=word):
        lora.check(rewritten(tmp_path, change), DEMO_MODEL)


@pytest.mark.parametrize("names", [["lora_A.weight"], ["lora_B.weight"], ["lora_A.weight", "lora_A.x.weight"]])
def test_each_layer_has_one_a_and_one_b(adapter, names):
    with pytest.raises(StartError, match=r"has no lora_|has two A tensors"):
        lora.check(LoraModule("a", str(adapter([f"{LAYER}.{name}" for name in names]))), DEMO_MODEL)


RANKS = (-4, True, "8", 10**400, math.nan, 1e-3)
"""Ranks of which none is possible with an alpha of 8."""
SCALES = ((1e-300, 1e308), (1, 1001), (8, math.nan), (8, math.inf), (math.inf, math.inf), *((r, 8) for r in RANKS))


@pytest.mark.parametrize(
    "settings",
    [*({"r": r, "lora_alpha": a} for r, a in SCALES), {"r": 0, "lora_alpha": 8, "use_rslora": True}, {"r": 8}],
    ids=range(len(SCALES) + 2),
)
def test_a_scale_is_finite_and_bounded(adapter, settings):
    path = adapter(**settings)
    with pytest.raises(StartError, match=r"must be between -1000 and 1000|no valid lora_alpha and r"):
        lora.check(LoraModule("a", str(path)), DEMO_MODEL)
    with pytest.raises(StartError, match="must be between"):
        lora.check(LoraModule("a", str(path), -1e30), DEMO_MODEL)


@pytest.mark.parametrize(
    "name", ["../x", "a/../b", "..", ".", "/a", "a/", "a//b", "a\r\nb", "a\tb", "\0", " a", "a" * 257, "x" * 100_000]
)
def test_a_name_is_short_and_no_path_and_has_no_control_characters(name):
    with pytest.raises(StartError, match="the name of an adapter "):
        Config(lora_modules=json.dumps({"name": name, "path": "x"}))
    for good in ("a b", "org/model-7b_v1.5:latest", "größe", "..a"):
        assert LoraModule(good, "x").name == good


@pytest.mark.parametrize("path", ["a\0b", "a\nb", "x" * 5000])
def test_a_path_is_one_that_a_file_can_have(path):
    with pytest.raises(StartError, match="a path must have at most 4096 characters"):
        lora_modules.parse(json.dumps({"name": "a", "path": path}))


def test_several_values_of_the_flag_are_kept_together():
    from lean_ovms.cli import arguments

    argv = ["--lora-modules", "a=x", "b=y,2", "--lora_modules", "c=z", "--max_loras", "2"]
    assert arguments.parse(argv, {}).value("lora_modules") == "a=x b=y,2 c=z"
    assert arguments.parse([], {"LEAN_OVMS_LORA_MODULES": "a=x b=y"}).value("lora_modules") == "a=x b=y"


def test_an_adapter_of_an_image_model_has_other_names(tmp_path):
    (tmp_path / "model_index.json").write_text("{}")
    file = write(tmp_path / "a.safetensors", {"lora_unet_x.lora_down.weight": np.zeros((1, 2), np.float32)})
    lora.check(LoraModule("a", str(file)), tmp_path)
    file = write(tmp_path / "a.safetensors", {"unet.x.weight": np.zeros((1, 2), np.float32)})
    with pytest.raises(StartError, match="has no tensors of a LoRA adapter"):
        lora.check(LoraModule("a", str(file)), tmp_path)
