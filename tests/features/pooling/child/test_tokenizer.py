"""How the tokenizer of a pooling model joins pairs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, processors

from lean_ovms.engine.loading.text_encoder import JsonTokenizer
from lean_ovms.features.pooling.child import tokenizer as module
from lean_ovms.features.pooling.child.pooler import Template
from lean_ovms.features.pooling.child.tokenizer import template

SINGLE = ((2,), (3,))
BERT = Template(single=SINGLE, pair=((2,), (3,), (3,)), types=(0, 0, 0, 1, 1))
SPECIAL = [("[CLS]", 2), ("[SEP]", 3)]
PAIRS = processors.TemplateProcessing(pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=SPECIAL)
SWAPPED = processors.TemplateProcessing(pair="[CLS] $B [SEP] $A:1 [SEP]:1", special_tokens=SPECIAL)
LAST = processors.TemplateProcessing(pair="$A [SEP]:1 $B [SEP]:1 [CLS]:2", special_tokens=SPECIAL)


@pytest.mark.parametrize(
    ("processor", "expected"),
    [
        (PAIRS, BERT),
        (processors.Sequence([processors.ByteLevel(), PAIRS]), BERT),
        (processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2)), BERT),
        (
            processors.RobertaProcessing(("[SEP]", 3), ("[CLS]", 2)),
            Template(single=SINGLE, pair=((2,), (3, 3), (3,)), types=(0, 0, 0, 0, 0)),
        ),
        (LAST, Template(single=SINGLE, pair=((), (3,), (3, 2)), types=(0, 0, 1, 0, 1))),
        (None, BERT),
        (SWAPPED, BERT),
        (processors.ByteLevel(), BERT),
    ],
)
def test_pairs_are_joined_as_tokenizer_json_says(tmp_path: Path, processor: Any, expected: Template) -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1, "[CLS]": 2, "[SEP]": 3}, unk_token="a"))
    if processor is not None:
        tokenizer.post_processor = processor
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert template(JsonTokenizer.read(tmp_path), SINGLE) == expected


def test_a_long_text_does_not_pad_many_others_to_its_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CALL_CHARACTERS", 20)
    texts = ["ab"] * 11 + ["x" * 30, "y" * 6, "z" * 9, "w"]
    groups = module._groups(texts)
    assert [text for group in groups for text in group] == texts
    assert [len(group) for group in groups] == [10, 1, 1, 2, 1]
    assert module._groups([]) == []
