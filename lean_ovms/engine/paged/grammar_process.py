"""Reads grammars that are long enough to keep the engine's loop from its work: `python -m` this module <fd>.

It answers with llguidance's text of a grammar and the time that took (generation/grammar_answers.py).
"""

from __future__ import annotations

import os
import resource
import sys
import time
from typing import Any

from ..generation import grammar_limits
from ..generation.grammar_answers import Check, serve
from ..generation.grammar_limits import Bounds
from . import regular, structural_tag


def load(message: dict[str, Any]) -> Check:
    """What reads a grammar; from here on no more memory than allowed."""
    limit = message["memory_bytes"] + (256 << 20)  # the interpreter's own
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    return read


def read(tag: str, bounds: Bounds) -> dict[str, Any]:
    """The grammar of a structural tag. Raises GrammarInvalid and GrammarTooComplex."""
    began = time.process_time()
    grammar_limits.check(tag, bounds)
    text = regular.lark(structural_tag.parse(tag))
    return {"seconds": time.process_time() - began, "text": text}


if __name__ == "__main__":
    code = serve("lean_ovms.engine.paged.grammar_process", sys.argv[1:], load)
    os._exit(code)
