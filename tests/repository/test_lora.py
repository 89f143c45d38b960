"""--lora_modules, and looking into adapters."""

import json
import struct

import numpy as np
import pytest

from lean_ovms import lora_modules
from lean_ovms.config import DEMO_MODEL, Config
from lean_ovms.errors import StartError
from lean_ovms.lora_modules import LoraModule
from lean_ovms.repository import lora
from tools.make_lora import make, write

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
        (
            '{"name": "a", "path": "x"} {"name": "b", "path": "y", "alpha": 2}',
            [LoraModule("a", "x"), LoraModule("b", "y", 2)],
        ),
        ('[{"name": "a", "path": "x", "base_model_name": "m"}]', [LoraModule("a", "x")]),
    ],
)
def test_both_ways_to_write_adapters_are_read(text, modules):
    assert lora_modules.parse(text) == modules
    assert lora_modules.parse(" ".join(map(lora_modules.dumps, modules))) == modules


@pytest.mark.parametrize(
    "text",
    ["a", "=x", "a=", "a=x a=y", "{", '{"name": "a"}', "[1]", '{"name": "a", "path": "x", "alpha": "z"}', "{}"],
)
def test_what_is_no_adapter_stops_the_start(text):
    with pytest.raises(StartError, match="--lora_modules: "):
        Config(lora_modules=text)


@pytest.fixture
def adapter(tmp_path):
    """Writes tensors and perhaps settings; the directory."""

    def build(tensors=(f"{LAYER}.lora_A.weight", f"{LAYER}.lora_B.weight"), **settings):
        write(tmp_path / lora.WEIGHTS, {name: np.zeros((2, 2)) for name in tensors})
        if settings:
            (tmp_path / lora.SETTINGS).write_text(json.dumps(settings))
        return tmp_path

    return build


@pytest.mark.parametrize(
    ("settings", "scale"),
    [
        ({}, 1.0),
        ({"r": 4, "lora_alpha": 8}, 2.0),
        ({"r": 16, "lora_alpha": 8, "use_rslora": True}, 2.0),
    ],
)
def test_an_adapter_is_as_strong_as_its_settings_say(adapter, settings, scale):
    path = adapter(**settings)
    assert lora.scale(LoraModule("a", str(path))) == scale
    assert lora.scale(LoraModule("a", str(path / lora.WEIGHTS))) == scale
    assert lora.scale(LoraModule("a", str(path), 0.25)) == 0.25


@pytest.mark.parametrize("settings", [{"r": 0, "lora_alpha": 8}, {"r": 8}, {"r": "x", "lora_alpha": 1}])
def test_settings_that_tell_no_strength_stop_the_start(adapter, settings):
    with pytest.raises(StartError, match="lora_alpha"):
        lora.scale(LoraModule("a", str(adapter(**settings))))


def test_an_adapter_of_this_model_passes(tmp_path):
    lora.check(LoraModule("a", str(make(tmp_path / "x"))), DEMO_MODEL)


@pytest.mark.parametrize(
    ("tensors", "word"),
    [
        (["base_model.model.model.layers.77.self_attn.q_proj.lora_A.weight"], "belongs to another model"),
        (["model.layers.0.self_attn.q_proj.lora_A.weight"], "has no tensors named"),
        (["foo"], "has no tensors named"),
        ([], "has no tensors named"),
    ],
)
def test_an_adapter_that_would_change_nothing_stops_the_start(adapter, tensors, word):
    """GenAI passes over what it has no layer for."""
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
    with pytest.raises(StartError, match=r"not a whole \.safetensors file"):
        lora.tensors(file)


def test_several_values_of_the_flag_are_kept_together():
    from lean_ovms.cli import arguments

    argv = ["--lora-modules", "a=x", "b=y,2", "--lora_modules", "c=z", "--max_loras", "2"]
    assert arguments.parse(argv, {}).lora_modules == "a=x b=y,2 c=z"
    assert arguments.parse([], {"LEAN_OVMS_LORA_MODULES": "a=x b=y"}).lora_modules == "a=x b=y"


def test_an_adapter_of_an_image_model_has_other_names(tmp_path):
    (tmp_path / "model_index.json").write_text("{}")
    file = write(tmp_path / "a.safetensors", {"lora_unet_x.lora_down.weight": np.zeros((1, 2), np.float32)})
    lora.check(LoraModule("a", str(file)), tmp_path)
    file = write(tmp_path / "a.safetensors", {"unet.x.weight": np.zeros((1, 2), np.float32)})
    with pytest.raises(StartError, match="has no tensors of a LoRA adapter"):
        lora.check(LoraModule("a", str(file)), tmp_path)
