"""Grammars for SentencePiece vocabularies: which parts are written in the characters of the tokens, and which are
not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lean_ovms.features.structured_output.child.genai.sentencepiece import has_byte_fallback, rewritten

SCHEMA = {"type": "object", "properties": {"a b": {"enum": ["x y", 1], "description": "x y"}}, "required": ["a b"]}


@pytest.mark.parametrize(
    ("form", "written"),
    [
        ({"type": "const_string", "value": "a b\n"}, {"type": "const_string", "value": "a▁b<0x0A>"}),
        ({"type": "regex", "pattern": "a b\\n"}, {"type": "regex", "pattern": "a▁b\\n"}),
        ({"type": "tag", "begin": "<a b>", "end": "\t"}, {"type": "tag", "begin": "<a▁b>", "end": "<0x09>"}),
        ({"type": "grammar", "grammar": 'root ::= "a b" [ x]'}, {"type": "grammar", "grammar": 'root ::= "a▁b" [▁x]'}),
        (
            {"type": "sequence", "elements": [{"type": "json_schema", "json_schema": SCHEMA}]},
            {
                "type": "sequence",
                "elements": [
                    {
                        "type": "json_schema",
                        "json_schema": {
                            "type": "object",
                            "properties": {"a▁b": {"enum": ["x▁y", 1], "description": "x y"}},
                            "required": ["a▁b"],
                        },
                    }
                ],
            },
        ),
    ],
)
def test_spaces_are_those_of_the_tokens(form: Any, written: Any) -> None:
    assert rewritten(form) == written


def test_the_detokenizer_shows_such_a_vocabulary(tmp_path: Path) -> None:
    assert not has_byte_fallback(tmp_path)
    (tmp_path / "openvino_detokenizer.xml").write_text('<layer type="ByteFallback"/>')
    assert has_byte_fallback(tmp_path)
    (tmp_path / "model.gguf").touch()
    assert not has_byte_fallback(tmp_path / "model.gguf")
