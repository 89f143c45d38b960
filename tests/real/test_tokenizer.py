"""SmolLM2's tokenizer in its GGUF file: hostile texts have the ids that the package tokenizers gives them."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("gguf")

from gguf import GGUFReader
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from lean_ovms.features.gguf.child.tokenizer import GgufTokenizer
from tests.features.gguf.test_tokenizer import CONTROL, PUBLISHED, hostile


def reference(path: Path) -> Tokenizer:
    """Returns the tokenizer as its publisher describes it: digits alone, then the words of GPT-2."""
    fields = GGUFReader(path).fields
    tokens, merges, kinds = (fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "merges", "token_type"))
    vocabulary = {token: number for number, token in enumerate(tokens)}
    made = Tokenizer(models.BPE(vocabulary, [tuple(merge.split(" ")) for merge in merges]))
    made.pre_tokenizer = pre_tokenizers.Sequence(PUBLISHED["smollm"])
    made.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == CONTROL]
    made.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return made


def test_hostile_texts_have_the_ids_of_the_reference(smollm2: Path) -> None:
    ours, theirs = GgufTokenizer(smollm2), reference(smollm2)
    for text in hostile(2000):
        ids = theirs.encode(text, add_special_tokens=False).ids
        assert ours.encode(text, False) == ids, text
        assert ours.decode(ids, False) == theirs.decode(ids, skip_special_tokens=False)
