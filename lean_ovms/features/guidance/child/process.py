"""Reads and compiles grammars that may take seconds or much memory: `python -m` this module <fd>.

It answers with llguidance's text of a grammar, what is not imposed, and the time that took
(structured_output/child/answers.py). The process that started it kills it when no answer comes.
"""

from __future__ import annotations

import time
from typing import Any

from ...structured_output.child import limits
from ...structured_output.child.answers import Check, limit_memory, serve
from ...structured_output.child.limits import GrammarBounds
from . import library


def load(message: dict[str, Any]) -> Check:
    """Returns what reads a grammar, and limits the memory of this process from here on."""
    library.validate('start: "a"')
    limit_memory(message["memory_bytes"])
    return read


def read(tag: str, bounds: GrammarBounds) -> dict[str, Any]:
    """Translates a structural tag into Lark and compiles it. Raises GrammarInvalid and GrammarTooComplex."""
    began = time.process_time()
    reading = library.read(limits.check(tag, bounds))
    library.validate(reading.text)
    return {"seconds": time.process_time() - began, **reading._asdict()}


if __name__ == "__main__":
    serve("lean_ovms.features.guidance.child.process", load)
