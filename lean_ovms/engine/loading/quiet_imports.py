"""Keeps numpy and openvino from starting threads and processes, and limits their memory. It is imported before them.

openvino's telemetry starts a thread, forks and tries the network, which takes 90 ms and 15 MB. numpy's OpenBLAS starts
a thread pool for the one array that the engine makes. oneDNN, with which openvino computes, caches the operations that
it has prepared for each shape, and each new length of a prompt adds some.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec, module_from_spec
from pathlib import Path

PREPARED = 64
"""The number of operations, prepared for a shape, that oneDNN caches for the process and openvino for each network.

With the defaults, 1,024 for oneDNN and 5,000 for openvino, each new number of tokens in a step took another 1.5 MB with
SmolLM2: 365 MB after 240 of them, instead of 50 MB with this limit of 64 (2026-11). With a limit of 0, weights are
packed twice, and prompts take 1.4 times as long.
"""
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(PREPARED))
for name in ("openvino_telemetry", "openvino.tools.ovc"):
    sys.modules.setdefault(name, None)  # type: ignore[arg-type]  # None: importing it fails, which openvino expects
package = find_spec("openvino_tokenizers")
files = [] if package is None else [*Path(package.origin or "").parent.glob("lib/*openvino_tokenizers.*")]
TOKENIZERS = str(files[0]) if files else "libopenvino_tokenizers.so"
"""The path of the library with the operators of tokenizers, or its name if the package has no file."""
if package and files and not {"OV_TOKENIZER_PREBUILD_EXTENSION_PATH", "OpenVINO_DIR"} & os.environ.keys():
    # openvino_genai imports the package for this path alone. What it imports to convert tokenizers takes 40 ms.
    vars(sys.modules.setdefault("openvino_tokenizers", module_from_spec(package))).setdefault("_ext_path", TOKENIZERS)
