"""The networks of an export with vision besides its language model, compiled for the encoder's thread."""

from __future__ import annotations

from ....engine.loading import quiet_imports  # noqa: F401 - first, for its effect

# isort: split
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset13 as ops

from ....engine.paged.ir_weights import is_constant
from ....util.resources import cores


class VisionNetworks:
    """Used by one thread at a time. Each network is compiled when it is first used."""

    def __init__(self, model_dir: Path, device: str, properties: dict[str, Any]) -> None:
        """Compiles the networks, in which all cores compute: with one of two, an image's first token came after 1.4 s
        instead of 0.7, and the language model's steps beside it were not shorter (2026-11).
        """
        self._dir = model_dir
        self._device = device
        self._properties = {"ENABLE_CPU_PINNING": False, **properties, "INFERENCE_NUM_THREADS": cores()}
        self._requests: dict[str, Any] = {}

    def compiled(self, file: Path) -> Any:
        """Returns the compiled network of a file. Raises RuntimeError."""
        core = ov.Core()
        model = core.read_model(file)
        _look_up_angles(model)
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


def _look_up_angles(model: Any) -> None:
    """Lets a network look up sines and cosines where it looks up angles in a table: those are computed in f32, once.

    Where the rest of the network is computed in bf16, the angles in the table would be rounded.
    """
    for node in model.get_ordered_ops():
        gather = node.input_value(0).get_node() if node.get_type_name() in ("Cos", "Sin") else node
        if gather is node or gather.get_type_name() != "Gather":
            continue
        table = ops.cos(gather.input_value(0)) if node.get_type_name() == "Cos" else ops.sin(gather.input_value(0))
        if is_constant(gather.input_value(0)):
            node.output(0).replace(ops.gather(table, gather.input_value(1), gather.input_value(2)).output(0))
