"""The process that compiles grammars that may take seconds or much memory.

It is run by `python -m` with the number of its end of a socket pair. It answers (structured_output/child/answers.py)
with the text of a grammar for llguidance, notices of what is not enforced, and the time. The process that started it
kills it if no answer comes.
"""

from __future__ import annotations

import time
from typing import Any

from ...structured_output import limits
from ...structured_output.child.answers import Check, limit_memory, serve
from ...structured_output.limits import GrammarBounds
from . import library


def load(message: dict[str, Any]) -> Check:
    """Limits the memory of this process from now on, and returns the function that compiles a grammar."""
    library.validate('start: "a"')
    limit_memory(message["memory_bytes"])
    return read


def read(tag: str, bounds: GrammarBounds) -> dict[str, Any]:
    """Translates a structural tag to Lark and compiles it. Raises GrammarRefused."""
    began = time.process_time()
    reading = library.read(limits.check(tag, bounds))
    library.validate(reading.text)
    return {"seconds": time.process_time() - began, **reading._asdict()}


if __name__ == "__main__":
    serve("lean_ovms.features.guidance.child.process", load)
