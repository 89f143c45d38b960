"""The networks of an export with vision besides its language model, compiled for the encoder's thread."""

from __future__ import annotations

from ....engine.loading import quiet_imports  # noqa: F401 - first, for its effect

# isort: split
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ....engine.loading import exact_positions
from ....util.resources import cores


class VisionNetworks:
    """Used by one thread at a time. Each network is compiled when it is first used."""

    def __init__(self, model_dir: Path, device: str, properties: dict[str, Any]) -> None:
        """All cores compute: with one of two, an image's first token came after 1.4 s instead of 0.7, and the language
        model's steps beside it were not shorter (2026-11)."""
        self._dir = model_dir
        self._device = device
        self._properties = {"ENABLE_CPU_PINNING": False, **properties, "INFERENCE_NUM_THREADS": cores()}
        self._requests: dict[str, Any] = {}

    def compiled(self, file: Path) -> Any:
        """Returns the compiled network of a file. Raises RuntimeError."""
        core = ov.Core()
        model = core.read_model(file)
        exact_positions.look_up(model)
        return core.compile_model(model, self._device, self._properties)

    def run(self, part: str, inputs: dict[str, NDArray[Any]]) -> list[NDArray[np.float32]]:
        """Returns the outputs of the network of the file openvino_PART_model.xml. Releases the GIL.

        Raises RuntimeError.
        """
        request = self._requests.get(part)
        if request is None:
            file = self._dir / f"openvino_{part}_model.xml"
            request = self._requests[part] = self.compiled(file).create_infer_request()
        request.infer(inputs, share_inputs=True)
        return [np.array(tensor.data, np.float32) for tensor in request.output_tensors]
