"""Grammars with the pipelines of openvino_genai: their options, and SentencePiece vocabularies."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from lean_ovms.config import DEMO_MODEL, Config
from lean_ovms.errors import StartError
from lean_ovms.features.structured_output.child.checker import ProcessGrammarChecker
from lean_ovms.features.structured_output.child.genai import compiler as grammar_compiler
from lean_ovms.features.structured_output.child.genai.sentencepiece import has_byte_fallback, rewritten


def test_openvino_genai_has_no_other_library_for_grammars() -> None:
    config = Config(model_path=str(DEMO_MODEL), structured_output_backend="guidance")
    with pytest.raises(StartError, match="structured_output_backend guidance needs --pipeline_type PAGED"):
        grammar_compiler.grammars(config, tokenizer=None)


def test_limits_of_grammars_reach_the_queue_and_the_checker(monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config(grammar_cache_mb=3, grammar_max_nesting=5, grammar_max_bytes=100, grammar_memory_mb=77)
    monkeypatch.setattr(grammar_compiler, "logits_width", lambda _: 8)
    monkeypatch.setattr(grammar_compiler, "GrammarCompiler", Mock)
    grammars = grammar_compiler.grammars(config, tokenizer=None)
    assert isinstance(grammars, grammar_compiler.GenAiGrammars)
    assert isinstance(grammars.checker, ProcessGrammarChecker)
    assert grammars.checker.settings.memory_bytes == 77 << 20
    found = grammars.new_queue(lambda: None, config)
    assert found.compiled_bytes == 3 << 20
    assert found.bounds.nesting == 5


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
