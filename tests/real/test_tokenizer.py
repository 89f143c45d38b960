"""SmolLM2's tokenizers: hostile texts have the ids of the package tokenizers, and can be streamed."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("gguf")

from gguf import GGUFReader
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from lean_ovms.engine.loading.graph_tokenizer import GraphTokenizer
from lean_ovms.engine.loading.text_encoder import JsonTokenizer
from lean_ovms.features.gguf.child.tokenizer import GgufTokenizer
from lean_ovms.text.decode.detokenizer import Detokenizer
from tests.features.gguf.test_tokenizer import CONTROL, PUBLISHED, hostile
from tests.real.conftest import smollm2_of


def reference(path: Path) -> Tokenizer:
    """Returns the tokenizer as its publisher describes it: single digits, then the words of GPT-2."""
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


def test_the_exports_tokenizer_has_the_same_ids(smollm2: Path) -> None:
    """Both tokenizers: tokenizer.json, and openvino's, which ends a text at a zero character."""
    library, graph = JsonTokenizer.read(smollm2_of("int8")), GraphTokenizer(smollm2_of("int8"))
    theirs, texts = reference(smollm2), hostile(2000)
    assert library is not None
    for text, ids in zip(texts, graph.encode([text.rstrip("\0") for text in texts]), strict=True):
        assert library.encode(text) == theirs.encode(text, add_special_tokens=False).ids, text
        assert ids == theirs.encode(text.rstrip("\0"), add_special_tokens=False).ids, text


def test_a_stream_may_be_cut_at_every_token(smollm2: Path) -> None:
    """Nothing is taken back, no half characters are shown, and the end is the complete text."""
    ours = GgufTokenizer(smollm2)
    for text in hostile(2000):
        detokenizer, shown = Detokenizer(ours.vocabulary, skip_special_tokens=False), ""
        for token in ours.encode(text, False):
            shown += detokenizer.feed([token])
            assert text.startswith(shown)
        assert shown + detokenizer.flush() == text
