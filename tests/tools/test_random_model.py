"""Random models of the sizes of real ones: the same answers from OpenVINO's files and GGUF's."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("gguf")
pytest.importorskip("optimum.intel")

from bench.direct import Requests
from lean_ovms.types import SamplingParams
from tests.engine.real import EXACT, load
from tools import random_model

SIZES = {"hidden_size": 256, "num_hidden_layers": 2, "intermediate_size": 512, "vocab_size": 2048}
SHAPES = {
    "qwen3": {**random_model.QWEN3, **SIZES},
    "llama": {**SIZES, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64},
    "qwen3_moe": {**random_model.QWEN3, **SIZES, **random_model.EXPERTS, "num_experts": 4, "num_experts_per_tok": 2},
}
PROMPT = "a quiet town where people talk"


def answer(path: Path) -> list[int]:
    pipe = load(blocks=60, model_path=str(path), pipeline_type="PAGED", **EXACT)
    requests, found = Requests(pipe), list[int]()
    handle = requests.add(pipe.encode(PROMPT, False), SamplingParams(temperature=0.0, ignore_eos=True), 12)
    while requests.busy():
        requests.step()
        while handle.can_read():
            found += handle.read()[0].generated_ids
    return found


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", SHAPES)
def test_all_files_of_a_model_have_the_same_weights(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(random_model.SHAPES, "small", (kind, SHAPES[kind]))
    monkeypatch.setattr(random_model, "LARGE", 1 << 12)
    model = random_model.RandomModel("small", 0, tmp_path)
    model.export(tmp_path / "exported")

    whole = answer(model.save(tmp_path / "exported", "f16", tmp_path))

    assert len(set(whole)) > 4
    assert answer(model.save_gguf("F16", "")) == whole
    for precision in ("int8", "int4"):
        assert len(answer(model.save(tmp_path / "exported", precision, tmp_path))) == len(whole)


def test_the_tokenizer_has_its_size_and_gives_texts_back(tmp_path: Path) -> None:
    random_model.write_tokenizer(151_936, tmp_path / "tokenizer.json")
    tokenizer = random_model.wrapped(tmp_path / "tokenizer.json")

    ids = tokenizer.encode(PROMPT)

    assert len(tokenizer) == 151_936
    assert tokenizer.decode(ids) == PROMPT
    assert len(ids) < 2 * len(PROMPT.split())
