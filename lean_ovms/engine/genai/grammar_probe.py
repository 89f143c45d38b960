"""Measures how long a compiled grammar's masks take, with random outputs of it. For the checker process only.

XGrammar computes a mask from all the ways in which the text so far can be read. A grammar that compiles in milliseconds
may have thousands, or more with every token. GenAI computes masks inside the step of all requests.
"""

from __future__ import annotations

import json
from contextlib import closing

from ..generation.grammar_limits import too_complex
from .grammar_compiler import GrammarCompiler

REFERENCE = {
    "type": "structural_tag",
    "format": {
        "type": "grammar",
        "grammar": 'root ::= char{100}\nchar ::= [^"\\\\] | "\\\\" ["\\\\n]\n',
    },
}
"""A string with a maximum length: XGrammar reads nearly every token of the vocabulary for its masks."""
REFERENCE_TOKENS = 6
FACTOR = 8
"""Most time of a mask, in masks of the reference. An object with 100 optional properties needs up to 6."""
LEAST_S = 0.025
"""A mask may always take this long."""
TEXTS, TOKENS = 3, 40
TOTAL_S = 0.5
"""CPU time after which no further token is tried; a text has at least LEAST_TOKENS."""
LEAST_TOKENS = 4
ALLOWED_SLOW = 1
"""Masks over the limit that are put down to the machine, unless one takes as long as several."""


class GrammarProbe:
    """Compares grammars with the reference, on this machine and for this vocabulary. limit_s: most time of a mask."""

    def __init__(self, compiler: GrammarCompiler) -> None:
        self._compiler = compiler
        self._count = 0
        tag = json.dumps(REFERENCE)
        compiler.compile(tag)
        steps = list(compiler.walk(tag, self._next(), REFERENCE_TOKENS))[1:]
        self.limit_s = max(LEAST_S, FACTOR * sorted(steps)[len(steps) // 2])
        compiler.clear()

    def measure(self, tag: str) -> tuple[float, float]:
        """Returns the time of a request's first step and of its slowest later one.

        Raises GrammarTooComplex, RuntimeError.
        """
        start_s = mask_s = total_s = 0.0
        slow = 0
        for _ in range(TEXTS):
            with closing(self._compiler.walk(tag, self._next(), TOKENS)) as steps:
                for place, step_s in enumerate(steps):
                    total_s += step_s
                    if not place:
                        start_s = max(start_s, step_s)
                        continue
                    mask_s = max(mask_s, step_s)
                    slow += int(step_s / self.limit_s)
                    if slow > ALLOWED_SLOW:
                        raise too_complex(f"a token takes more than {1000 * self.limit_s:.0f} ms to match")
                    if total_s > TOTAL_S and place >= LEAST_TOKENS:
                        break
            if total_s > TOTAL_S:
                break
        return start_s, mask_s

    def _next(self) -> int:
        self._count += 1
        return self._count
