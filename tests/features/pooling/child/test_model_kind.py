"""What a model computes follows from the files in its directory and the shape of its network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lean_ovms.config import Config
from lean_ovms.errors import StartError
from lean_ovms.features.pooling.child import files as pooling_dir
from lean_ovms.features.pooling.child.model_kind import Shape, lost_limit, recognize
from lean_ovms.features.pooling.types import PoolingInfo

INPUTS = frozenset({"input_ids", "attention_mask"})
HIDDEN = Shape(INPUTS, "last_hidden_state", 3, 32)
SENTENCE = Shape(INPUTS, "sentence_embedding", 2, 32)
LOGITS = Shape(INPUTS, "logits", 2, 1)


def directory(path: Path, **files: Any) -> Path:
    for name, value in files.items():
        file = path / f"{name}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(value))
    return path


def info(path: Path, shape: Shape = HIDDEN, task: str = "embeddings", **options: Any) -> PoolingInfo:
    return recognize(Config(task=task, model_path=str(path), **options), pooling_dir.read(path), shape).info


MODULES = [{"path": "", "type": "sentence_transformers.models.Transformer"},
           {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]  # fmt: skip
NORMALIZED = [*MODULES, {"path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}]


@pytest.mark.parametrize(
    ("files", "options", "mode", "source"),
    [
        ({"1_Pooling/config": {"pooling_mode_mean_tokens": True}}, {"pooling": "LAST"}, "LAST", "option"),
        ({"1_Pooling/config": {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}}, {}, "MEAN", "1_P"),
        ({"1_Pooling/config": {"pooling_mode": "lasttoken"}}, {}, "LAST", "1_Pooling"),
        ({"1_Pooling/config": {"pooling_mode_max_tokens": True}}, {}, "MAX", "1_Pooling"),
        ({"1_Pooling/config": {"word_embedding_dimension": 32}}, {}, "MEAN", "1_Pooling"),
        (
            {"1_Pooling/config": {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}},
            {}, "CLS+MEAN", "1_Pooling",
        ),
        ({"1_Pooling/config": {"pooling_mode": ["mean", "max", "cls"]}}, {}, "MEAN+MAX+CLS", "1_Pooling"),
        (
            {"modules": [{"path": "9_Pool", "type": "x.Pooling"}], "9_Pool/config": {"pooling_mode": "mean"}},
            {}, "MEAN", "1_Pooling",
        ),
        ({"config": {"_name_or_path": "intfloat/multilingual-e5-small"}}, {}, "MEAN", "name"),
        ({"config": {"_name_or_path": "BAAI/bge-small-en-v1.5"}}, {}, "CLS", "name"),
        ({"config": {"_name_or_path": "Alibaba-NLP/gte-base-en-v1.5"}}, {}, "CLS", "name"),
        ({"config": {"_name_or_path": "thenlper/gte-small"}}, {}, "MEAN", "name"),
        ({"config": {"model_type": "qwen3"}}, {}, "LAST", "architecture"),
        ({"config": {"model_type": "static"}}, {}, "MEAN", "static"),
    ],
)  # fmt: skip
def test_pooling_is_decided_by_the_first_evidence(
    tmp_path: Path, files: dict[str, Any], options: dict[str, Any], mode: str, source: str
) -> None:
    found = info(directory(tmp_path / "m", **files), **options)
    assert (found.pooling, found.pooling_assumed) == (mode, False)
    assert source in found.pooling_source


@pytest.mark.parametrize(
    ("mode", "kind", "names"),
    [
        ("LAST", "mistral", "intfloat/e5-mistral-7b-instruct BAAI/bge-en-icl Salesforce/SFR-Embedding-Mistral"),
        ("LAST", "gemma2", "BAAI/bge-multilingual-gemma2"),
        ("LAST", "qwen2", "nomic-ai/nomic-embed-code BAAI/bge-code-v1 jinaai/jina-code-embeddings-0.5b"),
        ("LAST", "qwen2", "Alibaba-NLP/gte-Qwen2-1.5B-instruct Alibaba-NLP/gte-Qwen1.5-7B-instruct"),
        ("LAST", "qwen3", "Qwen/Qwen3-Embedding-0.6B jinaai/jina-embeddings-v5-text-small"),
        ("LAST", "", "intfloat/e5-mistral-7b-instruct BAAI/bge-en-icl BAAI/bge-multilingual-gemma2 x/nomic-embed-code"),
        ("MEAN", "gemma3_text", "google/embeddinggemma-300m"),
        ("MEAN", "qwen2", "NovaSearch/stella_en_1.5B_v5"),
        ("WEIGHTED_MEAN", "gpt_neo", "Muennighoff/SGPT-125M-weightedmean-nli-bitfit"),
        ("CLS", "mpnet", "sentence-transformers/multi-qa-mpnet-base-dot-v1"),
        ("CLS", "distilbert", "multi-qa-distilbert-dot-v1 sentence-transformers/msmarco-distilbert-base-tas-b"),
        ("CLS", "bert", "BAAI/bge-large-zh-v1.5 mixedbread-ai/mxbai-embed-large-v1 Snowflake/snowflake-arctic-embed-m"),
        ("CLS", "xlm-roberta", "BAAI/bge-m3 Snowflake/snowflake-arctic-embed-l-v2.0 ibm/granite-embedding-278m"),
        ("CLS", "modernbert", "Alibaba-NLP/gte-modernbert-base"),
        ("MEAN", "modernbert", "nomic-ai/modernbert-embed-base"),
        ("MEAN", "bert", "sentence-transformers/all-MiniLM-L6-v2 multi-qa-MiniLM-L6-cos-v1 thenlper/gte-base"),
        ("MEAN", "bert", "jinaai/jina-embeddings-v2-base-en jina-embedding-s-en-v1 msmarco-bert-base-dot-v5"),
        ("MEAN", "roberta", "sentence-transformers/all-roberta-large-v1 sentence-transformers/all-distilroberta-v1"),
        ("MEAN", "xlm-roberta", "jinaai/jina-embeddings-v3 intfloat/multilingual-e5-large-instruct"),
        ("MEAN", "distilbert", "distiluse-base-multilingual-cased-v2 msmarco-distilbert-cos-v5"),
        ("MEAN", "new", "NovaSearch/stella_en_400M_v5"),
        ("MEAN", "nomic_bert", "nomic-ai/nomic-embed-text-v1.5"),
        ("MEAN", "xlm-roberta", "mixedbread-ai/deepset-mxbai-embed-de-large-v1"),
    ],
)
def test_known_families_are_pooled_as_their_own_files_say(tmp_path: Path, mode: str, kind: str, names: str) -> None:
    for number, name in enumerate(names.split()):
        path = directory(tmp_path / str(number), config={"model_type": kind, "_name_or_path": name})
        found = info(path)
        assert (name, found.pooling, found.pooling_assumed) == (name, mode, False)


@pytest.mark.parametrize(
    "config", [{"use_bidirectional_attention": True}, {"is_causal": False}, {"model_type": "llama_bidirec"}]
)
def test_a_decoder_that_reads_both_ways_is_not_taken_for_one_that_does_not(tmp_path: Path, config: Any) -> None:
    found = info(directory(tmp_path / "m", config={"model_type": "gemma3_text", **config}))
    assert (found.pooling, found.pooling_assumed) == ("MEAN", True)


@pytest.mark.parametrize(
    ("files", "lost"),
    [
        ({"config": {"_name_or_path": "sentence-transformers/all-MiniLM-L6-v2"}}, 256),
        ({"config": {"_name_or_path": "all-MiniLM-L6-v2"}, "sentence_bert_config": {"max_seq_length": 128}}, 0),
        ({"config": {"_name_or_path": "BAAI/bge-m3"}}, 0),
    ],
)
def test_a_limit_that_the_export_has_lost_is_known_by_the_family(
    tmp_path: Path, files: dict[str, Any], lost: int
) -> None:
    assert lost_limit(pooling_dir.read(directory(tmp_path / "m", **files))) == lost


@pytest.mark.parametrize(("kind", "window"), [("clip", 77), ("siglip", 64)])
def test_a_model_of_two_towers_needs_no_more_than_the_type_of_its_texts(tmp_path: Path, kind: str, window: int) -> None:
    config = {"model_type": kind, "text_config": {"model_type": f"{kind}_text_model"}}
    path = directory(tmp_path / "m", config=config, tokenizer_config={"do_lower_case": True})
    found = info(path, Shape(INPUTS, "text_embeds", 2, 512, "alone"))
    assert (found.pooling, found.window, found.images, found.lower_case) == ("MODEL", window, "alone", True)
    assert not info(path).lower_case


def test_a_model_of_late_interaction_keeps_the_vectors_of_its_tokens(tmp_path: Path) -> None:
    path = directory(tmp_path / "m", config={"architectures": ["HF_ColBERT"], "dim": 8})
    found = info(path)
    assert (found.kind, found.pooling, found.dimensions, found.normalize) == ("token_embed", "ALL", 8, True)
    assert found.pooling_source == "config.json (HF_ColBERT)"
    assert info(directory(tmp_path / "n"), pooling="ALL").dimensions == 32
    assert info(path, pooling="MEAN").kind == "embed"
    with pytest.raises(StartError, match="--pooling ALL: the network's output sentence_embedding is not"):
        info(path, SENTENCE, pooling="ALL")


def test_modules_without_pooling_are_those_of_late_interaction(tmp_path: Path) -> None:
    modules = [MODULES[0], {"path": "1_Dense", "type": "pylate.models.Dense.Dense"}]
    files = {"modules": modules, "1_Dense/config": {"out_features": 8}, "config": {"model_type": "modernbert"}}
    path = directory(tmp_path / "m", **files)
    found = info(path)
    assert (found.kind, found.pooling, found.dimensions, found.pooling_assumed) == ("token_embed", "ALL", 8, False)
    assert found.normalize
    assert not info(path, normalize="false").normalize
    assert info(path, pooling="MEAN").kind == "embed"
    assert info(path, SENTENCE).pooling == "MODEL"
    assert info(directory(tmp_path / "n", modules=MODULES[:1])).kind == "embed"


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"modules": [{"path": "/etc", "type": "x.Pooling"}]},
        {"modules": [{"path": "../up", "type": "x.Pooling"}], "config": {"model_type": "bert"}},
    ],
)
def test_without_evidence_cls_is_assumed_and_said_so(tmp_path: Path, files: dict[str, Any]) -> None:
    found = info(directory(tmp_path / "m", **files))
    assert (found.pooling, found.pooling_assumed) == ("CLS", True)
    assert found.pooling_source.startswith("a default")


def test_vectors_of_several_ways_of_pooling_are_as_long_as_all_of_them(tmp_path: Path) -> None:
    settings = {f"pooling_mode_{flag}": True for flag in (
        "lasttoken", "weightedmean_tokens", "mean_sqrt_len_tokens", "mean_tokens", "max_tokens", "cls_token",
    )}  # fmt: skip
    found = info(directory(tmp_path / "m", **{"1_Pooling/config": settings}))
    assert (found.pooling, found.dimensions) == ("CLS+MAX+MEAN+MEAN_SQRT_LEN+WEIGHTED_MEAN+LAST", 6 * 32)
    with pytest.raises(StartError, match="has the pooling mode attention, which is not supported"):
        info(directory(tmp_path / "n", **{"1_Pooling/config": {"pooling_mode": ["mean", "attention"]}}))


def test_prompts_are_left_out_of_vectors_if_the_files_say_so(tmp_path: Path) -> None:
    pooling = {"1_Pooling/config": {"pooling_mode": "mean", "include_prompt": False}}
    prompts = {"config_sentence_transformers": {"prompts": {"query": "q: ", "document": ""}}}
    path = directory(tmp_path / "m", **pooling, **prompts)
    assert not info(path).pools_prompts
    assert info(path, pooling="ALL").pools_prompts
    assert info(directory(tmp_path / "n", **pooling)).pools_prompts
    with pytest.raises(StartError, match="the network pools by itself and has no output of one vector for each token"):
        info(path, SENTENCE)
    with pytest.raises(StartError, match="which --embed_long_inputs mean cannot do"):
        info(path, embed_long_inputs="mean")


def test_a_network_that_pools_by_itself_is_left_as_it_is(tmp_path: Path) -> None:
    found = info(tmp_path, SENTENCE)
    assert (found.pooling, found.normalize, found.pooling_assumed) == ("MODEL", False, False)
    assert info(tmp_path, SENTENCE, normalize="true").normalize


@pytest.mark.parametrize(
    ("files", "options", "normalize"),
    [
        ({}, {}, True),
        ({"modules": MODULES}, {}, False),
        ({"modules": NORMALIZED}, {}, True),
        ({"modules": MODULES}, {"normalize": "true"}, True),
        ({"modules": NORMALIZED}, {"normalize": "false"}, False),
    ],
)
def test_normalization(tmp_path: Path, files: dict[str, Any], options: dict[str, Any], normalize: bool) -> None:
    assert info(directory(tmp_path, **files), **options).normalize is normalize


@pytest.mark.parametrize(
    ("after", "refused"),
    [
        (["Pooling", "Dropout", "Dense", "Dense", "Normalize"], ""),
        (["Dense"], ""),
        (["WeightedLayerPooling", "Pooling"], "WeightedLayerPooling"),
        (["Pooling", "LayerNorm"], "LayerNorm"),
        (["Dense", "Pooling"], "Pooling"),
        (["Pooling", "Normalize", "Dense"], "Dense"),
    ],
)
def test_modules_that_change_vectors_are_not_ignored(tmp_path: Path, after: list[str], refused: str) -> None:
    modules = [{"path": str(number), "type": f"x.{name}"} for number, name in enumerate(["Transformer", *after])]
    path = directory(tmp_path, modules=modules, **{f"{number}/config": {"out_features": 8} for number in range(6)})
    if refused:
        with pytest.raises(StartError, match=f"modules.json has the module {refused}, which is not supported here"):
            info(path)
    else:
        assert info(path).dimensions == 8
        assert info(path, pooling="ALL").dimensions == (32 if "Pooling" in after else 8)
    assert info(path, SENTENCE).dimensions == 32  # the network contains its modules


@pytest.mark.parametrize(
    ("files", "options", "window"),
    [
        ({}, {}, 1024),
        ({"config": {"max_position_embeddings": 512, "model_type": "bert"}}, {}, 512),
        ({"config": {"max_position_embeddings": 514, "model_type": "xlm-roberta", "pad_token_id": 1}}, {}, 512),
        ({"config": {"n_ctx": 2048}, "sentence_bert_config": {"max_seq_length": 256}}, {}, 256),
        ({"config": {"n_ctx": 2048}, "tokenizer_config": {"model_max_length": 1000}}, {}, 1000),
        ({"config": {"n_ctx": 2048}, "tokenizer_config": {"model_max_length": 1e30}}, {}, 2048),
        ({"config": {"n_ctx": 2048}}, {"max_model_len": 64}, 64),
        ({"config": {"n_ctx": 2048}}, {"max_position_embeddings": 32}, 32),
    ],
)
def test_the_window_is_the_smallest_that_anything_says(
    tmp_path: Path, files: dict[str, Any], options: dict[str, Any], window: int
) -> None:
    assert info(directory(tmp_path, **files), **options).window == window


@pytest.mark.parametrize(
    ("config", "width", "activation"),
    [
        ({}, 1, "sigmoid"),
        ({}, 3, "softmax"),
        ({"problem_type": "regression"}, 1, "none"),
        ({"problem_type": "single_label_classification"}, 1, "sigmoid"),
        ({"problem_type": "multi_label_classification"}, 3, "sigmoid"),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, 1, "none"),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, 1, "none"),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.activation.Sigmoid"}, 1, "sigmoid"),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}}, 3, "sigmoid"),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Softmax"}}, 2, "softmax"),
    ],
)
def test_the_activation_follows_vllms_rules(
    tmp_path: Path, config: dict[str, Any], width: int, activation: str
) -> None:
    path = directory(tmp_path, config=config)
    found = info(path, LOGITS._replace(width=width), task="classify")
    assert (found.kind, found.activation, found.outputs) == ("classify", activation, width)


def test_labels_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    path = directory(tmp_path, config={"id2label": {"10": "k", "2": "c", "0": "a"}})
    assert info(path, LOGITS._replace(width=3), task="classify").labels == ["a", "c", "k"]


def test_matryoshka_is_what_config_json_or_the_option_says(tmp_path: Path) -> None:
    assert not info(tmp_path).matryoshka
    assert info(tmp_path, matryoshka=True).matryoshka
    found = info(directory(tmp_path, config={"matryoshka_dimensions": [256, 64]}))
    assert (found.matryoshka, found.matryoshka_dimensions) == (True, [64, 256])


def test_prompts_come_from_both_files(tmp_path: Path) -> None:
    path = directory(
        tmp_path,
        config={"task_instructions": {"a": "A: "}},
        config_sentence_transformers={"prompts": {"query": "q: ", "bad": 1}},
        sentence_bert_config={"do_lower_case": True},
    )
    found = info(path)
    assert (found.prompts, found.lower_case) == ({"a": "A: ", "query": "q: "}, True)


@pytest.mark.parametrize(
    ("task", "shape", "message"),
    [
        ("rerank", HIDDEN, "the network computes embeddings"),
        ("rerank", LOGITS._replace(width=3), "serve it with --task classify"),
        ("embeddings", LOGITS, "computes logits for the task classify"),
        ("embeddings", Shape(INPUTS | {"beam_idx"}, "logits", 3, 400), "it with --task feature-extraction"),
        ("token_classify", LOGITS, "computes logits for the task classify"),
        ("classify", Shape(INPUTS, "logits", 3, 9), "computes logits for the task token_classify"),
    ],
)
def test_a_task_that_the_network_cannot_do_is_refused_at_the_start(
    tmp_path: Path, task: str, shape: Shape, message: str
) -> None:
    with pytest.raises(StartError, match=message):
        info(tmp_path, shape, task=task)
