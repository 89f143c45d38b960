"""Options replace values of a GGUF file's metadata: --override_kv, and --rope_parameters for its positions."""

import json
import math
import struct
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("openvino")

from lean_ovms.config import Config
from lean_ovms.errors import StartError, WrongOptions
from lean_ovms.features.gguf.child.positions import frequencies
from lean_ovms.features.gguf.model_file import header_of
from lean_ovms.features.gguf.overrides import Overrides
from lean_ovms.features.gguf.preparation import GgufOnly
from lean_ovms.features.lora import files
from lean_ovms.features.lora.feature import ADAPTED, FIXED
from lean_ovms.features.ollama.api.weights import weights_of
from lean_ovms.models.text_model import TextModel
from lean_ovms.repository import model_config, model_dir, model_file
from lean_ovms.repository.model_file import changes, reading_once
from tests.fakes import INFO, FakeEngine
from tests.features.gguf.test_header import file, text

YARN = {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 100}


def real(value):
    return (6, struct.pack("<f", value))


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "x.gguf"
    path.write_bytes(file({"llama.rope.freq_base": real(5e5), "llama.expert_gating_func": (4, struct.pack("<I", 2))}))
    return path


def opened(path, values="", **positions):
    config = Config(
        model_path=str(path), override_kv=values, rope_parameters=json.dumps(positions) if positions else ""
    )
    with reading_once(config):
        return header_of(path)


def test_values_of_a_file_are_replaced_by_those_of_the_options(path):
    given = 'llama.context_length=int:77,tokenizer.ggml.add_bos_token=bool:false,"general.name=str:a, ""b"""'
    found = opened(path, f"{given},llama.rope.freq_base=float:1e6,llama.attention.scale=float:0.5").metadata
    assert found["llama.context_length"] == 77
    assert found["tokenizer.ggml.add_bos_token"] is False
    assert found["general.name"] == 'a, "b"'
    assert (found["llama.rope.freq_base"], found["llama.attention.scale"]) == (1e6, 0.5)
    assert header_of(path).metadata["llama.context_length"] == 300


def test_the_front_end_and_the_engine_read_the_replaced_values(path):
    given = "llama.pooling_type=int:1,llama.context_length=int:77"
    config = Config(model_path=str(path), override_kv=given)
    assert model_dir.detect_task(path) == "text_generation"
    with reading_once(config):
        assert model_dir.detect_task(path) == "embeddings"
        assert model_config.context_length(model_config.read(path)) == 77
        with reading_once():
            assert model_file.of(path).config()["max_position_embeddings"] == 77
    assert changes(config, path) == {"override_kv": given}
    assert changes(Config(model_path=str(path)), path) == {}
    assert "openvino-genai reads the metadata" in gguf_file(path, config).only_paged()


def test_a_server_without_the_feature_says_that_it_lacks_it(path):
    config = Config(model_path=str(path), without="gguf")
    with reading_once(config):
        assert model_dir.detect_task(path) == "text_generation"
        assert header_of(path).metadata["llama.context_length"] == 300


async def test_adapters_and_lists_of_a_loaded_model_read_the_replaced_values(path, monkeypatch):
    path.write_bytes(file({"general.file_type": (4, struct.pack("<I", 2))}))
    given = "general.file_type=int:15,llama.context_length=int:77"
    config = Config(model_path=str(path), model_name="m", override_kv=given, allow_runtime_lora=True)
    model = TextModel(config, FakeEngine([]))
    model._info = replace(INFO, of_task={ADAPTED: {"x": [1, 1]}, FIXED: []})
    lengths = []

    def check(module, model_dir, *layers):
        lengths.append(model_config.context_length(model_config.read(model_dir)))
        if layers:
            raise StartError("it does not fit")

    monkeypatch.setattr(files, "check", check)
    monkeypatch.setattr(files, "check_layers", check)
    with pytest.raises(StartError, match="it does not fit"):
        await model.adapters.add("a", "/lora/a")
    assert lengths == [77, 77]
    assert (await weights_of(model)).precision == "Q4_K_M"


def gguf_file(path, config):
    with reading_once(config):
        return model_file.of(path)


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ("a", "'a' is not of the form KEY=TYPE:VALUE with the types int, float, bool and str"),
        ("llama.x=long:1", "'llama.x=long:1' is not of the form KEY=TYPE:VALUE"),
        ("llama.x=int:1.5", "'1.5' of llama.x is not of the type int"),
        ("llama.x=float:nan", "'nan' of llama.x is not of the type float"),
        ("llama.x=bool:yes", "'yes' of llama.x is not of the type bool"),
        ("split.count=int:1", "split.count says where the tensors of the file are"),
        ("general.alignment=int:1", "general.alignment says where the tensors of the file are"),
        ("llama.context_length=float:9", "llama.context_length is int in the file, not float"),
        ("tokenizer.ggml.tokens=str:a", "tokenizer.ggml.tokens is an array in the file, not str"),
        ("qwen2.context_length=int:9", "the file has no qwen2.context_length, and a network of the architecture llama"),
        ("general.architecture=str:rwkv7", "GGUF files of the architecture rwkv7 are not supported"),
        ("llama.block_count=int:99999", "it claims 99999 layers"),
    ],
)
def test_a_wrong_value_is_refused_with_its_key(path, values, error):
    with pytest.raises(StartError) as found:
        opened(path, values)
    assert error in str(found.value)


@pytest.mark.parametrize(
    ("positions", "error"),
    [
        ({"rope_type": "llama3"}, "rope_type must be none, linear or yarn; it is 'llama3'"),
        ({"factor": 0}, "factor must be a number above 0; it is 0"),
        ({"factor": True}, "factor must be a number above 0; it is True"),
        ({"original_max_position_embeddings": 1.5}, "must be a whole number above 0; it is 1.5"),
        ({"extrapolation_factor": -1}, "extrapolation_factor must be a number of at least 0; it is -1"),
        ({"mscale": 1}, "unknown member 'mscale'; known are rope_type, rope_theta, factor"),
        ({"rope_type": "yarn", "factor": 0.5}, "the factor of yarn must be at least 1; it is 0.5"),
    ],
)
def test_a_wrong_scaling_is_refused_with_its_member(path, positions, error):
    with pytest.raises(WrongOptions) as found:
        opened(path, **positions)
    assert error in str(found.value)


@pytest.mark.parametrize("name", ["bloom", "gpt2", "mamba", "bert"])
def test_networks_without_rope_take_no_scaling(name):
    metadata = {"general.architecture": name, f"{name}.attention.head_count": 4 if name != "mamba" else 0}
    with pytest.raises(WrongOptions, match=f"networks of the architecture {name} have no RoPE"):
        Overrides.read("", json.dumps(YARN)).apply(metadata)


@pytest.mark.parametrize(
    ("entries", "positions", "length"),
    [
        ({}, YARN, 400),
        ({}, {"rope_type": "yarn", "factor": 2}, 600),
        ({}, {"rope_type": "linear", "factor": 2.5}, 750),
        ({}, {"rope_type": "none"}, 300),
        ({}, {"rope_theta": 1e6}, 300),
        ({}, {"rope_type": "yarn", "original_max_position_embeddings": 50}, 300),
        ({"scaling.type": (8, text("yarn")), "scaling.factor": real(3)}, {"factor": 2}, 600),
        ({"scaling.type": (8, text("linear")), "scaling.factor": real(3)}, {"factor": 2}, 200),
        ({"scale_linear": real(3)}, {"factor": 6}, 600),
    ],
)
def test_a_factor_lengthens_the_context(path, entries, positions, length):
    path.write_bytes(file({f"llama.rope.{key}": value for key, value in entries.items()}))
    assert opened(path, **positions).config()["max_position_embeddings"] == length


def llamas(base, size, *, scale, ext, original, fast=32.0, slow=1.0, attention=1.0):
    """Returns the frequencies and the factor of cosines that llama.cpp's rope_yarn computes (ggml-cpu/ops.cpp)."""
    pairs = size // 2
    plain = base ** -(np.arange(pairs) * 2 / size)
    if not ext:
        return plain * scale, attention
    ends = [size * math.log(original / (beta * 2 * math.pi)) / (2 * math.log(base)) for beta in (fast, slow)]
    low, high = max(0, math.floor(ends[0])), min(size - 1, math.ceil(ends[1]))
    ramp = (1 - np.clip((np.arange(pairs) - low) / max(0.001, high - low), 0, 1)) * ext
    return plain * scale * (1 - ramp) + plain * ramp, 1 + 0.1 * math.log(1 / scale)


@pytest.mark.parametrize(
    ("positions", "theirs"),
    [
        (YARN, {"scale": 0.25, "ext": 1.0, "original": 100}),
        ({**YARN, "rope_theta": 1e4, "extrapolation_factor": 0.5}, {"scale": 0.25, "ext": 0.5, "original": 100}),
        ({**YARN, "beta_fast": 4, "beta_slow": 0.5},
            {"scale": 0.25, "ext": 1.0, "original": 100, "fast": 4.0, "slow": 0.5}),
        ({**YARN, "extrapolation_factor": 0, "attention_factor": 0.7},
            {"scale": 0.25, "ext": 0, "original": 100, "attention": 0.7}),
        ({"rope_type": "linear", "factor": 8}, {"scale": 0.125, "ext": 0, "original": 300}),
        ({"factor": 2, "extrapolation_factor": 1}, {"scale": 0.5, "ext": 1.0, "original": 300}),
        ({"rope_type": "none", "factor": 2}, {"scale": 1.0, "ext": 0, "original": 300}),
    ],
)  # fmt: skip
def test_frequencies_are_those_of_llama_cpp(path, positions, theirs):
    found, factor = frequencies(opened(path, **positions), {}, 64, whole_ramp=True)
    wanted, attention = llamas(positions.get("rope_theta", 5e5), 64, **theirs)
    assert found == pytest.approx(wanted, rel=1e-12)
    assert factor == pytest.approx(attention, rel=1e-12)


def test_a_stated_factor_of_cosines_counts_also_in_files_that_llama_cpp_has_saved(path):
    unset = {"llama.rope.scaling.yarn_ext_factor": real(-1), "llama.rope.scaling.yarn_attn_factor": real(1)}
    path.write_bytes(file(unset))
    assert frequencies(opened(path, **YARN), {}, 64, whole_ramp=True)[1] == 1 + 0.1 * math.log(4)
    assert frequencies(opened(path, **YARN, attention_factor=0.7), {}, 64, whole_ramp=True)[1] == 0.7


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.parametrize("option", ["rope_parameters", "override_kv"])
def test_blocks_on_disk_that_have_other_positions_are_not_used(tmp_path, option):
    from tests.engine.real import load
    from tests.engine.rig import Rig
    from tests.features.gguf.test_networks import OPTIONS
    from tests.makers import zoo_gguf

    path = zoo_gguf.write(tmp_path / "x.gguf", "qwen2")
    scaled = {"rope_parameters": json.dumps(YARN), "override_kv": "qwen2.rope.freq_base=float:300"}[option]
    stored = {"prefix_cache_path": str(tmp_path / "blocks"), "enable_prefix_caching": True}
    found = []
    for value in ("", scaled, "", scaled):
        rig = Rig(pipeline=load(blocks=60, model_path=str(path), **{**OPTIONS, **stored, option: value}))
        answer = rig.ask([5 + number % 50 for number in range(200)], max_tokens=4, ignore_eos=True)
        found.append((answer.tokens[0], answer.cached or 0))
        rig.run()
        rig.task.close()
    assert found[0][0] != found[1][0]
    assert [cached for _, cached in found] == [0, 0, 192, 192]
    assert [tokens for tokens, _ in found[2:]] == [tokens for tokens, _ in found[:2]]


@pytest.mark.parametrize("option", ["mmproj", "override_kv", "rope_parameters"])
def test_the_options_are_refused_for_a_model_that_is_no_such_file(tmp_path, option):
    value = {"mmproj": "x.gguf", "override_kv": "llama.x=int:1", "rope_parameters": '{"factor": 2}'}[option]

    class Model:
        config = Config(model_path=str(tmp_path), **{option: value})

    with pytest.raises(WrongOptions, match=f"--{option}: {tmp_path} is"):
        GgufOnly(None, Model).check()
    Model.config = Config(model_path=str(tmp_path), mmproj="none")
    GgufOnly(None, Model).check()
    Model.config = Config(model_path=str(tmp_path / "x.gguf"), **{option: value})
    GgufOnly(None, Model).check()
