"""python -m bench NAME [options] runs a benchmark. NAME is one of BENCHES."""

from __future__ import annotations

import importlib
import signal
import sys

BENCHES = ("stall", "start", "compare", "front", "parts", "serve", "embed", "drafts")
"""The benchmarks. Each is a module with a function `main`."""


def run() -> int:
    """Runs the benchmark that the command line names. Returns the exit status: 2 for wrong usage."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in BENCHES:
        print(f"usage: python -m bench {' | '.join(BENCHES)} [options]", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # also ends the started processes
    importlib.import_module(f".{name}", __package__).main(sys.argv[2:])
    return 0


if __name__ == "__main__":
    sys.exit(run())
