"""Makes lean_ovms/features/pooling/demo_embed/, a static text embedder of 64 dimensions, from all-MiniLM-L6-v2.

    pip install torch optimum-intel && python -m tools.make_demo_embed DIRECTORY

DIRECTORY contains the teacher, all-MiniLM-L6-v2 in the format of sentence-transformers. The recipe is model2vec's:

1. The teacher embeds every token of the vocabulary on its own (90 s).
2. The mean is subtracted, and the first principal components are kept.
3. Each vector is multiplied by the logarithm of its token's rank, as a measure of how rare the token is. Special tokens
become zero.
4. The table is stored as int8 with one scale per row.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import torch
from openvino import opset13 as ops
from openvino_tokenizers import convert_tokenizer
from transformers import AutoModel, AutoTokenizer

OUT = Path(__file__).parents[1] / "lean_ovms" / "features" / "pooling" / "demo_embed"
DIMENSIONS = 64
SPECIAL, MARKS = 999, 1037
"""Ids below SPECIAL are special or unused tokens. Those from there up to MARKS are single characters and punctuation.
"""
MARK_WEIGHT = 0.3
BATCH = 512

Array = np.ndarray[Any, np.dtype[Any]]


@torch.no_grad()
def token_vectors(teacher: Path) -> Array:
    """Returns the teacher's mean-pooled vector of each token between [CLS] and [SEP], of shape [vocabulary, hidden]."""
    tokenizer = AutoTokenizer.from_pretrained(teacher)
    model = AutoModel.from_pretrained(teacher).eval()
    found = []
    for start in range(0, len(tokenizer), BATCH):
        ids = torch.arange(start, min(start + BATCH, len(tokenizer)))
        ends = [torch.full_like(ids, token) for token in (tokenizer.cls_token_id, tokenizer.sep_token_id)]
        hidden = model(input_ids=torch.stack([ends[0], ids, ends[1]], dim=1)).last_hidden_state
        found.append(hidden.mean(1).numpy())
    return np.concatenate(found)


def reduced(vectors: Array) -> Array:
    """Returns the principal components of the vectors, weighted by rank: [vocabulary, DIMENSIONS] in f32."""
    centred = vectors - vectors.mean(0)
    _, _, axes = np.linalg.svd(centred[SPECIAL:], full_matrices=False)
    weights = np.log(1 + np.maximum(np.arange(len(vectors)) - SPECIAL + 1, 1))
    weights[:SPECIAL] = 0
    weights[SPECIAL:MARKS] *= MARK_WEIGHT
    return np.asarray((centred @ axes[:DIMENSIONS].T) * weights[:, None], np.float32)


def network(table: Array) -> ov.Model:
    """Returns the network, which looks up rows of the table: input_ids and attention_mask to last_hidden_state."""
    scales = (np.abs(table).max(1, keepdims=True) / 127 + 1e-12).astype(np.float32)
    rows = np.round(table / scales).astype(np.int8)
    ids, mask = (ops.parameter([-1, -1], ov.Type.i64, name=name) for name in ("input_ids", "attention_mask"))
    for node in (ids, mask):
        node.output(0).set_names({node.get_friendly_name()})
    axis = ops.constant(np.int64(0))
    found = ops.multiply(
        ops.convert(ops.gather(ops.constant(rows), ids, axis), "f32"), ops.gather(ops.constant(scales), ids, axis)
    )
    hidden = ops.multiply(found, ops.convert(ops.unsqueeze(mask, np.int64(2)), "f32"))
    hidden.output(0).set_names({"last_hidden_state"})
    return ov.Model([hidden], [ids, mask], "static")


def write_info() -> None:
    """Writes engine_info.json, what the engine reports of the model in OUT, so that servers need not load it to
    know."""
    from lean_ovms.config import Config
    from lean_ovms.features.pooling.child.model import OpenVinoPooler

    info = dataclasses.asdict(OpenVinoPooler(Config(model_path=str(OUT), task="embeddings")).info)
    (OUT / "engine_info.json").write_text(json.dumps({**info, "versions": {}}, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("teacher", type=Path)
    teacher: Path = parser.parse_args().teacher
    ov.save_model(network(reduced(token_vectors(teacher))), OUT / "openvino_model.xml", compress_to_fp16=True)
    tokenizer = AutoTokenizer.from_pretrained(teacher)
    for part, name in zip(
        convert_tokenizer(tokenizer, with_detokenizer=True), ("tokenizer", "detokenizer"), strict=True
    ):
        ov.save_model(part, OUT / f"openvino_{name}.xml")
    config = {"architectures": ["StaticEmbeddingModel"], "model_type": "static", "hidden_size": DIMENSIONS}
    size = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
    (OUT / "config.json").write_text(json.dumps({**config, **size}) + "\n")
    write_info()


if __name__ == "__main__":
    main()
    os._exit(0)  # openvino's tokenizers may crash when Python unloads them
