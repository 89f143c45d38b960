"""Import this before numpy and openvino: it keeps them from starting threads and processes.

openvino's telemetry starts a thread, forks and tries the network (90 ms and 15 MB less without it); numpy's OpenBLAS
starts a thread pool for the one array that the engine makes.
"""

from __future__ import annotations

import os
import sys

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
for name in ("openvino_telemetry", "openvino.tools.ovc"):
    sys.modules.setdefault(name, None)  # type: ignore[arg-type]  # None: importing it fails, which openvino expects
