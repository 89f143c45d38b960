"""python -m bench front | stall [options]: see README.md beside this file."""

import asyncio
import sys

from . import front, stall

BENCHES = {"front": front.main, "stall": stall.main}


def run() -> int:
    """The exit status: 2 for wrong use."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in BENCHES:
        print(f"usage: python -m bench {' | '.join(BENCHES)} [options]", file=sys.stderr)
        return 2
    asyncio.run(BENCHES[name](sys.argv[2:]))
    return 0


if __name__ == "__main__":
    sys.exit(run())
