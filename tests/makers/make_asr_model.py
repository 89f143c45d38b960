"""Makes tests/data/asr_model.zip: a tiny Qwen3-ASR that has memorized six sounds, and an encoder of Fun-ASR's shape.

    pip install torch qwen-asr transformers==4.57.6 optimum-intel && python -m tests.makers.make_asr_model

The folder qwen3_asr is what optimum-cli exports for automatic-speech-recognition-with-past. fun_asr has only what
differs: its encoder, and model_type in config.json. The decoder is the same, because the audio token is 0 in both. Its
texts are meaningless. The project's tests need none of these packages.
"""

from __future__ import annotations

import json
import os
import tempfile
import zipfile
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import openvino as ov
import torch
from openvino import opset13 as ops
from openvino_tokenizers import convert_tokenizer
from optimum.exporters.openvino import main_export
from qwen_asr.core.transformers_backend import Qwen3ASRConfig, Qwen3ASRForConditionalGeneration
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, WhisperFeatureExtractor

from tests.makers.asr_sounds import ARCHIVE, SOUNDS, samples_of

OUT = ARCHIVE
SPECIAL = ("<|audio_pad|>", "<|audio_start|>", "<|audio_end|>", "<|im_start|>", "<|im_end|>", "<|endoftext|>",
           "<asr_text>")  # fmt: skip
WIDTH, MELS, STEPS, FUN_FEATURES = 32, 80, 400, 560
LANGUAGES = ["English", "German"]
PROMPT = (
    "<|im_start|>system\n{}<|im_end|>\n<|im_start|>user\n<|audio_start|>{}<|audio_end|><|im_end|>\n"
    "<|im_start|>assistant\n"
)
"""The prompt that openvino-genai makes."""


def tokenizer() -> PreTrainedTokenizerFast:
    """Returns a tokenizer with a token for each byte. The token that stands for audio is 0."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {text: number for number, text in enumerate([*SPECIAL, *letters])}
    made = Tokenizer(models.BPE(vocabulary, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([text for text in SPECIAL if text != "<asr_text>"])
    made.add_tokens(["<asr_text>"])  # not special, as in the real model, because the pipeline looks for it in the text
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|im_end|>", pad_token="<|endoftext|>")


def config(size: int) -> Qwen3ASRConfig:
    audio = {
        "num_mel_bins": MELS, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 64,
        "d_model": WIDTH, "max_source_positions": 1500, "n_window": 50, "output_dim": WIDTH, "n_window_infer": 100,
        "conv_chunksize": 500, "downsample_hidden_size": 8,
    }  # fmt: skip
    text = {
        "vocab_size": size, "hidden_size": WIDTH, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 4096,
        "tie_word_embeddings": True, "rope_theta": 10000.0,
        "rope_scaling": {"rope_type": "default", "mrope_section": [4, 2, 2], "mrope_interleaved": True},
    }  # fmt: skip
    thinker = {"audio_config": audio, "text_config": text, "audio_token_id": 0, "audio_start_token_id": 1}
    made = Qwen3ASRConfig(thinker_config=thinker, support_languages=LANGUAGES)
    made.architectures = ["Qwen3ASRForConditionalGeneration"]
    return made


def examples(words: Any, extractor: WhisperFeatureExtractor) -> list[tuple[Any, Any, Any, Any]]:
    """Returns features, mask, tokens and labels of each sound, with its language in the answer or in the prompt."""
    found = []
    for name, language in SOUNDS.items():
        given = extractor(samples_of(name), sampling_rate=16000, padding=True, truncation=False, return_tensors="pt",
                          return_attention_mask=True)  # fmt: skip
        frames = int(given.attention_mask.sum())
        whole, rest = divmod(frames, 100)
        count = whole * 13 + (((rest + 1) // 2 + 1) // 2 + 1) // 2
        prompt = PROMPT.format("", "<|audio_pad|>" * count)
        for context in (prompt, f"{prompt}language {language}<asr_text>"):
            answer = f"{'' if context.endswith('>') else f'language {language}<asr_text>'}{name}<|im_end|>"
            before, after = words.encode(context), words.encode(answer)
            tokens = torch.tensor([before + after])
            labels = torch.tensor([[-100] * len(before) + after])
            found.append((given.input_features, given.attention_mask, tokens, labels))
    return found


def train(model: Any, rows: list[tuple[Any, Any, Any, Any]]) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    model.train()
    for step in range(STEPS):
        loss = torch.zeros(())
        for features, mask, tokens, labels in rows:
            out = model.thinker(input_ids=tokens, input_features=features, feature_attention_mask=mask,
                                attention_mask=torch.ones_like(tokens))  # fmt: skip
            loss = loss + torch.nn.functional.cross_entropy(out.logits[0, :-1], labels[0, 1:])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 10 == 0:
            print(step, f"loss {loss.item() / len(rows):.4f}", flush=True)
        if loss.item() / len(rows) < 0.004:
            break
    model.eval()


def fun_encoder(path: Path) -> None:
    """Returns a network that turns features [1, frames, 560] into a vector for each frame."""
    features = ops.parameter([1, -1, FUN_FEATURES], np.float32, name="input_features")
    weights = np.random.default_rng(1).normal(size=(FUN_FEATURES, WIDTH)).astype(np.float32) / 100
    hidden = ops.tanh(ops.matmul(features, ops.constant(weights), False, False))
    hidden.output(0).set_names({"last_hidden_state"})
    features.output(0).set_names({"input_features"})
    ov.save_model(ov.Model([hidden], [features]), path / "openvino_encoder_model.xml")


def make(root: Path) -> list[Path]:
    """Writes the directories into root."""
    source, target, fun = root / "source", root / "qwen3_asr", root / "fun_asr"
    torch.manual_seed(3)
    torch.set_num_threads(1)
    words, extractor = tokenizer(), WhisperFeatureExtractor(feature_size=MELS)
    model = Qwen3ASRForConditionalGeneration(config(len(words)))
    train(model, examples(words, extractor))
    for part in (model, words, extractor):
        part.save_pretrained(source)
    main_export(str(source), target, task="automatic-speech-recognition-with-past", stateful=True,
                trust_remote_code=True, convert_tokenizer=False)  # fmt: skip
    encode, decode = convert_tokenizer(words, with_detokenizer=True, add_special_tokens=False, skip_special_tokens=True)
    ov.save_model(encode, target / "openvino_tokenizer.xml")
    ov.save_model(decode, target / "openvino_detokenizer.xml")
    fun.mkdir()
    fun_encoder(fun)
    (fun / "config.json").write_text(json.dumps({"model_type": "fun_asr"}))
    return [target, fun]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        made = make(Path(folder))
        with zipfile.ZipFile(OUT, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as file:
            for path in sorted(path for one in made for path in one.rglob("*") if path.is_file()):
                info = zipfile.ZipInfo(str(path.relative_to(folder)), (2026, 1, 1, 0, 0, 0))
                file.writestr(info, path.read_bytes(), zipfile.ZIP_DEFLATED, 9)
        print(OUT, OUT.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
