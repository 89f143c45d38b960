"""Exports a checkpoint to OpenVINO: int8 weights, tokenizer and detokenizer, settings and chat template."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

import openvino as ov
from openvino_tokenizers import convert_tokenizer
from optimum.intel import OVModelForCausalLM, OVWeightQuantizationConfig
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from tools.demo_model.window import add_window

ADDED = ("content", "special", "normalized", "lstrip", "rstrip", "single_word")
"""The properties of an added token in tokenizer_config.json."""
NETWORK = ("openvino_model.xml", "openvino_model.bin", "config.json")


def save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, target: Path) -> int:
    """Writes the model folder and returns its size in bytes.

    The folder contains only files that the server and the engine read.
    """
    with tempfile.TemporaryDirectory() as folder:
        checkpoint, exported = Path(folder, "checkpoint"), Path(folder, "exported")
        model.save_pretrained(checkpoint)
        tokenizer.save_pretrained(checkpoint)
        weights = OVWeightQuantizationConfig(bits=8, sym=False)
        OVModelForCausalLM.from_pretrained(
            checkpoint, export=True, quantization_config=weights, compile=False
        ).save_pretrained(exported)
        target.mkdir(parents=True, exist_ok=True)
        for name in NETWORK:
            shutil.copyfile(exported / name, target / name)
    add_window(target)
    save_tokenizer(model, tokenizer, target)
    return sum(path.stat().st_size for path in target.iterdir())


def save_tokenizer(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, target: Path) -> None:
    """Writes the files besides the network: generation settings, tokenizer, detokenizer and chat template."""
    (target / "generation_config.json").write_text(json.dumps(generation(model), indent=2) + "\n", encoding="utf-8")
    parts = convert_tokenizer(tokenizer, with_detokenizer=True, skip_special_tokens=True)
    for part, kind in zip(parts, ("tokenizer", "detokenizer"), strict=True):
        ov.save_model(part, target / f"openvino_{kind}.xml")
    tokenizer.backend_tokenizer.save(str(target / "tokenizer.json"), pretty=False)
    (target / "chat_template.jinja").write_text(tokenizer.chat_template, encoding="utf-8")
    (target / "tokenizer_config.json").write_text(json.dumps(settings(tokenizer), indent=2) + "\n", encoding="utf-8")


def generation(model: PreTrainedModel) -> dict[str, object]:
    """Returns the content of generation_config.json.

    Temperature 0 makes requests greedy by default: sampling makes so small a model much worse, and a demo should not
    vary.
    """
    own = model.generation_config
    return {"do_sample": False, "temperature": 0.0} | {n: getattr(own, n) for n in ("eos_token_id", "pad_token_id")}


def settings(tokenizer: PreTrainedTokenizerFast) -> dict[str, object]:
    """Returns the content of tokenizer_config.json, with which transformers can load the folder too."""
    added = sorted(tokenizer.added_tokens_decoder.items())
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": tokenizer.model_max_length,
        "clean_up_tokenization_spaces": False,
        **{name: getattr(tokenizer, name) for name in ("bos_token", "eos_token", "pad_token", "unk_token")},
        "added_tokens_decoder": {str(i): {name: getattr(token, name) for name in ADDED} for i, token in added},
    }
