"""Makes tests/data/voice_model.zip: a tiny random SpeechT5 with its vocoder and two voices.

    pip install torch optimum-intel sentencepiece && python -m tests.makers.make_voice_model

Its speech is noise, whose length depends on the number of characters, because the model never ends by itself. The
folder has the files that optimum-cli exports for text-to-audio, and voices/*.bin as OVMS reads them. The project's
tests need neither package.
"""

from __future__ import annotations

import io
import json
import os
import tempfile
import zipfile
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import openvino as ov
import sentencepiece
import torch
from openvino_tokenizers import convert_tokenizer
from optimum.exporters.openvino import main_export
from transformers import (
    SpeechT5Config,
    SpeechT5FeatureExtractor,
    SpeechT5ForTextToSpeech,
    SpeechT5HifiGan,
    SpeechT5HifiGanConfig,
    SpeechT5Processor,
    SpeechT5Tokenizer,
)

OUT = Path(__file__).parents[2] / "tests" / "data" / "voice_model.zip"
NAME = "speecht5_tiny"
LETTERS = "the quick brown fox jumps over the lazy dog 0123456789 .,!?'-"
SPEAKER = 512
SIZES = {
    "hidden_size": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "speech_decoder_prenet_units": 32,
    "speech_decoder_postnet_units": 32, "speech_decoder_postnet_layers": 2, "conv_dim": [8] * 7,
    "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4,
}  # fmt: skip
VOCODER = {
    "model_in_dim": 80, "upsample_initial_channel": 16, "upsample_rates": [4, 4, 4, 4],
    "upsample_kernel_sizes": [8] * 4, "resblock_kernel_sizes": [3], "resblock_dilation_sizes": [[1, 3]],
}  # fmt: skip
LENGTH_RATIO = 2
"""maxlenratio: a step of 32 ms for each character."""


def tokenizer(folder: Path) -> SpeechT5Tokenizer:
    """Returns a tokenizer with a token for each letter."""
    file = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([LETTERS] * 50), model_writer=file, vocab_size=len(set(LETTERS)) + 5, model_type="char",
        pad_id=1, bos_id=0, eos_id=2, unk_id=3, minloglevel=2, hard_vocab_limit=False,
        normalization_rule_name="identity",
    )  # fmt: skip
    (folder / "spm_char.model").write_bytes(file.getvalue())
    return SpeechT5Tokenizer(str(folder / "spm_char.model"))


def loud(vocoder: SpeechT5HifiGan) -> SpeechT5HifiGan:
    """Sets weights whose output is audible; those of the constructor give silence."""
    for layer in vocoder.modules():
        if isinstance(layer, (torch.nn.Conv1d, torch.nn.ConvTranspose1d)):
            torch.nn.init.normal_(layer.weight, std=1.5 / layer.weight[0].numel() ** 0.5)
    return vocoder


def networks(letters: int) -> tuple[SpeechT5ForTextToSpeech, SpeechT5HifiGan]:
    """Returns the model in torch, and its vocoder. `letters` is the number of tokens."""
    torch.manual_seed(7)
    model = SpeechT5ForTextToSpeech(SpeechT5Config(vocab_size=letters, **SIZES))
    torch.nn.init.constant_(model.speech_decoder_postnet.prob_out.bias, -20.0)
    return model, loud(SpeechT5HifiGan(SpeechT5HifiGanConfig(**VOCODER)))


def make(root: Path) -> Path:
    """Writes the model's directory into root."""
    source, vocoder, target = root / "source", root / "vocoder", root / NAME
    source.mkdir()
    words, features = tokenizer(source), SpeechT5FeatureExtractor()
    model, sounds = networks(len(words))
    model.save_pretrained(source)
    features.save_pretrained(source)
    words.save_pretrained(source)
    SpeechT5Processor(features, words).save_pretrained(source)
    sounds.save_pretrained(vocoder)
    main_export(str(source), target, task="text-to-audio", model_kwargs={"vocoder": str(vocoder)}, stateful=True)
    ov.save_model(convert_tokenizer(words), target / "openvino_tokenizer.xml")
    for file in target.glob("spm*"):
        file.unlink()
    limits = json.loads((target / "generation_config.json").read_text())
    (target / "generation_config.json").write_text(json.dumps({**limits, "maxlenratio": LENGTH_RATIO}))
    (target / "voices").mkdir()
    for name, seed in (("ada", 1), ("ben", 2)):
        voice = np.random.default_rng(seed).normal(size=SPEAKER).astype("<f4")
        (target / "voices" / f"{name}.bin").write_bytes(voice.tobytes())
    return target


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        made = make(Path(folder))
        with zipfile.ZipFile(OUT, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as file:
            for path in sorted(made.rglob("*")):
                if path.is_file():
                    info = zipfile.ZipInfo(str(path.relative_to(made.parent)), (2026, 1, 1, 0, 0, 0))
                    file.writestr(info, path.read_bytes(), zipfile.ZIP_DEFLATED, 9)
        print(OUT, OUT.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
