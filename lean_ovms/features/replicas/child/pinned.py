"""python -m …replicas.child.pinned PROCESSORS …: the engine process, on some of the machine's processors.

It restricts itself before anything is imported that counts processors or starts threads, so that OpenVINO, too, has one
thread for each core of these alone; and what it allocates from then on is memory of their NUMA node.
"""

from __future__ import annotations

import os
import runpy
import sys

WORKER = "lean_ovms.engine.worker"

if __name__ == "__main__":
    processors = sys.argv.pop(1)
    os.sched_setaffinity(0, map(int, processors.split(",")))
    runpy.run_module(WORKER, run_name="__main__", alter_sys=True)
