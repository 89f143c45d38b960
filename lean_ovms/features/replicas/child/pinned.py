"""python -m …replicas.child.pinned PROCESSORS MODULE …: runs the engine's module on some of the machine's processors.

It restricts itself before anything is imported that counts processors or starts threads, so that OpenVINO, too, has one
thread for each core of these alone; and what it allocates from then on is memory of their NUMA node.
"""

from __future__ import annotations

import os
import runpy
import sys

if __name__ == "__main__":
    processors, module = sys.argv.pop(1), sys.argv.pop(1)
    os.sched_setaffinity(0, map(int, processors.split(",")))
    runpy.run_module(module, run_name="__main__", alter_sys=True)
