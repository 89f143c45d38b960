"""Random models with the sizes of real ones give the same answers as OpenVINO and as GGUF files."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("gguf")
pytest.importorskip("optimum.intel")

from tests.engine.paged.test_zoo import answers
from tests.engine.real import load
from tools import random_model

SIZES = {"hidden_size": 256, "num_hidden_layers": 2, "intermediate_size": 512, "vocab_size": 2048}
SHAPES = {
    "qwen3": {**random_model.SHAPES["qwen3-0.6b"], **SIZES},
    "llama": {"model_type": "llama", **SIZES, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64},
    "qwen3_moe": {
        **random_model.SHAPES["qwen3-30b-a3b"],
        **SIZES,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "tie_word_embeddings": True,
        "num_experts": 4,
        "num_experts_per_tok": 2,
    },
}
PLUGIN = '{"DYNAMIC_QUANTIZATION_GROUP_SIZE": "0", "INFERENCE_PRECISION_HINT": "f32"}'
PROMPT = "a quiet town where people talk"


def answer(path: Path) -> list[tuple[list[int], list[float]]]:
    return answers(load(blocks=60, model_path=str(path), pipeline_type="PAGED", plugin_config=PLUGIN))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", SHAPES)
def test_all_files_of_a_model_have_the_same_weights(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(random_model.SHAPES, "small", SHAPES[kind])
    monkeypatch.setattr(random_model, "LARGE", 1 << 12)
    model = random_model.RandomModel("small", 0, tmp_path)
    model.export(tmp_path / "exported")

    whole = answer(model.save(tmp_path / "exported", "f16", tmp_path))
    packed = answer(model.save_gguf("F16", ""))

    assert [ids for ids, _ in packed] == [ids for ids, _ in whole]
    assert [logprobs for _, logprobs in packed] == [pytest.approx(logprobs, abs=5e-3) for _, logprobs in whole]
    for precision, error in (("int8", 0.05), ("int4", 0.5)):
        close = answer(model.save(tmp_path / "exported", precision, tmp_path))
        assert [logprobs[0] for _, logprobs in close] == [pytest.approx(each[0], abs=error) for _, each in whole]


def test_the_tokenizer_has_its_size_and_gives_texts_back(tmp_path: Path) -> None:
    random_model.write_tokenizer(151_936, tmp_path / "tokenizer.json")
    tokenizer = random_model.wrapped(tmp_path / "tokenizer.json")

    ids = tokenizer.encode(PROMPT)

    assert len(tokenizer) == 151_936
    assert tokenizer.decode(ids) == PROMPT
    assert len(ids) < len(PROMPT) / 2
