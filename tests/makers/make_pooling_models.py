"""Makes tests/data/pooling_models.zip: tiny random models of every kind of pooling, with torch's results.

    pip install torch optimum-intel && python -m tests.makers.make_pooling_models [NAME...]

Each folder has the files that optimum-cli exports, sentence-transformers' files if the original has them, and
expected.json: {"inputs": [...], "pairs": [...], "ids": of each input or pair, "values": the pooled hidden states or
logits}, computed by transformers and tokenizers in float32. The project's tests need neither package.
"""

from __future__ import annotations

import base64
import json
import random
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import torch
from openvino_tokenizers import convert_tokenizer
from optimum.exporters.openvino import main_export
from PIL import Image
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    BertConfig,
    CLIPConfig,
    CLIPImageProcessor,
    ModernBertConfig,
    MPNetConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
    RobertaConfig,
    SiglipConfig,
    SiglipImageProcessor,
)

OUT = Path(__file__).parents[2] / "tests" / "data" / "pooling_models.zip"
TEXTS = [
    "Paris is the capital of France.",
    "a short one",
    "The quick brown fox jumps over the lazy dog, again and again, until the evening comes and it is tired.",
    "naïve café, 日本",
    "",
]
PAIRS = [
    ("What is the capital of France?", "Paris is the capital of France."),
    ("What is the capital of France?", "The quick brown fox jumps over the lazy dog."),
    ("fox", "a lazy dog"),  # transformers ignores an empty second text
]
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
VOCABULARY = 400
HIDDEN = "last_hidden_state"
CORPUS = [*TEXTS, *(text for pair in PAIRS for text in pair)] * 20


def wordpiece() -> PreTrainedTokenizerFast:
    """Returns a tokenizer like BERT's: [CLS] a [SEP] b [SEP], lower case."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    one = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    one.normalizer = normalizers.BertNormalizer(lowercase=True)
    one.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    one.decoder = decoders.WordPiece()
    one.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=VOCABULARY, special_tokens=special))
    ends = [(text, one.token_to_id(text)) for text in ("[CLS]", "[SEP]")]
    one.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=one, cls_token="[CLS]", sep_token="[SEP]", pad_token="[PAD]", unk_token="[UNK]",
        mask_token="[MASK]", model_max_length=64,
    )  # fmt: skip


def roberta() -> PreTrainedTokenizerFast:
    """Returns a tokenizer like RoBERTa's: <s> a </s></s> b </s>, bytes."""
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    one = _byte_level(special)
    one.post_processor = processors.RobertaProcessing(sep=("</s>", 2), cls=("<s>", 0))
    return PreTrainedTokenizerFast(
        tokenizer_object=one, bos_token="<s>", eos_token="</s>", cls_token="<s>", sep_token="</s>",
        pad_token="<pad>", unk_token="<unk>", mask_token="<mask>",
    )  # fmt: skip


def qwen(*, ends: bool) -> PreTrainedTokenizerFast:
    """Returns a tokenizer like Qwen3's: nothing in front of a text, <|endoftext|> after it for embeddings, padding on
    the left."""
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    one = _byte_level(special)
    for word in ("yes", "no"):
        assert one.token_to_id(word) is not None, f"{word} is no token"
    if ends:
        one.post_processor = processors.TemplateProcessing(
            single="$A <|endoftext|>", pair="$A <|endoftext|> $B <|endoftext|>", special_tokens=[("<|endoftext|>", 0)]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=one, pad_token="<|endoftext|>", eos_token="<|im_end|>", padding_side="left"
    )


def clip() -> PreTrainedTokenizerFast:
    """Returns a tokenizer like CLIP's: <|startoftext|> a <|endoftext|>, in lower case."""
    one = _byte_level(["<|startoftext|>", "<|endoftext|>", "<pad>"])
    one.normalizer = normalizers.Lowercase()
    ends = [("<|startoftext|>", 0), ("<|endoftext|>", 1)]
    one.post_processor = processors.TemplateProcessing(single="<|startoftext|> $A <|endoftext|>", special_tokens=ends)
    return PreTrainedTokenizerFast(
        tokenizer_object=one, bos_token="<|startoftext|>", eos_token="<|endoftext|>", pad_token="<pad>",
        model_max_length=30,
    )  # fmt: skip


def modern() -> PreTrainedTokenizerFast:
    """Returns a tokenizer like ModernBERT's: [CLS] a [SEP] b [SEP], bytes."""
    one = _byte_level(["[PAD]", "[CLS]", "[SEP]", "[MASK]"])
    one.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=one, cls_token="[CLS]", sep_token="[SEP]", pad_token="[PAD]", mask_token="[MASK]",
        model_max_length=256,
    )  # fmt: skip


def _byte_level(special: list[str]) -> Tokenizer:
    one = Tokenizer(models.BPE())
    one.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    one.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    one.train_from_iterator([*CORPUS, *["yes no"] * 30, *["no yes"] * 30], trainer)
    return one


def _pooled(hidden: torch.Tensor, mode: str) -> torch.Tensor:
    """Pools one text without padding: [1, S, H] to [H]."""
    return {"CLS": hidden[0, 0], "LAST": hidden[0, -1], "MEAN": hidden[0].mean(0)}[mode]


def _with_modules(path: Path, mode: str) -> None:
    kinds = ["Transformer", "Pooling", "Normalize"]
    modules = [
        {"path": "1_Pooling" if kind == "Pooling" else "", "type": f"sentence_transformers.models.{kind}"}
        for kind in kinds
    ]
    (path / "modules.json").write_text(json.dumps(modules))
    (path / "1_Pooling").mkdir()
    (path / "1_Pooling" / "config.json").write_text(json.dumps({f"pooling_mode_{mode}": True}))
    (path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 48, "do_lower_case": False}))
    (path / "config_sentence_transformers.json").write_text(
        json.dumps({"prompts": {"query": "query: ", "document": ""}, "default_prompt_name": None})
    )


BERT = {**SIZES, "vocab_size": VOCABULARY, "max_position_embeddings": 64, "initializer_range": 0.2}
QWEN = {**SIZES, "vocab_size": VOCABULARY, "num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 512,
        "initializer_range": 0.2, "pad_token_id": 0, "eos_token_id": 2, "tie_word_embeddings": False}  # fmt: skip
THREE = {
    "id2label": {0: "negative", 1: "neutral", 2: "positive"},
    "label2id": {"negative": 0, "neutral": 1, "positive": 2},
}
ROBERTA = {**BERT, "max_position_embeddings": 66, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
MODERN = {**SIZES, "vocab_size": VOCABULARY, "max_position_embeddings": 256, "initializer_range": 0.2,
          "local_attention": 8, "global_attn_every_n_layers": 2, "classifier_pooling": "mean", "pad_token_id": 0,
          "cls_token_id": 1, "sep_token_id": 2, "bos_token_id": 1, "eos_token_id": 2}  # fmt: skip
"""Every second layer has a sliding window of 8 tokens; gte-modernbert's is 128."""

TOWERS = {
    "text_config": {**SIZES, "vocab_size": VOCABULARY, "max_position_embeddings": 30, "projection_size": 32,
                    "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, "initializer_range": 0.2},
    "vision_config": {**SIZES, "image_size": 32, "patch_size": 8, "initializer_range": 0.2},
}  # fmt: skip
"""The window is not a multiple of 16, like CLIP's 77."""
PROCESSORS = {
    "clip": CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}),
    "siglip": SiglipImageProcessor(size={"height": 32, "width": 32}),
}
PICTURES = [(40, 56), (90, 33), (8, 200)]
"""The heights and widths of images."""

MODELS: dict[str, tuple[Any, Any, str, Any, str]] = {
    "bert_mean": (AutoModel, BertConfig(**BERT), "feature-extraction", wordpiece, "MEAN"),
    "mpnet": (AutoModel, MPNetConfig(**ROBERTA), "feature-extraction", roberta, "CLS"),
    "qwen3_embed": (AutoModel, Qwen3Config(**QWEN), "feature-extraction", lambda: qwen(ends=True), "LAST"),
    "bert_cross": (
        AutoModelForSequenceClassification, BertConfig(**BERT, num_labels=1), "text-classification", wordpiece, "pairs",
    ),
    "roberta_cross": (
        AutoModelForSequenceClassification, RobertaConfig(**ROBERTA, num_labels=1), "text-classification", roberta,
        "pairs",
    ),
    "qwen3_rerank": (
        AutoModelForCausalLM, Qwen3Config(**QWEN), "text-generation-with-past", lambda: qwen(ends=False), "yes",
    ),
    "bert_classes": (
        AutoModelForSequenceClassification, BertConfig(**BERT, **THREE), "text-classification", wordpiece, "logits",
    ),
    "modernbert": (AutoModel, ModernBertConfig(**MODERN), "feature-extraction", modern, "CLS"),
    "modernbert_cross": (
        AutoModelForSequenceClassification, ModernBertConfig(**MODERN, num_labels=1), "text-classification", modern,
        "pairs",
    ),
    "bert_tokens": (
        AutoModelForTokenClassification, BertConfig(**BERT, **THREE), "token-classification", wordpiece, "tokens",
    ),
    "clip": (AutoModel, CLIPConfig(**TOWERS, projection_dim=24), "feature-extraction", clip, "images"),
    "siglip": (AutoModel, SiglipConfig(**TOWERS), "zero-shot-image-classification", clip, "images"),
}  # fmt: skip
"""The class, config, optimum's task and tokenizer of each model, and what expected.json contains."""


def network(kind: Any, config: Any) -> Any:
    """Returns a model in torch, with the same weights every time."""
    torch.manual_seed(7)
    model = kind.from_config(config).eval().float()
    for parameter in model.parameters():
        if parameter.ndim == 1 and not parameter.any():
            torch.nn.init.normal_(parameter, std=0.1)  # biases would hide a wrong position
    return model


def make(name: str, root: Path) -> None:
    """Writes one model with its files into root/name."""
    kind, config, task, tokenizer, what = MODELS[name]
    model, words = network(kind, config), tokenizer()
    source, target = root / f"{name}_hf", root / name
    model.save_pretrained(source)
    words.save_pretrained(source)
    if name in PROCESSORS:
        PROCESSORS[name].save_pretrained(source)
    stateful = task.startswith("text-generation")
    if "modernbert" in name:
        convert(model, words, target)
    else:
        main_export(
            str(source), target, task=task, library_name="transformers", stateful=stateful, convert_tokenizer=True
        )
    if name == "bert_mean":
        _with_modules(target, "mean_tokens")
    if name == "bert_cross":
        text = json.loads((target / "config.json").read_text())
        text["sentence_transformers"] = {"activation_fn": "torch.nn.modules.linear.Identity"}
        (target / "config.json").write_text(json.dumps(text))
    found = of_towers(model, words, PROCESSORS[name]) if name in PROCESSORS else expected(model, words, what)
    (target / "expected.json").write_text(json.dumps(found))
    for file in (*target.glob("*.py"), *target.glob("special_tokens_map.json"), *target.glob("vocab*")):
        file.unlink()
    shutil.rmtree(source)


def convert(model: Any, words: PreTrainedTokenizerFast, target: Path) -> None:
    """Writes what optimum-cli would write for an architecture that it does not know."""
    names = ("input_ids", "attention_mask")
    example = {name: torch.ones((2, 24), dtype=torch.int64) for name in names}
    sizes = {0: torch.export.Dim("batch", min=1, max=1024), 1: torch.export.Dim("length", min=2, max=256)}
    model.config._attn_implementation = "eager"
    exported = torch.export.export(model, (), example, dynamic_shapes=dict.fromkeys(names, sizes), strict=False)
    network = ov.convert_model(exported)
    for port, name in zip(network.inputs, names, strict=True):
        port.get_tensor().set_names({name})
        port.get_node().set_partial_shape(ov.PartialShape([-1, -1]))
    network.outputs[0].get_tensor().set_names({"logits" if network.outputs[0].partial_shape.rank == 2 else HIDDEN})
    network.validate_nodes_and_infer_types()
    ov.save_model(network, target / "openvino_model.xml", compress_to_fp16=False)
    tokenizer, detokenizer = convert_tokenizer(words, with_detokenizer=True)
    ov.save_model(tokenizer, target / "openvino_tokenizer.xml")
    ov.save_model(detokenizer, target / "openvino_detokenizer.xml")
    model.config.save_pretrained(target)
    words.save_pretrained(target)


@torch.no_grad()
def expected(model: Any, words: Any, what: str) -> dict[str, Any]:
    """Returns the content of expected.json."""
    if what in ("pairs", "yes"):
        encoded = [
            _prompt(words, *pair) if what == "yes" else words(*pair, return_token_type_ids=True) for pair in PAIRS
        ]
    else:
        encoded = [words(text) for text in TEXTS]
    values = []
    for one in encoded:
        inputs = {key: torch.tensor([value]) for key, value in one.items()}
        if what in ("MEAN", "CLS", "LAST"):
            values.append(_pooled(model(**inputs).last_hidden_state, what).tolist())
        elif what == "tokens":
            values.append(model(**inputs).logits[0].tolist())
        elif what == "yes":
            no, yes = (words.encode(word, add_special_tokens=False)[0] for word in ("no", "yes"))
            last = model(**inputs).logits[0, -1]
            values.append([(last[yes] - last[no]).item()])
        else:
            values.append(model(**inputs).logits[0].tolist())
    found = {"ids": [one["input_ids"] for one in encoded], "values": values}
    return {**found, "pairs": PAIRS} if what in ("pairs", "yes") else {**found, "inputs": TEXTS}


@torch.no_grad()
def of_towers(model: Any, words: Any, processor: Any) -> dict[str, Any]:
    """Returns the content of expected.json for a model of texts and images, with [height, width, RGB in base64] of
    each image."""
    texts = [text for text in TEXTS if len(words(text)["input_ids"]) <= 30]
    siglip = model.config.model_type == "siglip"  # its processor pads texts, and returns no mask
    values, found = [], []
    for text in texts:
        padding = "max_length" if siglip else False
        inputs = words(text, return_tensors="pt", padding=padding, return_attention_mask=not siglip)
        values.append(_features(model.get_text_features(**inputs)))
    for height, width in PICTURES:
        rows, columns, colors = np.indices((height, width, 3))
        picture = ((7 * rows + 11 * columns + 5 * colors * rows) % 256).astype(np.uint8)
        pixels = processor(Image.fromarray(picture), return_tensors="pt")
        found.append([height, width, base64.b64encode(picture.tobytes()).decode()])
        values.append(_features(model.get_image_features(**pixels)))
    ids = [words(text)["input_ids"] for text in texts]
    return {"inputs": texts, "images": found, "ids": ids, "values": values}


def _features(found: Any) -> list[float]:
    """Returns the features; newer versions of transformers return an object."""
    return getattr(found, "pooler_output", found)[0].tolist()


def _prompt(words: Any, query: str, document: str) -> dict[str, list[int]]:
    """Returns the prompt of Qwen3-Reranker's model card."""
    prefix = (
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
        'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
    )
    suffix = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    task = "Given a web search query, retrieve relevant passages that answer the query"
    body = f"<Instruct>: {task}\n<Query>: {query}\n<Document>: {document}"
    parts = [words.encode(part, add_special_tokens=False) for part in (prefix, body, suffix)]
    return {"input_ids": [token for part in parts for token in part]}


def main() -> None:
    random.seed(7)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        if sys.argv[1:]:  # other models stay as they are
            with zipfile.ZipFile(OUT) as file:
                file.extractall(root)
        for name in sys.argv[1:] or MODELS:
            shutil.rmtree(root / name, ignore_errors=True)
            make(name, root)
        with zipfile.ZipFile(OUT, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as file:
            for path in sorted(root.rglob("*")):
                if path.is_file():
                    info = zipfile.ZipInfo(str(path.relative_to(root)), (2026, 1, 1, 0, 0, 0))
                    file.writestr(info, path.read_bytes(), zipfile.ZIP_DEFLATED, 9)
        print(OUT, OUT.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
