"""Compiles grammars where it may take too long, use too much memory, or crash: `python -m` this module <fd>.

It loads the model's tokenizer (not the model), limits its own memory, and answers with a pipeline.GrammarCost, on its
end of a socket pair (generation/grammar_answers.py). The process that started it kills it when no answer comes.
"""

from __future__ import annotations

from ..loading import quiet_imports  # noqa: F401 - first, for its effect

# isort: split
import os
import sys
import time
from typing import Any

import openvino_genai as genai
from jsonschema import Draft202012Validator, SchemaError

from ...errors import GrammarInvalid
from ..generation import grammar_limits
from ..generation.grammar_answers import data_bytes, limit_memory, serve
from ..generation.grammar_limits import GrammarBounds, members
from ..generation.pipeline import GrammarCost
from .grammar_compiler import GrammarCompiler, lowered, reason
from .grammar_probe import GrammarProbe

WARM = '{"type":"structural_tag","format":{"type":"json_schema","json_schema":{"type":"object"}}}'


def main(argv: list[str]) -> int:
    """Returns the exit status."""
    return serve("lean_ovms.engine.genai.grammar_process", argv, lambda message: Checker(load(message)).check)


def load(message: dict[str, Any]) -> GrammarCompiler:
    """Returns a compiler for the model's tokenizer, and from here on no more memory than allowed."""
    compiler = GrammarCompiler(genai.Tokenizer(message["model_dir"]), message["width"])
    compiler.compile(WARM)  # the first one builds tables of the whole vocabulary
    limit_memory(message["memory_bytes"])
    return compiler


class Checker:
    """Measures grammars with one compiler."""

    def __init__(self, compiler: GrammarCompiler) -> None:
        self._compiler = compiler
        self._probe = GrammarProbe(compiler)

    def check(self, tag: str, bounds: GrammarBounds) -> dict[str, Any]:
        """Returns what a grammar costs. Raises GrammarInvalid and GrammarTooComplex."""
        try:
            return self._cost(tag, bounds)._asdict()
        except RuntimeError as error:  # of GenAI, on a grammar that it has compiled
            raise GrammarInvalid(reason(error)) from error

    def _cost(self, tag: str, bounds: GrammarBounds) -> GrammarCost:
        check_schemas(grammar_limits.check(tag, bounds))
        before, began = data_bytes(), time.monotonic()
        self._compiler.compile(tag)
        seconds, used = time.monotonic() - began, data_bytes() - before
        try:
            start_s, mask_s = self._probe.measure(tag)
        finally:
            self._compiler.clear()
        return GrammarCost(seconds, max(0, used), start_s, mask_s, lowered(tag)[1])


def check_schemas(tag: Any) -> None:
    """Raises GrammarInvalid if a JSON schema in a structural tag is none. (xgrammar ignores many mistakes.)"""
    for key, value in members(tag):
        if key == "json_schema" and not isinstance(value, bool):
            try:
                Draft202012Validator.check_schema(value)
            except SchemaError as error:
                raise GrammarInvalid(f"not a JSON schema: {error.message}"[:500]) from error


if __name__ == "__main__":
    code = main(sys.argv[1:])
    os._exit(code)
