"""Runs the engine's module on some processors: python -m …replicas.child.pinned PROCESSORS MODULE ….

The process restricts itself before it imports anything that counts processors or starts threads. So OpenVINO, too, has
one thread for each core of these processors only, and all memory is allocated on their NUMA node.
"""

from __future__ import annotations

import os
import runpy
import sys

if __name__ == "__main__":
    processors, module = sys.argv.pop(1), sys.argv.pop(1)
    os.sched_setaffinity(0, map(int, processors.split(",")))
    runpy.run_module(module, run_name="__main__", alter_sys=True)
