"""python -m bench NAME [options]: NAME is one of BENCHES."""

from __future__ import annotations

import importlib
import signal
import sys

BENCHES = ("stall", "start", "compare", "front", "parts", "serve", "engine", "embed", "grammars", "drafts")
"""The benchmarks, each a module with a function `main`; `engine` is a function of serve.py."""


def run() -> int:
    """The exit status: 2 for wrong use."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in BENCHES:
        print(f"usage: python -m bench {' | '.join(BENCHES)} [options]", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that what it started ends, too
    module, function = ("serve", "engine") if name == "engine" else (name, "main")
    getattr(importlib.import_module(f".{module}", __package__), function)(sys.argv[2:])
    return 0


if __name__ == "__main__":
    sys.exit(run())
