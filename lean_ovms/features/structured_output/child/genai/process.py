"""The process that checks grammars for openvino_genai, where compiling may take too long or crash.

It is run by `python -m` with the number of its end of a socket pair. It loads the model's tokenizer (not the model),
limits its own memory, and answers with a limits.GrammarCost. The process that started it kills it if no answer comes.
"""

from __future__ import annotations

from .....engine.loading import quiet_imports  # noqa: F401 - first, for its effect

# isort: split
import json
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import openvino_genai as genai

from .....errors import GrammarInvalid, SchemaInvalid
from ... import limits, validity
from ...limits import GrammarBounds, GrammarCost, too_complex
from ..answers import data_bytes, limit_memory, serve
from .compiler import GrammarCompiler, lowered, reason
from .sentencepiece import has_byte_fallback

WARM = '{"type":"structural_tag","format":{"type":"json_schema","json_schema":{"type":"object"}}}'
REFERENCE = {
    "type": "structural_tag",
    "format": {"type": "grammar", "grammar": 'root ::= char{100}\nchar ::= [^"\\\\] | "\\\\" ["\\\\n]\n'},
}
"""A string with a maximum length: XGrammar reads nearly every token of the vocabulary for its masks."""
REFERENCE_TOKENS = 6
FACTOR = 8
"""The most time of a mask, as a multiple of a mask of the reference. 100 optional properties need up to 6."""
LEAST_S = 0.025
"""The seconds that a mask may take on any machine."""
TEXTS, TOKENS = 3, 40
TOTAL_S = 0.5
"""The CPU seconds after which no further token is tried, once a text has LEAST_TOKENS."""
LEAST_TOKENS = 4
ALLOWED_SLOW = 1
"""The number of slower masks that are attributed to the machine, unless one takes several times as long."""


def load(message: dict[str, Any]) -> GrammarCompiler:
    """Makes a compiler for the model's tokenizer, and limits the memory of this process from then on."""
    folder = message["model_dir"]
    compiler = GrammarCompiler(genai.Tokenizer(folder), message["width"], byte_fallback=has_byte_fallback(Path(folder)))
    compiler.compile(WARM)  # the first call builds tables of the whole vocabulary
    limit_memory(message["memory_bytes"])
    return compiler


class Checker:
    """Measures the cost of grammars: compiling them, and computing masks for random outputs.

    XGrammar computes a mask from all ways to parse the output so far. A grammar that compiles in milliseconds may have
    thousands of ways, or more with every token, and GenAI computes masks inside the step of all requests. The limit is
    relative to a reference grammar on the same machine with the same vocabulary.
    """

    def __init__(self, compiler: GrammarCompiler) -> None:
        self._compiler = compiler
        self._count = 0
        tag = json.dumps(REFERENCE)
        compiler.compile(tag)
        steps = list(compiler.walk(tag, self._next(), REFERENCE_TOKENS))[1:]
        self.limit_s = max(LEAST_S, FACTOR * sorted(steps)[len(steps) // 2])
        """The most seconds that a mask may take."""
        compiler.clear()

    def check(self, tag: str, bounds: GrammarBounds) -> dict[str, Any]:
        """Measures the cost of a grammar. Raises GrammarRefused."""
        check_schemas(limits.check(tag, bounds))
        before, began = data_bytes(), time.monotonic()
        self._compiler.compile(tag)
        seconds, used = time.monotonic() - began, data_bytes() - before
        try:
            mask_s = self._measure(tag)
        except RuntimeError as error:  # GenAI may fail at a grammar that it has compiled
            raise GrammarInvalid(reason(error)) from error
        finally:
            self._compiler.clear()
        return GrammarCost(seconds, max(0, used), mask_s, lowered(tag, self._compiler.byte_fallback)[1])._asdict()

    def _measure(self, tag: str) -> float:
        """Returns the CPU seconds of the slowest step, except the first, in which GenAI converts the grammar again.

        Raises GrammarTooComplex if steps are too slow, and RuntimeError if GenAI fails.
        """
        mask_s = total_s = 0.0
        slow = 0
        for _ in range(TEXTS):
            with closing(self._compiler.walk(tag, self._next(), TOKENS)) as steps:
                for place, step_s in enumerate(steps):
                    total_s += step_s
                    if not place:
                        continue
                    mask_s = max(mask_s, step_s)
                    slow += int(step_s / self.limit_s)
                    if slow > ALLOWED_SLOW:
                        raise too_complex(f"matching a token takes more than {1000 * self.limit_s:.0f} ms")
                    if total_s > TOTAL_S and place >= LEAST_TOKENS:
                        break
            if total_s > TOTAL_S:
                break
        return mask_s

    def _next(self) -> int:
        self._count += 1
        return self._count


def check_schemas(tag: Any) -> None:
    """Raises GrammarInvalid for an invalid JSON schema in a structural tag; XGrammar ignores many mistakes."""
    for part in limits.formats_in(tag):
        schema = part.get("json_schema", True)
        if not isinstance(schema, bool):
            try:
                validity.check(schema)
            except SchemaInvalid as error:
                raise GrammarInvalid(f"not a JSON schema: {error.message}"[:500]) from error


if __name__ == "__main__":
    serve("lean_ovms.features.structured_output.child.genai.process", lambda message: Checker(load(message)).check)
