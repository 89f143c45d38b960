"""Compiles and runs the networks of a model with vision other than its language model, in the encoder's thread."""

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
from ....engine.paged.network import VisionFile
from ....util.resources import cores


class VisionNetworks:
    """The vision networks of a model. They are used by one thread at a time, and each is compiled at its first use."""

    def __init__(
        self, model_dir: Path, device: str, properties: dict[str, Any], vision_file: VisionFile | None = None
    ) -> None:
        """Sets how networks are compiled. All cores compute in them.

        With one of two cores, the first token of a prompt with an image took 1.4 s instead of 0.7 s, and the concurrent
        steps of the language model were not faster (2026-11).

        Args:
            model_dir: The directory of the model, or its file.
            device: The name of OpenVINO's device.
            properties: OpenVINO's properties of the networks.
            vision_file: The file with the networks of a single-file model; None if they are in the directory.
        """
        self._dir = model_dir
        self._image_file = vision_file
        self._device = device
        self._properties = {"ENABLE_CPU_PINNING": False, **properties, "INFERENCE_NUM_THREADS": cores()}
        self._requests: dict[str, Any] = {}

    def compiled(self, part: str) -> Any:
        """Compiles the network of openvino_PART_model.xml, and returns it. Raises RuntimeError and StartError."""
        core, file = ov.Core(), self._image_file
        path = self._dir / f"openvino_{part}_model.xml"
        model = core.read_model(path) if file is None else file.network(part)
        _look_up_angles(model)
        return core.compile_model(model, self._device, self._properties)

    def run(self, part: str, inputs: dict[str, NDArray[Any]]) -> list[NDArray[np.float32]]:
        """Returns the outputs of a network, compiling it at its first use. Releases the GIL. Raises RuntimeError."""
        request = self._requests.get(part)
        if request is None:
            request = self._requests[part] = self.compiled(part).create_infer_request()
        request.infer(inputs, share_inputs=True)
        return [np.array(tensor.data, np.float32) for tensor in request.output_tensors]


def _look_up_angles(model: Any) -> None:
    """Replaces tables of angles in a network by tables of their sines and cosines, which are computed once in f32.

    Angles would be rounded if the rest of the network is computed in bf16.
    """
    for node in model.get_ordered_ops():
        gather = node.input_value(0).get_node() if node.get_type_name() in ("Cos", "Sin") else node
        if gather is node or gather.get_type_name() != "Gather":
            continue
        table = ops.cos(gather.input_value(0)) if node.get_type_name() == "Cos" else ops.sin(gather.input_value(0))
        if is_constant(gather.input_value(0)):
            node.output(0).replace(ops.gather(table, gather.input_value(1), gather.input_value(2)).output(0))
