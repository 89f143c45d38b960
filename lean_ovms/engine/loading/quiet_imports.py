"""Import this before numpy and openvino: it keeps them from starting threads and processes, and memory from growing.

openvino's telemetry starts a thread, forks and tries the network (90 ms and 15 MB less without it); numpy's OpenBLAS
starts a thread pool for the one array that the engine makes. oneDNN, which openvino computes with, keeps the operations
that it prepared for a shape, and a prompt of another length than all before brings new ones.
"""

from __future__ import annotations

import os
import sys

PREPARED = 64
"""The operations prepared for shapes that are kept, by oneDNN for the process and by openvino for each network.

With openvino's 5,000 and oneDNN's 1,024, SmolLM2 took 1.5 MB more for each new number of tokens in a step: 365 MB after
240, 50 MB with 64 (2026-11). With 0 weights are packed twice, and prompts take 1.4 times as long.
"""
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(PREPARED))
for name in ("openvino_telemetry", "openvino.tools.ovc"):
    sys.modules.setdefault(name, None)  # type: ignore[arg-type]  # None: importing it fails, which openvino expects
