"""A process that compiles grammars with XGrammar, since that may take too long or crash: `python -m` this module <fd>.

It answers with the compiled grammar as JSON, the cost of compiling, and the time of its slowest mask in random texts
(structured_output/child/answers.py). The process that started it kills it if no answer comes.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....errors import GrammarInvalid, last_line
from ...structured_output import limits
from ...structured_output.child.answers import Check, limit_memory, serve
from ...structured_output.child.structural_tag import PlainFormat, is_lark
from ...structured_output.limits import GrammarBounds, too_complex
from . import core

Choose = Callable[[NDArray[np.int64]], Any]
TRIAL_TEXTS, TRIAL_TOKENS, LONG_TOKENS, TRIAL_S = 3, 24, 256, 0.5
"""The number of short random texts with which a new grammar is tested, their length in tokens, the length of one long
text, and the CPU seconds for each kind, after which testing stops."""
MASK_S, ALLOWED_SLOW = 0.05, 1
"""The most CPU seconds of a mask, and the number of slower masks that are attributed to the machine, unless one takes
several times as long."""
MAX_COMPILED_BYTES = 16 << 20
"""The most bytes of a compiled grammar as JSON, which takes 0.4 s to read per 5 MB."""


def load(message: dict[str, Any]) -> Check:
    """Returns the function that compiles grammars for a vocabulary, after limiting the memory of this process."""
    compiler = XGrammarCompiler([piece.encode("latin-1") for piece in message["pieces"]], message["eos"])
    limit_memory(message["memory_bytes"])
    return compiler.check


class XGrammarCompiler:
    """Compiles and tests grammars for one vocabulary."""

    def __init__(self, pieces: Sequence[bytes], eos: Sequence[int]) -> None:
        """Reads a vocabulary: the bytes of each token, and the tokens that end a text."""
        self._core = core.load()
        self._vocabulary = self._core.vocabulary(pieces, eos)
        self._compiler = self._core.compiler(self._vocabulary)
        self._eos = list(eos)
        self._width = len(pieces)
        self._x = next((i for i, piece in enumerate(pieces) if piece == b"x"), 0)

    def check(self, tag: str, bounds: GrammarBounds) -> dict[str, Any]:
        """Compiles and tests a grammar, and returns the answer. Raises GrammarRefused."""
        began = time.process_time()
        whole = limits.check(tag, bounds)
        try:
            plain = PlainFormat(form := whole["format"], within_genai=False)
            own = form.get("grammar") if isinstance(form, dict) and form.get("type") == "grammar" else None
            if isinstance(own, str) and is_lark(own):
                compiled = self._compiler.compile_lark(own, [], [])
            else:
                words = json.dumps({"type": "structural_tag", "format": plain.form})
                compiled = self._compiler.compile_structural_tag(words)
        except (RuntimeError, KeyError, TypeError) as error:
            raise GrammarInvalid(f"XGrammar cannot compile the grammar: {_reason(error)}") from error
        text = str(compiled.serialize_json())
        if len(text) > MAX_COMPILED_BYTES:
            raise too_complex(f"its compiled form has more than {MAX_COMPILED_BYTES >> 20} MB")
        seconds = time.process_time() - began
        mask_s = self._tried(self._core.compiled(text, self._vocabulary))
        return {"seconds": seconds, "mask_s": mask_s, "compiled": text, "notices": plain.notices}

    def _tried(self, compiled: Any) -> float:
        """Returns the CPU seconds of the slowest mask in random texts. Raises GrammarTooComplex."""
        times: list[float] = []
        end = time.process_time() + TRIAL_S
        for seed in range(TRIAL_TEXTS):
            self._walk(self._core.matcher(compiled), TRIAL_TOKENS, random.Random(seed).choice, end, times)
        self._walk(self._core.matcher(compiled), LONG_TOKENS, self._letter, time.process_time() + TRIAL_S, times)
        return max(times, default=0.0)

    def _letter(self, allowed: NDArray[np.int64]) -> int:
        """Returns the token "x" if it is allowed, so that repetitions become long, or else the first allowed token."""
        found = int(np.searchsorted(allowed, self._x))
        return int(allowed[found if found < len(allowed) and allowed[found] == self._x else 0])

    def _walk(self, matcher: Any, most: int, choose: Choose, end: float, times: list[float]) -> None:
        mask = np.zeros((1, -(-self._width // 32)), np.int32)
        for _ in range(most):
            began = time.thread_time()
            core.fill(matcher, mask)
            times.append(time.thread_time() - began)
            if sum(int(mask_s / MASK_S) for mask_s in times) > ALLOWED_SLOW:
                raise too_complex(f"matching a token takes more than {1000 * MASK_S:.0f} ms")
            bits = np.unpackbits(mask.view(np.uint8)[0], bitorder="little")[: self._width]
            bits[self._eos] = 0
            allowed = np.flatnonzero(bits)
            if not len(allowed) or time.process_time() > end:
                return
            core.accept(matcher, int(choose(allowed)))


def _reason(error: Exception) -> str:
    """Returns XGrammar's error message without the path of its source file."""
    text = last_line(error)
    return (text.partition(".cc:")[2].partition(": ")[2] if ".cc:" in text else text)[:300]


if __name__ == "__main__":
    serve("lean_ovms.features.xgrammar.child.process", load)
