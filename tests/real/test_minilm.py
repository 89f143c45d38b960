"""all-MiniLM-L6-v2: its vectors are torch's, and an export without its pooling is reported."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lean_ovms.config import Config
from lean_ovms.features.pooling.child.model import OpenVinoPooler
from tests.features.pooling.child.rig import Rig
from tests.features.speech.child.words import EXACT

DATA = Path(__file__).parents[1] / "data" / "real" / "minilm.json"
"""Texts with their vectors from transformers in torch: the mean of the last hidden state, normalized, as float16."""


def known(file: Path, texts: int) -> Any:
    """Returns the vectors of this many texts in a file."""
    data = base64.b64decode(json.loads(file.read_text("utf-8"))["vectors"])
    return np.frombuffer(data, "<f2").astype(np.float32).reshape(texts, -1)


def texts() -> list[str]:
    """Returns the texts."""
    found: list[str] = json.loads(DATA.read_text("utf-8"))["texts"]
    return found


def computed(folder: Path, inputs: list[str], truncate: int = 256, **options: Any) -> tuple[Any, OpenVinoPooler]:
    """Returns the vectors of texts, and what computed them.

    Args:
        folder: The model's folder.
        inputs: The texts, which are computed together.
        truncate: The most tokens of a text that count.
        options: Options of the server.
    """
    options = {"plugin_config": EXACT, **options}
    pooler = OpenVinoPooler(Config(model_path=str(folder), task="embeddings", **options))
    rig = Rig(pooler=pooler)
    number = rig.submit(*inputs, truncate=truncate)
    rig.run()
    return np.stack([rows[0] for rows in rig.rows(number)]), pooler


def vectors(folder: Path, **options: Any) -> tuple[Any, Any, OpenVinoPooler]:
    """Returns the vectors of the texts, torch's vectors, and what computed the first."""
    found, pooler = computed(folder, texts(), **options)
    return found, known(DATA, len(found)), pooler


def agreement(found: Any, expected: Any) -> list[float]:
    """Returns the cosine of each vector and torch's."""
    return (np.sum(found * expected, axis=1) / np.linalg.norm(expected, axis=1)).tolist()


def cosines(folder: Path, **options: Any) -> tuple[list[float], OpenVinoPooler]:
    """Returns the cosine of each text's vector and torch's, and what computed the vectors."""
    found, expected, pooler = vectors(folder, **options)
    return agreement(found, expected), pooler


def test_vectors_are_torchs(minilm_ir: Path) -> None:
    found, _ = cosines(minilm_ir, pooling="MEAN")
    assert min(found) > 0.9999


def test_vectors_of_weights_in_eight_bits_are_near_torchs_and_find_the_same(minilm_int8: Path) -> None:
    """The nearest other text of each is the same as torch's, or as near."""
    found, expected, _ = vectors(minilm_int8, pooling="MEAN")
    assert min(agreement(found, expected)) > 0.9973
    near, right = (rows @ rows.T - 2 * np.eye(len(rows)) for rows in (found, expected))
    best = near.argmax(axis=1)
    assert np.all(right.max(axis=1) - right[np.arange(len(best)), best] < 0.01)


def test_vectors_of_a_gguf_file_are_torchs(minilm: Path, tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    from tests.makers import make_gguf

    found, pooler = cosines(make_gguf.encoder(minilm, tmp_path / "x.gguf"))
    assert min(found) > 0.9999
    assert (pooler.pooling.pooling, pooler.pooling.window) == ("MEAN", 512)


def test_an_export_without_its_pooling_is_pooled_by_its_name(minilm_ir: Path, tmp_path: Path) -> None:
    (tmp_path / "all-MiniLM-L6-v2").mkdir()
    for file in minilm_ir.iterdir():
        (tmp_path / "all-MiniLM-L6-v2" / file.name).symlink_to(file)
    found, pooler = cosines(tmp_path / "all-MiniLM-L6-v2")
    assert min(found) > 0.9999
    assert not pooler.pooling.pooling_assumed


def test_a_pooling_that_is_assumed_is_wrong_for_this_model_and_said_so(
    minilm_ir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found, pooler = cosines(minilm_ir)
    assert max(found[:5]) < 0.9
    assert pooler.pooling.pooling_assumed
    assert "pooling CLS" in caplog.text
