"""Models in GGUF files that read images with an mmproj file: tokens and log probabilities of transformers in torch.

tests/makers/zoo_mmproj.py recorded them, with files made by llama.cpp's converter.
"""

import json
from pathlib import Path

import pytest

pytest.importorskip("gguf")

from lean_ovms.config import Config
from lean_ovms.engine.paged import assemble
from lean_ovms.engine.paged.network import file_of
from lean_ovms.engine.worker.text_model import load_text_model
from lean_ovms.errors import StartError
from lean_ovms.features.genai_pipelines.child.choice import GenAiPipelines
from lean_ovms.features.gguf import header
from lean_ovms.features.gguf.child import engine_file, gemma4_vision, lfm2_vision
from lean_ovms.features.gguf.child.mmproj import PROJECTORS, Mmproj
from lean_ovms.features.gguf.child.tensors import Tensors
from lean_ovms.features.vision.child.networks import VisionNetworks
from tests.archives import extract
from tests.engine.paged.test_precision import BF16, needs_bf16, rounded_angles
from tests.features.vision.child import models, test_zoo_vision
from tests.makers import make_gguf

ZOO = Path(__file__).parents[2] / "data" / "zoo_mmproj"
RECORDED = json.loads((ZOO / "answers.json").read_text())
TINY_LFM2 = {"min_image_tokens": 2, "max_image_tokens": 2, "tile_size": 64, "max_pixels_tolerance": 1.5}
pytestmark = pytest.mark.model


def unpacked(name, directory):
    """Returns the file of a model of the zoo, with its mmproj in the same folder."""
    return extract(ZOO / f"{name}.tar.xz", directory) / f"{name}.gguf"


def rewritten(path, target, renamed=None, **metadata):
    """Writes an mmproj file with other names of tensors and other metadata."""
    known = header.read_mmproj(path)
    with Tensors(path, known) as tensors:
        found = [((renamed or str)(name), tensors.numbers(name)) for name in known.tensors]
    changed = {key.replace("__", "."): value for key, value in metadata.items()}
    return make_gguf.pack(target, "clip", {**known.metadata, **changed, "general.architecture": None}, found, "F32")


def check(name, rig, monkeypatch):
    monkeypatch.setattr(test_zoo_vision, "RECORDED", RECORDED)
    monkeypatch.setattr(test_zoo_vision, "VIDEOS", [name] if "video" in RECORDED[name] else [])
    return test_zoo_vision.check(name, rig)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(RECORDED))
def test_tokens_and_log_probabilities_are_those_of_torch(name, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(gemma4_vision, "TOKENS", 70)  # the numbers that the processors of the tiny models use
    monkeypatch.setattr(lfm2_vision, "SETTINGS", lfm2_vision.SETTINGS | TINY_LFM2)
    again = name in ("gemma3", "qwen3_vl")  # of each kind of positions
    rig = models.load(unpacked(name, tmp_path), compiled_twice=again)
    before = check(name, rig, monkeypatch)
    assert "are not used" not in caplog.text
    if again:  # with cached prefixes
        assert before < check(name, rig, monkeypatch)


@pytest.mark.slow
def test_a_file_elsewhere_with_the_names_of_the_first_converters_answers_the_same(tmp_path, monkeypatch):
    path = unpacked("gemma3", tmp_path)

    def renamed(name):
        return name.replace("ffn_up", "ffn_*").replace("ffn_down", "ffn_up").replace("ffn_*", "ffn_down")

    other = rewritten(tmp_path / "mmproj-gemma3.gguf", tmp_path / "other.bin", renamed)
    (tmp_path / "mmproj-gemma3.gguf").unlink()
    check("gemma3", models.load(path, mmproj=str(other), compiled_twice=False), monkeypatch)


def test_images_of_gemma_4_have_as_many_tokens_as_in_transformers(tmp_path):
    for name, seen in (("gemma4", None), ("gemma4-moe", "vision")):
        path = unpacked(name, tmp_path)
        found = Mmproj(tmp_path / f"mmproj-{name}.gguf", path)
        assert found.processor["max_soft_tokens"] == 280
        assert found.config["text_config"]["use_bidirectional_attention"] == seen


def test_an_option_chooses_the_file(tmp_path):
    path = unpacked("smolvlm", tmp_path)

    def found(**options):
        return file_of(path).vision_file(Config(model_path=str(path), **options))

    assert found().config["image_token_id"] == 3
    assert found(mmproj="none") is None
    with pytest.raises(StartError, match=r"--mmproj nowhere\.gguf: no such file"):
        found(mmproj="nowhere.gguf")
    with pytest.raises(StartError, match="it is a model of the architecture llama, not an image encoder"):
        found(mmproj=str(path))


def test_of_several_files_beside_a_model_the_first_that_fits_is_taken(tmp_path, caplog):
    path = unpacked("smolvlm", tmp_path)
    fits = tmp_path / "mmproj-smolvlm.gguf"
    rewritten(fits, tmp_path / "mmproj-a-F16.gguf", clip__vision__projection_dim=32)
    for name, most in (("mmproj-b-BF16.gguf", 2), ("mmproj-b-f16.gguf", 3)):
        rewritten(fits, tmp_path / name, clip__vision__projector__scale_factor=most)
    vision_file = file_of(path).vision_file(Config(model_path=str(path)))
    assert vision_file.config["scale_factor"] == 3
    assert "its embeddings have 32 numbers, but the model's have 64" in caplog.text


def test_a_model_that_none_of_the_files_beside_it_fits_reads_text(tmp_path, caplog):
    path = unpacked("gemma3", tmp_path)
    (tmp_path / "mmproj-gemma3.gguf").unlink()
    unpacked("qwen3_vl", tmp_path)
    assert file_of(path).vision_file(Config(model_path=str(path))) is None
    assert "gemma3.gguf reads text only" in caplog.text
    assert "it is for the architectures qwen3vl, qwen3vlmoe, qwen35, qwen35moe, not for gemma3" in caplog.text


def test_a_split_model_has_its_file_one_folder_above(tmp_path):
    (tmp_path / "Q4").mkdir()
    whole, first, second = (tmp_path / "Q4" / f"a{part}.gguf" for part in ("", "-00001-of-00002", "-00002-of-00002"))
    near, above = tmp_path / "Q4" / "mmproj-b.gguf", tmp_path / "mmproj-F16.gguf"
    for file in (whole, first, second, near, above):
        file.touch()
    assert engine_file.mmproj_files(first, "") == [near, above]
    assert engine_file.mmproj_files(whole, "") == [near]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"without": "vision"}, "this server does not read images"),
        ({"pipeline_type": "LM_CB"}, "LM_CB does not read images"),
    ],
)
def test_a_file_that_is_not_used_is_named(options, reason, tmp_path, caplog, monkeypatch):
    path = unpacked("smolvlm", tmp_path)
    file = tmp_path / "mmproj-smolvlm.gguf"

    class Loading(Exception):
        """Raised where the network would be loaded."""

    def load(*args, **options):
        raise Loading

    monkeypatch.setattr(assemble, "PagedModel", load)
    monkeypatch.setattr(GenAiPipelines, "load", load)
    config = Config(model_path=str(path), **options)
    with pytest.raises(Loading):
        load_text_model(config)
    assert f"does not use {file.name}: {reason}" in caplog.text
    with pytest.raises(StartError, match=f"--mmproj {file}: {reason}"):
        load_text_model(config.replace(mmproj=str(file)))
    caplog.clear()
    with pytest.raises(Loading):
        load_text_model(config.replace(mmproj="none"))
    assert file.name not in caplog.text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clip__projector_type": "ldpv2"},
         f"projector_type ldpv2 is not supported; supported types are {', '.join(PROJECTORS)}"),
        ({"clip__has_vision_encoder": False}, "it has no image encoder"),
        ({"clip__vision__projection_dim": 96}, "its embeddings have 96 numbers, but the model's have 64"),
        ({"clip__vision__is_deepstack_layers": [True, True]},
         "embeddings for 2 deeper layers, but the model reads them in 1"),
        ({"clip__vision__block_count": None}, "its header lacks vision.block_count"),
        ({"clip__vision__image_mean": [0.5]}, "its header lacks vision.image_mean"),
        ({"clip__vision__image_std": [0.5, 0.0, 0.5]}, "its header lacks vision.image_std"),
        ({"clip__projector_type": [1, 2]}, "projector_type [1, 2] is not supported"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_read_images_for_a_model_is_refused_with_the_reason(changes, message, tmp_path):
    path = unpacked("qwen3_vl", tmp_path)
    other = rewritten(tmp_path / "mmproj-qwen3_vl.gguf", tmp_path / "other.gguf", **changes)
    with pytest.raises(StartError) as error:
        file_of(path).vision_file(Config(model_path=str(path), mmproj=str(other)))
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("name", "message"), [("mm.2.weight", "is not a complete GGUF file"), ("v.position_embd.weight", "cannot be used")]
)
def test_a_tensor_that_is_missing_is_named(name, message, tmp_path):
    path = unpacked("qwen3_vl", tmp_path)
    other = rewritten(
        tmp_path / "mmproj-qwen3_vl.gguf", tmp_path / "other.gguf", lambda tensor: "x.y" if tensor == name else tensor
    )
    with pytest.raises(StartError, match=rf"other\.gguf {message}: it has no {name}"):
        Mmproj(other, path).network("vision_embeddings_merger")


def test_values_that_no_network_uses_are_named(tmp_path, caplog):
    path = unpacked("qwen3_vl", tmp_path)
    other = rewritten(tmp_path / "mmproj-qwen3_vl.gguf", tmp_path / "other.gguf", clip__vision__swiglu_clamp=7.0)
    file = Mmproj(other, path)
    file.network("vision_embeddings"), file.network("vision_embeddings_pos")
    assert not caplog.text
    file.network("vision_embeddings_merger")
    assert caplog.text.strip().endswith("are not used: vision.swiglu_clamp")


@pytest.mark.slow
@needs_bf16
@pytest.mark.parametrize("name", ["qwen2_5_vl", "qwen3_vl"])
def test_angles_are_not_rounded(name, tmp_path):
    path = unpacked(name, tmp_path)
    networks = VisionNetworks(path, "CPU", BF16, Mmproj(tmp_path / f"mmproj-{name}.gguf", path))
    assert rounded_angles(networks.compiled("vision_embeddings_merger")) == []
