"""Language models that rerank: the prompt and the compared tokens of each family."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lean_ovms.config import Config
from lean_ovms.errors import StartError
from lean_ovms.features.pooling.child import files as pooling_dir
from lean_ovms.features.pooling.child.fake_pooler import FakePooler
from lean_ovms.features.pooling.child.rerank_prompts import FAMILIES, QWEN3, choose, encoded, scored_tokens
from tests.features.pooling.child.rig import Rig


def read(path: Path, config: Any, **more: Any) -> pooling_dir.PoolingFiles:
    for name, value in {"config": config, **more}.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / f"{name}.json").write_text(json.dumps(value))
    return pooling_dir.read(path)


def encode(texts: Sequence[str]) -> list[list[int]]:
    """Returns one id for a short word, and an id for each character of other texts."""
    return [[hash(text)] if len(text) < 4 else [*text.encode()] for text in texts]


@pytest.mark.parametrize(
    ("name", "config", "family", "assumed"),
    [
        ("Qwen3-Reranker-0.6B", {"model_type": "qwen3"}, "Qwen3-Reranker", False),
        ("Qwen3-VL-Reranker-2B", {"model_type": "qwen3_vl"}, "Qwen3-VL-Reranker", False),
        ("zerank", {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}, "Qwen3-Reranker", False),
        ("mxbai-rerank-base-v2", {"model_type": "qwen2"}, "mxbai-rerank-v2", False),
        ("m", {"_name_or_path": "BAAI/bge-reranker-v2-gemma", "model_type": "gemma"}, "bge-reranker-v2-gemma", False),
        ("m", {"architectures": ["LlamaForCausalLM"]}, "Qwen3-Reranker", True),
        ("bge-reranker-v2-m3", {"architectures": ["XLMRobertaForSequenceClassification"]}, "", False),
    ],
)
def test_a_model_gets_the_prompt_of_its_family(
    tmp_path: Path, name: str, config: Any, family: str, assumed: bool
) -> None:
    found, guessed = choose(read(tmp_path / name, config))
    assert (found.family if found else "", guessed) == (family, assumed)


def test_compared_tokens_are_those_of_the_files_or_of_the_family(tmp_path: Path) -> None:
    [gemma] = [one for one in FAMILIES if one.words == ("Yes",)]
    assert scored_tokens(gemma, read(tmp_path / "a", {}), encode) == [hash("Yes")]
    assert scored_tokens(QWEN3, read(tmp_path / "b", {}), encode) == [hash("no"), hash("yes")]
    of_vllm = read(tmp_path / "c", {"classifier_from_token": ["0", "1"]})
    assert scored_tokens(QWEN3, of_vllm, encode) == [hash("0"), hash("1")]
    modules = [{"path": "", "type": "x.Transformer"}, {"path": "1_LogitScore", "type": "x.LogitScore"}]
    for number, ids in enumerate(([3, 4], [4])):
        score = {"true_token_id": 4, "false_token_id": ids[0] if len(ids) > 1 else None}
        path = tmp_path / f"d{number}"
        assert scored_tokens(QWEN3, read(path, {}, modules=modules, **{"1_LogitScore/config": score}), encode) == ids
    with pytest.raises(StartError, match="--task rerank: wrong is not a token of this model"):
        scored_tokens(QWEN3, read(tmp_path / "e", {"classifier_from_token": ["wrong"]}), encode)


def test_a_pair_becomes_one_text_with_or_without_an_instruction() -> None:
    pooler: Any = FakePooler(Config(fake_engine=True, task="rerank"))
    texts = []
    for family in FAMILIES:
        pooler.prompt = encoded(family, pooler.tokenize)
        rig = Rig(pooler=pooler)
        rig.ask(("a {query}", "b"))
        texts.append(pooler.detokenize(rig.first_ids[0], False))
        number = rig.submit(("a", "b"), instruction="find {c}")
        rig.run()
        if family.instructed:
            assert "find {c}" in pooler.detokenize(rig.first_ids[1], False)
        else:
            assert rig.error(number) == "The prompt of this model has no instruction"
    assert "\n<Query>: a {query}\n<Document>: b<|im_end|>\n<|im_start|>assistant\n<think>" in texts[0]
    assert texts[1].endswith("the query.<Query>:a {query}\n<Document>:b<|im_end|>\n<|im_start|>assistant\n")
    assert "user\nquery: a {query}\ndocument: b\nYou are a search relevance expert" in texts[2]
    assert texts[3].startswith("<bos>A: a {query}\nB: b\nGiven a query A and a passage B, ")
