"""GGUF files as pooling models: the vectors of transformers in torch, which tests/makers/zoo_gguf.py recorded."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gguf")

import numpy as np

from lean_ovms.config import Config
from lean_ovms.errors import StartError
from lean_ovms.features.gguf.child import tensors
from lean_ovms.features.pooling.child.model import OpenVinoPooler
from tests.features.pooling.child.rig import Rig
from tests.makers import zoo_gguf
from tests.makers.make_gguf import pack
from tests.makers.zoo_torch import prompts

RECORDED = zoo_gguf.recorded()
EXACT = '{"INFERENCE_PRECISION_HINT": "f32"}'
MEAN, FIRST, LAST, RANK = 1, 2, 3, 4
pytestmark = [pytest.mark.model]


def load(path: Path, task: str = "embeddings", **options: Any) -> Rig:
    return Rig(pooler=OpenVinoPooler(Config(model_path=str(path), task=task, plugin_config=EXACT, **options)))


def test_a_file_that_would_read_images_is_not_ignored_in_silence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = zoo_gguf.write(tmp_path / "x.gguf", "qwen3", **{"qwen3.pooling_type": LAST})
    (beside := tmp_path / "mmproj.gguf").touch()
    load(path)
    reason = "a pooling model in a GGUF file does not read images"
    assert f"x.gguf reads text only, and does not use mmproj.gguf: {reason}" in caplog.text
    with pytest.raises(StartError, match=f"--mmproj {beside}: {reason}"):
        load(path, mmproj=str(beside))
    caplog.clear()
    load(path, mmproj="none")
    assert "mmproj" not in caplog.text


@pytest.mark.slow
def test_weights_keep_their_values_if_answers_must_not_depend_on_the_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in models that generate text: other weights are requantized to 8 bits if they are of a certain size."""
    path, found = zoo_gguf.write(tmp_path / "x.gguf", "qwen3", "Q4_1", **{"qwen3.pooling_type": LAST}), []
    for sizes, exact in ((range(0), True), (range(1, 1 << 21), True), (range(1, 1 << 21), False)):
        monkeypatch.setattr(tensors, "ROUNDED", sizes)
        found.append(load(path, batch_invariant=exact).ask(*prompts())[0][0])
    assert np.abs(found[1] - found[0]).max() < 1e-6
    assert np.abs(found[2] - found[0]).max() > 1e-4


@pytest.mark.parametrize("name", zoo_gguf.POOLED)
def test_vectors_of_a_batch_are_those_of_torch(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kind = RECORDED[name]["architecture"]
    rig = load(zoo_gguf.write(tmp_path / "x.gguf", name, **{f"{kind}.pooling_type": LAST}))
    info = rig.pooler.pooling
    assert (info.pooling, info.pooling_source, info.pooling_assumed) == ("LAST", "the GGUF file", False)
    wanted = [np.array(vector) for vector in RECORDED[name]["vectors"]]
    for rows, vector in zip(rig.ask(*prompts()), wanted, strict=True):
        assert np.abs(rows[0] - vector / np.linalg.norm(vector)).max() < 1e-4
    for rows, vector in zip(rig.ask(*prompts(), normalize=False), wanted, strict=True):
        assert np.abs(rows[0] - vector).max() < 1e-3
    assert "are not used" not in caplog.text


def test_all_tokens_see_each_other_in_a_model_that_is_not_causal(tmp_path: Path) -> None:
    changes = {"qwen3.pooling_type": FIRST, "qwen3.attention.causal": False}
    rig = load(zoo_gguf.write(tmp_path / "x.gguf", "qwen3", **changes))
    [alone] = rig.ask([5, 6])
    assert np.abs(alone - rig.ask([5, 7])[0]).max() > 0.01
    assert np.abs(alone - rig.ask([5, 6], prompts()[1])[0]).max() < 1e-4  # no token sees the padding


def test_texts_end_with_the_files_token(tmp_path: Path) -> None:
    changes = {"qwen3.pooling_type": LAST, "tokenizer.ggml.add_eos_token": True}
    rig = load(zoo_gguf.write(tmp_path / "x.gguf", "qwen3", **changes))
    [text], [ids] = rig.ask("AB<pad>A"), rig.ask([*rig.pooler.tokenize(["AB<pad>A"])[0], 1])
    assert np.abs(text - ids).max() < 1e-6
    assert rig.pooler.detokenize([2, 1], False) == "<pad></s>"
    assert rig.pooler.template.single == ((), (1,))


def test_a_reranker_compares_yes_and_no(tmp_path: Path) -> None:
    tokens = [*zoo_gguf.WORDS["tokenizer.ggml.tokens"][:-2], "no", "yes"]
    changes: dict[str, Any] = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.merges": None}
    changes |= {"qwen3.pooling_type": RANK, "tokenizer.ggml.pre": "glm4"}
    rig = load(zoo_gguf.write(tmp_path / "x.gguf", "qwen3", **changes), "rerank")
    head = zoo_gguf.values("output.weight", RECORDED["qwen3"]["tensors"]["output.weight"])
    no, yes = tokens.index("no"), tokens.index("yes")
    for rows, vector in zip(rig.ask(*prompts(), activation=False), RECORDED["qwen3"]["vectors"], strict=True):
        assert float(rows[0, 0]) == pytest.approx(float(np.array(vector) @ (head[yes] - head[no])), abs=5e-3)


def test_a_reranker_has_rows_for_yes_and_no_alone(tmp_path: Path) -> None:
    """llama.cpp's converter makes such files of Qwen3-Reranker: they lack the untied head."""
    labels = {"qwen3.pooling_type": RANK, "qwen3.classifier.output_labels": ["yes", "no"], "tokenizer.ggml.pre": "glm4"}
    yes, no = zoo_gguf.values("cls.output.weight", [2, 64])
    tensors = {name: shape for name, shape in RECORDED["qwen3"]["tensors"].items() if name != "output.weight"}
    rig = load(packed(tmp_path, "qwen3", {**tensors, "cls.output.weight": [2, 64]}, **labels), "rerank")
    for rows, vector in zip(rig.ask(*prompts(), activation=False), RECORDED["qwen3"]["vectors"], strict=True):
        assert float(rows[0, 0]) == pytest.approx(float(np.array(vector) @ (yes - no)), abs=5e-3)


CLASSIFIER = {"cls.weight": [64, 64], "cls.bias": [64], "cls.output.weight": [1, 64], "cls.output.bias": [1]}


@pytest.mark.parametrize(("task", "classes"), [("rerank", 1), ("classify", 3)])
def test_a_classifier_of_an_encoder_reads_the_first_token(tmp_path: Path, task: str, classes: int) -> None:
    sizes = CLASSIFIER | {"cls.output.weight": [classes, 64], "cls.output.bias": [classes]}
    rig = load(packed(tmp_path, "bert", {**RECORDED["bert"]["tensors"], **sizes}), task)
    inner, bias, last, end = (zoo_gguf.values(name, shape).astype(np.float64) for name, shape in sizes.items())
    vectors = load(zoo_gguf.write(tmp_path / "y.gguf", "bert", **{"bert.pooling_type": FIRST}))
    for rows, [vector] in zip(
        rig.ask(*prompts(), activation=False), vectors.ask(*prompts(), normalize=False), strict=True
    ):
        wanted = last @ np.tanh(inner @ vector + bias) + end
        assert np.abs(rows[0] - wanted).max() < 5e-3


MODERN = {"cls.weight": [64, 64], "cls.norm.weight": [64], "cls.output.weight": [1, 64], "cls.output.bias": [1]}


@pytest.mark.parametrize("pooling", [None, MEAN, FIRST])
def test_the_classifier_of_modernbert_reads_the_tokens_that_the_file_names(tmp_path: Path, pooling: int | None) -> None:
    changes = {"modern-bert.classifier.pooling_type": pooling}
    rig = load(packed(tmp_path, "modernbert", {**RECORDED["modernbert"]["tensors"], **MODERN}, **changes), "rerank")
    inner, norm, last, end = (zoo_gguf.values(name, shape).astype(np.float64) for name, shape in MODERN.items())
    changes = {"modern-bert.pooling_type": pooling or MEAN}
    vectors = load(zoo_gguf.write(tmp_path / "y.gguf", "modernbert", **changes))
    for rows, [vector] in zip(
        rig.ask(*prompts(), activation=False), vectors.ask(*prompts(), normalize=False), strict=True
    ):
        found = np.array([0.5 * each * (1 + math.erf(each / math.sqrt(2))) for each in inner @ vector])
        found = (found - found.mean()) / np.sqrt(found.var() + 1e-5) * norm
        assert np.abs(rows[0] - (last @ found + end)).max() < 5e-3


def test_what_is_not_known_of_an_encoder_is_named(tmp_path: Path) -> None:
    changes = {"modern-bert.hidden_activation": "relu2"}
    with pytest.raises(StartError, match="its activation function is relu2, and not gelu or"):
        load(zoo_gguf.write(tmp_path / "x.gguf", "modernbert", **changes))
    changes = {"modern-bert.classifier.pooling_type": LAST}
    tensors = {**RECORDED["modernbert"]["tensors"], **MODERN}
    with pytest.raises(StartError, match="its classifier has the pooling type 3"):
        load(packed(tmp_path, "modernbert", tensors, **changes), "rerank")
    with pytest.raises(StartError, match="a token uses 5 of 4 experts"):
        load(zoo_gguf.write(tmp_path / "x.gguf", "nomic_bert-moe", **{"nomic-bert-moe.expert_used_count": 5}))


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("modernbert", "blk.1.attn_norm.weight"),
        ("modernbert-biased", "blk.3.ffn_up.bias"),
        ("nomic_bert-moe", "blk.0.ffn_up.weight"),
        ("nomic_bert-moe", "blk.1.ffn_down_exps.weight"),
    ],
)
def test_layers_of_encoders_lack_nothing_of_their_kind(tmp_path: Path, name: str, missing: str) -> None:
    tensors = {tensor: shape for tensor, shape in RECORDED[name]["tensors"].items() if tensor != missing}
    with pytest.raises(StartError, match=f"it has no {re.escape(missing)}"):
        load(packed(tmp_path, name, tensors))


def test_a_single_row_has_one_dimension_in_files_that_were_quantized(tmp_path: Path) -> None:
    """llama.cpp's quantization omits the dimension 1 of an XLM-RoBERTa reranker's token types and score."""
    found = []
    for types, score in (([1, 64], [1, 64]), ([64], [64])):
        sizes = {**RECORDED["bert"]["tensors"], **CLASSIFIER, "token_types.weight": types, "cls.output.weight": score}
        found.append(load(packed(tmp_path, "bert", sizes), "rerank").ask(*prompts(), activation=False))
    for one, other in zip(*found, strict=True):
        assert np.abs(one - other).max() < 5e-3


def test_a_file_without_the_projections_of_its_model_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    name = "gemma3_text-embedding"
    tensors = {tensor: shape for tensor, shape in RECORDED[name]["tensors"].items() if not tensor.startswith("dense")}
    load(packed(tmp_path, name, tensors))
    assert "x.gguf lacks the model's final projections" in caplog.text
    caplog.clear()
    load(packed(tmp_path, name, RECORDED[name]["tensors"]))
    assert "final projections" not in caplog.text


def packed(folder: Path, name: str, tensors: dict[str, list[int]], **changes: Any) -> Path:
    """Writes the file of a recorded model with other tensors."""
    made = {tensor: zoo_gguf.values(tensor, shape) for tensor, shape in tensors.items()}
    metadata = {**RECORDED[name]["metadata"], **zoo_gguf.WORDS, **changes}
    return pack(folder / "x.gguf", RECORDED[name]["architecture"], metadata, made.items(), "F16")
