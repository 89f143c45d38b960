"""Trains the model and exports it: d_model 96, 3 + 2 layers, 4 heads, a window of 5 s, 0.69 million parameters."""

from __future__ import annotations

import math
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    GenerationConfig,
    PreTrainedTokenizerFast,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
)

from . import speech
from .examples import IGNORED, POSITIONS, SPECIAL, WINDOW_S, Examples, vocabulary

SPEAKERS, BATCH, WIDTH, HEADS, TARGET = 260, 16, 96, 4, 128
RATE, WARM_UP, DECAY = 2e-3, 100, 0.01
REPORT = 25


def run(work: Path, steps: int) -> None:
    """Writes work/model."""
    torch.manual_seed(0)
    tokenizer, ids, words = vocabulary()
    examples = Examples(speech.speakers(SPEAKERS, 1, speech.VARIANTS), ids, words, seed=0)
    extractor = WhisperFeatureExtractor(feature_size=80, chunk_length=WINDOW_S)
    model = WhisperForConditionalGeneration(_config(tokenizer.get_vocab_size(), ids))
    _train(model, examples, extractor, steps, ids["<|endoftext|>"])
    model.generation_config = _generation(ids)
    with tempfile.TemporaryDirectory() as folder:
        model.eval().save_pretrained(folder)
        extractor.save_pretrained(folder)
        end = dict.fromkeys(("unk_token", "bos_token", "eos_token", "pad_token"), "<|endoftext|>")
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, **end).save_pretrained(folder)
        _export(Path(folder), work / "model")


def _config(size: int, ids: dict[str, int]) -> WhisperConfig:
    end = ids["<|endoftext|>"]
    return WhisperConfig(
        vocab_size=size, num_mel_bins=80, d_model=WIDTH, encoder_layers=3, decoder_layers=2,
        encoder_attention_heads=HEADS, decoder_attention_heads=HEADS, encoder_ffn_dim=3 * WIDTH,
        decoder_ffn_dim=3 * WIDTH, max_source_positions=POSITIONS, max_target_positions=TARGET, dropout=0.0,
        bos_token_id=end, eos_token_id=end, pad_token_id=end, decoder_start_token_id=ids["<|startoftranscript|>"],
        suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip


def _generation(ids: dict[str, int]) -> GenerationConfig:
    end = ids["<|endoftext|>"]
    return GenerationConfig(
        is_multilingual=True,
        lang_to_id={name: ids[name] for name in ("<|en|>", "<|de|>")},
        task_to_id={name: ids[f"<|{name}|>"] for name in ("transcribe", "translate")},
        no_timestamps_token_id=ids["<|notimestamps|>"],
        prev_sot_token_id=ids["<|startofprev|>"],
        suppress_tokens=[ids[name] for name in SPECIAL if name not in ("<|endoftext|>", "<|notimestamps|>")],
        begin_suppress_tokens=[],
        alignment_heads=[[1, head] for head in range(HEADS)],
        max_initial_timestamp_index=POSITIONS - 1,
        max_length=TARGET,
        decoder_start_token_id=ids["<|startoftranscript|>"],
        eos_token_id=end,
        pad_token_id=end,
        bos_token_id=end,
        return_timestamps=False,
    )


def _train(model: Any, examples: Examples, extractor: Any, steps: int, pad: int) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=DECAY)
    model.train()
    for step in range(steps):
        rate = RATE * min(1.0, (step + 1) / WARM_UP) * (0.03 + 0.97 * 0.5 * (1 + math.cos(math.pi * step / steps)))
        for group in optimizer.param_groups:
            group["lr"] = rate
        rows = [examples.next() for _ in range(BATCH)]
        audio = [row[0] for row in rows]
        features = extractor(audio, sampling_rate=speech.RATE, return_tensors="pt").input_features
        tokens, labels = _padded([row[1] for row in rows], pad), _padded([row[2] for row in rows], IGNORED)
        logits = model(input_features=features, decoder_input_ids=tokens[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % REPORT == 0:
            print(step, f"loss {loss.item():.3f}", flush=True)


def _padded(rows: list[list[int]], value: int) -> torch.Tensor:
    longest = max(map(len, rows))
    return torch.tensor(np.array([row + [value] * (longest - len(row)) for row in rows]))


def _export(source: Path, out: Path) -> None:
    """Exports like optimum-cli, for a window that is not 30 s, with 8-bit weights."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    from optimum.exporters.openvino import main_export
    from optimum.intel import OVConfig, OVWeightQuantizationConfig
    from optimum.utils import input_generators

    input_generators.DEFAULT_DUMMY_SHAPES["nb_max_frames"] = 2 * POSITIONS
    audio = input_generators.DummyAudioInputGenerator.__init__
    audio.__defaults__ = tuple(2 * POSITIONS if value == 3000 else value for value in audio.__defaults__ or ())
    config = OVConfig(quantization_config=OVWeightQuantizationConfig(bits=8))
    task = "automatic-speech-recognition-with-past"
    main_export(str(source), str(out), task=task, stateful=True, ov_config=config)
