"""Tiny random models of every kind, as optimum-cli exports them, compared with torch's results.

tests/data/pooling_models.zip has both, in float32. Other precisions use the same code.
"""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lean_ovms.config import Config
from lean_ovms.engine.loading.quiet_imports import PREPARED
from lean_ovms.engine.loading.settings import SHAPES
from lean_ovms.errors import StartError
from lean_ovms.features.pooling.child import network
from lean_ovms.features.pooling.child.model import OpenVinoPooler
from lean_ovms.features.pooling.model import DEMO as DEMO_EMBED
from lean_ovms.features.pooling.types import PER_TOKEN, PoolingInfo, TextWithImages
from lean_ovms.repository.model_dir import detect_task
from lean_ovms.types import IMAGE_TAG, Image
from lean_ovms.util.resources import allowed_cores
from tests.archives import extract
from tests.features.pooling.child.rig import Rig

pytestmark = [pytest.mark.model]

ZIP = Path(__file__).parents[3] / "data" / "pooling_models.zip"
EXACT = '{"INFERENCE_PRECISION_HINT": "f32"}'

Load = Callable[..., tuple[Rig, PoolingInfo, dict[str, Any]]]


def compiled(network: Any) -> Any:
    """Waits until a network is compiled whose compilation has begun, and returns its infer requests."""
    return network._requests.result(60)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return extract(ZIP, tmp_path_factory.mktemp("pooling"))


@pytest.fixture(scope="module")
def load(folder: Path) -> Load:
    """Loads a model by its folder's name. Returns it with its PoolingInfo and expected.json."""
    loaded: dict[Any, Any] = {}

    def load(name: str, **options: Any) -> tuple[Rig, PoolingInfo, dict[str, Any]]:
        key = (name, *options.items())
        if key not in loaded:
            config = Config(
                model_path=str(folder / name), task=detect_task(folder / name), plugin_config=EXACT, **options
            )
            pooler = OpenVinoPooler(config)
            expected = json.loads((folder / name / "expected.json").read_text())
            loaded[key] = pooler, pooler.pooling, expected
        pooler, info, expected = loaded[key]
        return Rig(pooler=pooler), info, expected

    return load


def inputs(expected: dict[str, Any]) -> list[Any]:
    return [tuple(pair) for pair in expected["pairs"]] if "pairs" in expected else expected["inputs"]


KINDS = {
    "bert_mean": ("embeddings", "embed", "MEAN", ""),
    "mpnet": ("embeddings", "embed", "CLS", ""),
    "qwen3_embed": ("embeddings", "embed", "LAST", ""),
    "modernbert": ("embeddings", "embed", "CLS", ""),
    "modernbert_cross": ("rerank", "score", "", "sigmoid"),
    "bert_cross": ("rerank", "score", "", "none"),
    "roberta_cross": ("rerank", "score", "", "sigmoid"),
    "qwen3_rerank": ("rerank", "score", "", "sigmoid"),
    "bert_classes": ("classify", "classify", "", "softmax"),
    "bert_tokens": ("token_classify", "token_classify", "", "softmax"),
}


@pytest.mark.parametrize("name", KINDS)
def test_a_model_is_recognized_and_computes_what_torch_does(load: Load, folder: Path, name: str) -> None:
    task, kind, pooling, activation = KINDS[name]
    assert detect_task(folder / name) == task
    rig, info, expected = load(name)
    assert (info.kind, info.pooling, info.activation) == (kind, pooling, activation)
    logits = {"normalize": False} if kind == "embed" else {"activation": False}
    number = rig.submit(*inputs(expected), **logits)
    rig.run()
    for rows, values in zip(rig.rows(number), expected["values"], strict=True):
        assert np.abs(rows - np.array(values, np.float32).reshape(rows.shape)).max() < 2e-5
    assert rig.tokens(number) == [len(ids) for ids in expected["ids"]]


@pytest.mark.parametrize("name", ["clip", "siglip"])
def test_texts_and_images_have_vectors_in_one_space(load: Load, folder: Path, name: str) -> None:
    assert detect_task(folder / name) == "embeddings"
    rig, info, expected = load(name)
    assert (info.kind, info.pooling, info.normalize, info.images, info.window) == ("embed", "MODEL", True, "alone", 30)
    images = [
        Image(height, width, base64.b64decode(data), f"messages[{at}]")
        for at, (height, width, data) in enumerate(expected["images"])
    ]
    pictures = [TextWithImages(IMAGE_TAG.format(0), (image,)) for image in images]
    mixed = [pictures[0], *expected["inputs"], *pictures[1:]]
    rows = rig.ask(*mixed * 3)
    values = [np.array(one, np.float32) for one in expected["values"]]
    count = len(expected["inputs"])
    wanted = [values[count], *values[:count], *values[count + 1 :]]
    for [row], value in zip(rows, wanted * 3, strict=True):
        assert row @ value / np.linalg.norm(value) > 0.99999
    number = rig.submit(*mixed)
    rig.run()
    assert rig.tokens(number) == [1, *map(len, expected["ids"]), 1, 1]  # as vLLM counts


def pooled(rows: Any, mode: str, skipped: int = 0) -> Any:
    """Pools the vectors of a text's tokens but the first ones, as sentence-transformers does."""
    weights, rows = np.arange(skipped + 1, len(rows) + 1)[:, None], rows[skipped:]
    return {
        "CLS": rows[0],
        "MAX": rows.max(0),
        "MEAN": rows.mean(0),
        "MEAN_SQRT_LEN": rows.sum(0) / np.sqrt(len(rows)),
        "WEIGHTED_MEAN": (rows * weights).sum(0) / weights.sum(),
        "LAST": rows[-1],
    }[mode]


def test_logits_of_tokens_become_sparse_vectors_as_in_sentence_transformers(
    load: Load, folder: Path, tmp_path: Path
) -> None:
    """log(1 + relu(logits)), the largest of a text's tokens: its SpladePooling. The logits are torch's."""
    place = shutil.copytree(folder / "bert_tokens", tmp_path / "splade")
    modules = [{"type": "x.MLMTransformer", "path": ""}, {"type": "x.SpladePooling", "path": "1_SpladePooling"}]
    (place / "modules.json").write_text(json.dumps(modules))
    config_file = place / "config.json"
    config_file.write_text(json.dumps(json.loads(config_file.read_text()) | {"architectures": ["BertForMaskedLM"]}))
    assert detect_task(place) == "embeddings"
    (place / "1_SpladePooling").mkdir()
    for settings in ({"pooling_strategy": "max", "activation_function": "relu"}, {"pooling_strategy": "sum"}):
        (place / "1_SpladePooling" / "config.json").write_text(json.dumps(settings))
        config = Config(model_path=str(place), task="embeddings", plugin_config=EXACT)
        if settings["pooling_strategy"] == "sum":
            with pytest.raises(StartError, match="pooling mode SPLADE with sum and relu, which is not supported"):
                OpenVinoPooler(config)
            return
        pooler = OpenVinoPooler(config)
        assert (pooler.pooling.kind, pooler.pooling.normalize) == ("sparse", False)
        expected = json.loads((place / "expected.json").read_text())
        rows = Rig(pooler=pooler).ask(*expected["inputs"])
        for [row], values in zip(rows, expected["values"], strict=True):
            logits = np.array(values, np.float32).reshape(-1, len(row))
            assert np.abs(row - np.log1p(np.maximum(logits, 0)).max(axis=0)).max() < 2e-5
            assert (row > 0).any()


def test_a_classifier_of_texts_reads_pairs_too(load: Load) -> None:
    rig, info, _ = load("bert_classes")
    assert (info.pair, info.special_pair) == ("tokens", 3)
    [pair], [other] = rig.ask(("a b", "c")), rig.ask(("a", "b c"))
    assert np.abs(pair - other).max() > 0


MODES = ["CLS", "MAX", "MEAN", "MEAN_SQRT_LEN", "WEIGHTED_MEAN", "LAST"]


@pytest.mark.parametrize("mode", MODES)
def test_each_way_of_pooling_is_what_its_name_says(load: Load, mode: str) -> None:
    rig, _, expected = load("bert_mean")
    text = expected["inputs"][0]
    [rows] = rig.ask(text, output="tokens", normalize=False)
    assert rows.shape == (len(expected["ids"][0]), 32)
    other, info, _ = load("bert_mean", pooling=mode)
    assert info.pooling == mode
    found = other.ask("another, longer text of more tokens", text, normalize=False)[1][0]
    assert np.abs(found - pooled(rows, mode)).max() < 1e-5


def test_all_ways_of_pooling_together_leave_prompts_out_and_go_through_a_dense_module(
    load: Load, folder: Path, tmp_path: Path
) -> None:
    path = shutil.copytree(folder / "bert_mean", tmp_path / "m")
    settings = {f"pooling_mode_{name}": True for name in (
        "cls_token", "max_tokens", "mean_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken",
    )}  # fmt: skip
    (path / "1_Pooling" / "config.json").write_text(json.dumps(settings | {"include_prompt": False}))
    (path / "config_sentence_transformers.json").write_text(json.dumps({"prompts": {"query": "find a text: "}}))
    (path / "modules.json").write_text(json.dumps([
        {"path": where, "type": f"x.{where[2:] or 'Transformer'}"} for where in ("", "1_Pooling", "2_Dense")
    ]))  # fmt: skip
    (path / "2_Dense").mkdir()
    layer = {"out_features": 9, "activation_function": "torch.nn.Identity"}
    (path / "2_Dense" / "config.json").write_text(json.dumps(layer))
    weights = np.random.default_rng(1).standard_normal((9, len(MODES) * 32), np.float32)
    write_tensors(path / "2_Dense" / "model.safetensors", "F32", {"linear.weight": weights})
    rig = Rig(pooler=OpenVinoPooler(Config(model_path=str(path), task="embeddings", plugin_config=EXACT)))
    assert (rig.pooler.pooling.dimensions, rig.pooler.pooling.normalize) == (9, False)
    prompt, texts = "find a text: ", ["the cat", "a dog runs"]
    prefixed = rig.submit(*(prompt + text for text in texts), unpooled=prompt)
    others = rig.submit(*texts)
    rig.run()
    assert {prefixed, others} in map(set, rig.batches)
    plain, _, _ = load("bert_mean")
    skipped = len(plain.pooler.tokenize([prompt])[0]) + 1
    for number, start, count in ((prefixed, prompt, skipped), (others, "", 0)):
        for text, [found] in zip(texts, rig.rows(number), strict=True):
            [rows] = plain.ask(start + text, output="tokens", normalize=False)
            vector = weights @ np.concatenate([pooled(rows, mode, count) for mode in MODES])
            assert np.abs(found - vector).max() < 1e-4


def test_vectors_of_tokens_go_through_the_models_own_last_layer(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "colbert"
    shutil.copytree(folder / "bert_mean", path)
    shutil.rmtree(path / "1_Pooling")
    config = json.loads((path / "config.json").read_text()) | {"architectures": ["HF_ColBERT"], "dim": 8}
    (path / "config.json").write_text(json.dumps(config))
    options = Config(model_path=str(path), task="embeddings", plugin_config=EXACT)
    with pytest.raises(StartError, match="the export has left out the last layer; put the original"):
        OpenVinoPooler(options)
    weights = np.random.default_rng(1).integers(-8, 8, (8, config["hidden_size"])).astype(np.float32)
    write_tensors(path / "model.safetensors", "BF16", {"linear.weight": weights})
    rig, plain = (
        Rig(pooler=OpenVinoPooler(one)) for one in (options, replace(options, model_path=str(folder / "bert_mean")))
    )
    for text in ("the cat", "a dog runs"):
        [rows], [hidden] = rig.ask(text), plain.ask(text, output="tokens", normalize=False)
        expected = hidden @ weights.T
        expected /= np.linalg.norm(expected, axis=1, keepdims=True)
        assert np.abs(rows - expected).max() < 1e-5
    write_tensors(path / "model.safetensors", "F16", {"linear.weight": weights[:4]})
    with pytest.raises(StartError, match=r"linear.weight has the shape \[4, \d+\], not \[8, \d+\] as config.json says"):
        OpenVinoPooler(options)


DENSE = [("Tanh", True), ("Identity", False)]
"""The activation functions of the layers of the next test, and whether they have a bias."""


def test_pooled_vectors_go_through_the_dense_modules_that_exports_leave_out(folder: Path, tmp_path: Path) -> None:
    """As in LaBSE and EmbeddingGemma: modules.json alone says that there are such layers."""
    path = shutil.copytree(folder / "bert_mean", tmp_path / "m")
    options = Config(model_path=str(path), task="embeddings", plugin_config=EXACT, normalize="false")
    plain = Rig(pooler=OpenVinoPooler(options))
    dice, width, layers = np.random.default_rng(1), plain.pooler.pooling.dimensions, []
    modules = [
        {"path": where, "type": f"x.{where[2:] or 'Transformer'}"} for where in ("", "1_Pooling", "2_Dense", "3_Dense")
    ]
    (path / "modules.json").write_text(json.dumps(modules))
    for (kind, biased), size, where in zip(DENSE, (12, 6), ("2_Dense", "3_Dense"), strict=True):
        (path / where).mkdir()
        found = {"out_features": size, "activation_function": f"torch.nn.{kind}"}
        (path / where / "config.json").write_text(json.dumps(found))
        with pytest.raises(StartError, match=f"{where}/model.safetensors is missing"):
            OpenVinoPooler(options)
        weights, bias = dice.standard_normal((size, width), np.float32), dice.standard_normal(size, np.float32)
        tensors = {"linear.weight": weights, "linear.bias": bias} if biased else {"linear.weight": weights}
        write_tensors(path / where / "model.safetensors", "F32", tensors)
        width = size
        layers.append((kind, weights, bias * biased))
    rig = Rig(pooler=OpenVinoPooler(options))
    assert rig.pooler.pooling.dimensions == 6
    for [found], [vector] in zip(rig.ask("the cat", "a dog runs"), plain.ask("the cat", "a dog runs"), strict=True):
        for kind, weights, bias in layers:
            vector = weights @ vector + bias
            vector = np.tanh(vector) if kind == "Tanh" else vector
        assert np.abs(found - vector).max() < 1e-5


def write_tensors(file: Path, kind: str, tensors: dict[str, Any]) -> None:
    """Writes a safetensors file."""
    rows, parts, at = {}, [], 0
    for name, values in tensors.items():
        if kind == "BF16":
            data = (values.view(np.uint32) >> 16).astype("<u2").tobytes()
        else:
            data = values.astype("<f4" if kind == "F32" else "<f2").tobytes()
        rows[name] = {"dtype": kind, "shape": values.shape, "data_offsets": [at, at + len(data)]}
        parts.append(data)
        at += len(data)
    head = json.dumps(rows).encode()
    file.write_bytes(len(head).to_bytes(8, "little") + head + b"".join(parts))


def test_many_texts_are_computed_by_several_passes_at_once(
    folder: Path, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "SMALL_BYTES", (0, 1 << 40))
    pooler = OpenVinoPooler(Config(model_path=str(folder / "bert_mean"), task="embeddings", plugin_config=EXACT))
    rig, texts = Rig(pooler=pooler), [f"text {'and more ' * (i % 7)}{i}" for i in range(60)]
    assert pooler.slots == 1
    first = rig.ask(*texts)
    streamed = pooler._network._streamed
    assert (streamed is None) == (allowed_cores() < 2)
    if streamed is not None:
        assert compiled(streamed).count == min(allowed_cores(), 8) == pooler.slots
    alone, _, _ = load("bert_mean")
    for _ in range(2):
        second, pairs = rig.ask(*texts), rig.ask(*texts[:9], output=PER_TOKEN)
        for place, text in enumerate(texts):
            assert np.allclose(second[place], first[place], atol=1e-5)
            assert np.allclose(second[place], alone.ask(text)[0], atol=1e-5)
        assert len(pairs) == 9


def test_one_stream_that_was_asked_for_stays_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "SMALL_BYTES", (0, 1 << 40))
    asked = '{"NUM_STREAMS": 1, "CPU_RUNTIME_CACHE_CAPACITY": 9}'
    pooler = OpenVinoPooler(Config(model_path=str(folder / "bert_mean"), task="embeddings", plugin_config=asked))
    Rig(pooler=pooler).ask(*["text"] * 20)
    assert pooler._network._streamed is None
    assert pooler._network._properties[SHAPES] == 9


def test_without_memory_for_several_passes_texts_are_computed_as_before(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(_: object) -> None:
        raise RuntimeError("std::bad_alloc")

    monkeypatch.setattr(network, "SMALL_BYTES", (0, 1 << 40))
    monkeypatch.setattr(network.PoolingNetwork, "_compile_streams", fails)
    monkeypatch.setattr(network.PoolingNetwork, "_compile_short", fails)
    pooler = OpenVinoPooler(Config(model_path=str(folder / "bert_mean"), task="embeddings", plugin_config=EXACT))
    rig = Rig(pooler=pooler)
    for _ in range(8):
        assert len(rig.ask(*["text"] * 20)) == 20
        assert len(rig.ask("text")) == 1
    assert pooler.slots == 1
    if streamed := pooler._network._streamed:
        compiled(streamed)
        assert caplog.text.count("no separate network for several batches at once: std::bad_alloc") == 1
    compiled(pooler._network._short)
    assert caplog.text.count("no separate network for single short texts: std::bad_alloc") == 1


def test_short_texts_alone_get_a_network_of_their_own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "SMALL_BYTES", (0, 1 << 40))
    config = Config(model_path=str(folder / "bert_mean"), task="embeddings", plugin_config=EXACT)
    rig = Rig(pooler=OpenVinoPooler(config))
    texts = [[7], [7, 8, 9] * 6, [7, 8] * 20]
    before = [rig.ask(text)[0] for text in (*texts, *texts[:2])]
    assert compiled(rig.pooler._network._short) is not None
    rig.shapes.clear()
    after = [rig.ask(text)[0] for text in texts]
    assert [size for _, size in rig.shapes] == [32, 32, 48]
    for first, second in zip(before, after, strict=False):
        assert np.allclose(first, second, atol=1e-5)


def test_a_generative_reranker_takes_a_whole_prompt_too(load: Load) -> None:
    rig, info, expected = load("qwen3_rerank")
    assert (info.pair, info.special_single) == ("prompt", 0)
    [score] = rig.ask(expected["ids"][0], activation=False)
    assert abs(float(score[0, 0]) - expected["values"][0][0]) < 2e-5
    [probability] = rig.ask(tuple(expected["pairs"][0]))
    assert float(probability[0, 0]) == pytest.approx(1 / (1 + np.exp(-expected["values"][0][0])), abs=1e-5)
    other, default = rig.ask(tuple(expected["pairs"][0]), instruction="Find poems")[0], probability
    assert float(other[0, 0]) != float(default[0, 0])


def test_the_logit_of_one_token_can_be_a_score(load: Load, folder: Path, tmp_path: Path) -> None:
    rig, _, expected = load("qwen3_rerank")
    no, yes = (rig.pooler.tokenize([word])[0][0] for word in ("no", "yes"))
    scores = []
    for name, token in (("yes", yes), ("no", no)):
        path = shutil.copytree(folder / "qwen3_rerank", tmp_path / name)
        (path / "modules.json").write_text(json.dumps([{"path": "1", "type": "x.LogitScore"}]))
        (path / "1").mkdir()
        (path / "1" / "config.json").write_text(json.dumps({"true_token_id": token, "false_token_id": None}))
        one = Rig(pooler=OpenVinoPooler(Config(model_path=str(path), task="rerank", plugin_config=EXACT)))
        scores.append(np.concatenate(one.ask(*inputs(expected), activation=False)))
    assert np.abs(scores[0] - scores[1] - np.array(expected["values"]).reshape(-1, 1)).max() < 2e-5


def test_text_and_tokens_are_the_tokenizers(load: Load) -> None:
    for name in ("bert_mean", "mpnet", "qwen3_embed"):
        rig, _, expected = load(name)
        encoded = rig.pooler.tokenize(expected["inputs"])
        before, after = rig.pooler.template.single
        assert [[*before, *ids, *after] for ids in encoded] == expected["ids"]
        assert rig.pooler.detokenize(encoded[1], True).strip() == "a short one"
        special, unknown = min(rig.pooler.vocabulary.special), len(rig.pooler.vocabulary.pieces)
        alone = rig.pooler.detokenize([special], False)
        assert rig.pooler.detokenize([special, unknown], False) == alone  # an id that only the network has


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("bert_mean", {"task": "embeddings", "plugin_config": '{"NONSENSE": 1}'}, "--plugin_config: .*NONSENSE"),
        ("bert_mean", {"task": "embeddings", "plugin_config": '{"NUM_STREAMS": "x"}'}, "NUM_STREAMS"),
        ("nothing", {"task": "embeddings"}, "does not load"),
    ],
)
def test_what_cannot_be_served_is_said_in_one_line(
    folder: Path, name: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(StartError, match=message) as caught:
        OpenVinoPooler(Config(model_path=str(folder / name), **options))
    assert "\n" not in str(caught.value)


def test_what_is_known_of_demo_embed_is_what_its_engine_reports() -> None:
    from lean_ovms.features.pooling.model import PoolingModel

    config = Config(model_path=str(DEMO_EMBED), task="embeddings", plugin_config=EXACT)
    pooler = OpenVinoPooler(config)
    assert replace(pooler.info, versions={}) == PoolingModel(config).known_info
    rig = Rig(pooler=pooler)
    assert pooler._network._properties[SHAPES] == PREPARED  # kept for every length, MiniLM would take 0.7 MB for each
    france, seat, soup = (
        rows[0] for rows in rig.ask("capital of France", "seat of the French government", "a recipe for soup")
    )
    assert france @ seat > 0.4 > 0.1 > france @ soup
