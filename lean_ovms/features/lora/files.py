"""Reads and checks the files of a LoRA adapter: its weights, its scale, and whether it fits a model.

An adapter is a .safetensors file, a directory that peft has written (adapter_model.safetensors, adapter_config.json),
or a file of a format that has adapters, too (manifest.FormatRow). openvino-genai 2026.4.1 multiplies an adapter's
weights by alpha only, and does not read adapter_config.json. It silently skips tensors for which the model has no
layer. Here, as in vLLM, such an adapter is refused with the name of the layer, since a part of an adapter would give
wrong answers.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from ...composition import compose
from ...errors import counted
from ...manifest import FormatRow, named
from ...repository import model_config, safetensors
from ...repository.model_config import TEXT_NETWORKS
from ...repository.safetensors import TensorInfo
from ...types import Json
from ...util import files
from .modules import LoraModule, invalid

WEIGHTS, SETTINGS = "adapter_model.safetensors", "adapter_config.json"
PREFIX = "base_model.model."
"""First part of peft's tensor names; GenAI finds no others in a language model."""
MOST = 32768
"""All weights are below it, either sign: half precision has numbers up to twice as many, and what is above comes from a
training that diverged. Of a step's tokens, which share products, all would get numbers that are not finite."""
NOT_FINITE = f"has a weight that is not finite, or is {MOST} or more"
MATRICES = (*safetensors.FLOATS, "Q8_0")
"""The types of an adapter's matrices; only GGUF files have the last one."""
MOST_SCALE = 1000.0
MOST_NAMES = 3
"""Names of layers or tensors in one message."""
BASE_WEIGHTS = ".base_layer.weight"
"""The end of the names of copies of the model's own weights, which peft adds for embeddings. vLLM ignores them, too."""
IMAGE_MODEL = "model_index.json"
"""File of a model that makes images: its adapters have the names of kohya or of diffusers, which GenAI resolves."""
_LAYER = re.compile(rf"{re.escape(PREFIX)}(.+)\.lora_[AB](?:\.\w+)?\.weight")
_KNOWN = re.compile(r'"(?:self|__module)\.([\w.]+?)(?:\.weight)?[/"]')
_LINEAR = re.compile(
    r'<layer [^>]*\bname="__module\.([\w.]+)/[^"]*" type="MatMul".*?<input>(.*?)</port>.*?<output>(.*?)</output>',
    re.DOTALL,
)
_DIMENSION = re.compile(r"<dim>(-?\d+)</dim>")
_TOP_BYTES = {kind: bytes(byte for byte in range(256) if byte & 0x7F < least) for kind, least in
    (("F32", 0x47), ("BF16", 0x47), ("F16", 0x78))}  # fmt: skip
"""The highest bytes of the numbers below MOST, by the name of their type."""


class AdapterFile(Protocol):
    """The tensors of an adapter by peft's names. The methods raise OSError and ValueError."""

    path: Path
    """The path of the file."""

    def rows(self) -> dict[str, Any]:
        """Returns the type ("dtype") and the shape ("shape") of each tensor by its name."""

    def tensors(self, wanted: Callable[[str], object]) -> Iterator[tuple[str, TensorInfo]]:
        """Yields the tensors for whose names `wanted` is true."""

    def parts(self, wanted: Callable[[str], object]) -> Iterator[tuple[str, bytes]]:
        """Yields the numbers of the wanted tensors, each with the name of their type, one of FLOATS."""

    def factor(self, rank: int) -> float:
        """Returns the factor of what the adapter adds to a layer in which it has this rank."""


class SafetensorsFile:
    """An adapter in a .safetensors file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def rows(self) -> dict[str, Any]:
        return safetensors.header(self.path)

    def tensors(self, wanted: Callable[[str], object]) -> Iterator[tuple[str, TensorInfo]]:
        return safetensors.tensors(self.path, wanted)

    def parts(self, wanted: Callable[[str], object]) -> Iterator[tuple[str, bytes]]:
        return ((tensor.kind, tensor.data) for _, tensor in self.tensors(wanted))

    def factor(self, rank: int) -> float:
        """Returns 1, since the factor is the same for all ranks (`scale`)."""
        return 1.0


def opened(module: LoraModule, base: Callable[[], Json]) -> AdapterFile:
    """Returns the file of an adapter. Raises StartError if there is none.

    Args:
        module: The adapter.
        base: Returns the config.json of its model, which files of some formats need.
    """
    path = weights(Path(module.path))
    if (row := _format(path)) is None:
        return SafetensorsFile(path)
    found: AdapterFile = named(row.package, row.adapter)(path, base())
    return found


def weights(path: Path) -> Path:
    """Returns an adapter's file, given it or its directory. Raises StartError if there is none."""
    is_directory = os.path.isdir(path)
    file = path / WEIGHTS if is_directory else path
    if not os.path.isfile(file):
        raise invalid(f"there is no adapter at {path}" + (f" ({WEIGHTS} is missing)" if is_directory else ""))
    if not is_safetensors(file) and _format(file) is None:
        raise invalid(f"{file} is not a .safetensors file")
    return file


def _format(file: Path) -> FormatRow | None:
    """Returns the format of models of which a file is, if the format has adapters, too."""
    row = compose().format_of(file)
    return row if row is not None and row.adapter else None


def is_safetensors(file: Path) -> bool:
    """Returns whether an adapter is a .safetensors file, by its name; otherwise it is a file of a format of models."""
    return file.suffix == ".safetensors"


def scale(module: LoraModule) -> float:
    """Returns the factor of the adapter's weights: alpha if given, else peft's lora_alpha / rank. Raises StartError."""
    factor = (_settings_scale(module) if module.alpha is None else module.alpha) * module.scale
    if not abs(factor) <= MOST_SCALE:
        raise invalid(f"the scale {factor:g} of {module.name} must be between -{MOST_SCALE:g} and {MOST_SCALE:g}")
    return factor


def _settings_scale(module: LoraModule) -> float:
    file = weights(Path(module.path))
    settings = file.parent / SETTINGS
    if not is_safetensors(file) or not settings.is_file():
        return 1.0
    try:
        found = files.read(settings)
        alpha, rank = _number(found["lora_alpha"]), _number(found["r"])
        return alpha / (math.sqrt(rank) if found.get("use_rslora") else rank)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ArithmeticError):
        raise invalid(f"{settings} has no valid lora_alpha and r") from None


def _number(value: Any) -> float:
    """Converts a value to a finite, non-negative number. Raises ValueError or OverflowError if it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= float(value) < math.inf:
        raise ValueError(value)
    return float(value)


def check(module: LoraModule, model_dir: Path) -> None:
    """Raises StartError for an adapter that is missing, broken or not finite, or does not fit the model."""
    file = opened(module, lambda: model_config.read(model_dir))
    scale(module)
    if (model_dir / IMAGE_MODEL).is_file():
        if not is_safetensors(file.path):
            raise invalid(f"{file.path} is not a .safetensors file, as adapters of image models are")
        kinds = {name: row["dtype"] for name, row in rows(file).items()}
        if not any("lora" in name for name in kinds):
            raise invalid(f"{file.path} has no tensors of a LoRA adapter")
        _check_numbers(file, lambda name: kinds[name] in safetensors.FLOATS)
        return
    found = pairs(file)
    if not found:
        raise invalid(f"{file.path} has no tensors named {PREFIX}<layer>.lora_A.weight")
    _check_numbers(file, layer)
    network = next(filter(Path.is_file, (model_dir / name for name in TEXT_NETWORKS)), None)
    if network is None:
        return
    text = files.read_text(network, "utf-8", "replace")
    if wrong := misfit(found, set(_KNOWN.findall(text)), linear_layers(text), lambda: changed(file)):
        raise invalid(f"{file.path} {wrong}")


def check_layers(
    module: LoraModule, model_dir: Path, layers: Mapping[str, Sequence[int]], fixed: Collection[str]
) -> None:
    """Raises StartError for an adapter that a loaded network cannot take.

    Args:
        module: The adapter, which was checked without the network.
        model_dir: The directory of the model, or its file.
        layers: The layers of the network that take adapters, with the widths of their inputs and outputs.
        fixed: The layers of the network that take no adapters.
    """
    file = opened(module, lambda: model_config.read(model_dir))
    if wrong := misfit(pairs(file), layers.keys(), layers, lambda: changed(file), fixed):
        raise invalid(f"{file.path} {wrong}")


def misfit(
    adapted: Mapping[str, tuple[int, int]],
    known: Collection[str],
    widths: Mapping[str, Sequence[int]],
    changed: Callable[[], Collection[str]],
    fixed: Collection[str] = (),
) -> str:
    """Returns why a network cannot take an adapter, as the end of a sentence, or "" if it can.

    Args:
        adapted: The layers of the adapter, with the widths of their inputs and outputs.
        known: The layers of the network.
        widths: The widths of those of which they are known.
        changed: Returns the layers that the adapter changes; the network may lack others.
        fixed: The layers of the network that take no adapters.
    """
    for name, shape in adapted.items():
        if any(f"{name}.".startswith(f"{one}.") for one in fixed):
            return f"adapts {name}, which only --pipeline_type LM_CB supports"
        if name in widths and tuple(widths[name]) != shape:
            width, height = widths[name]
            return f"belongs to another model: its {name} does not map {width} to {height} elements"
    missing = {*adapted} - {*known}
    of_none = len(missing) == len(adapted)
    if missing and not of_none:
        missing.intersection_update(changed())
    if not missing:
        return ""
    names = sorted(missing)
    text = f"it adapts {', '.join(names[:MOST_NAMES])}"
    if len(names) > MOST_NAMES:
        text += f" and {counted(len(names) - MOST_NAMES, 'more layer')}"
    return f"{'belongs to another model' if of_none else 'fits only in part'}: {text}, which this model does not have"


def changed(file: AdapterFile) -> set[str]:
    """Returns the layers that an adapter changes, as neither A nor B is zero. Raises StartError.

    Layers through which no token passed in training, for example, have zeros.
    """
    try:
        zeros = {layer(name) for name, tensor in file.tensors(layer) if not any(tensor.data)}
    except (OSError, ValueError) as error:
        raise invalid(f"{file.path} cannot be read: {error}") from None
    return pairs(file).keys() - zeros


def linear_layers(network: str) -> dict[str, tuple[int, int]]:
    """Returns the input and output widths of a network's linear layers by their names in peft, if it has the names."""
    found = {}
    for name, x, y in _LINEAR.findall(network):
        widths = tuple(int(_DIMENSION.findall(part)[-1]) for part in (x, y) if _DIMENSION.search(part))
        if len(widths) == 2 and min(widths) > 0:
            found[name] = widths
    return found


def pairs(file: AdapterFile) -> dict[str, tuple[int, int]]:
    """Returns the input and output widths of an adapter's layers, by name.

    Raises StartError if a layer does not have one matrix A and one B of the same rank, and for tensors of other kinds,
    which would have no effect.
    """
    found: dict[str, dict[str, list[int]]] = {}
    strange = list[str]()
    for name, row in rows(file).items():
        if not (adapted := layer(name)):
            strange += [] if name.endswith(BASE_WEIGHTS) else [name]
            continue
        part = "A" if ".lora_A." in name else "B"
        if row["dtype"] not in MATRICES or len(row["shape"]) != 2 or 0 in row["shape"]:
            kinds = ", ".join(safetensors.FLOATS)
            raise invalid(f"{file.path}: {name} is {row['dtype']} of the shape {row['shape']}, not a matrix of {kinds}")
        if part in found.setdefault(adapted, {}):
            raise invalid(f"{file.path} has two {part} tensors for {adapted}")
        found[adapted][part] = row["shape"]
    if found and strange:
        kept = f"{', '.join(sorted(strange)[:MOST_NAMES])}{', ...' if len(strange) > MOST_NAMES else ''}"
        raise invalid(f"{file.path} has tensors that are not lora_A or lora_B of a linear layer: {kept}")
    for adapted, shapes in found.items():
        if len(shapes) < 2:
            raise invalid(f"{file.path}: {adapted} has no lora_{'B' if 'A' in shapes else 'A'}")
        if shapes["A"][0] != shapes["B"][1]:
            raise invalid(f"{file.path}: lora_A and lora_B of {adapted} have different ranks")
    return {adapted: (shapes["A"][1], shapes["B"][0]) for adapted, shapes in found.items()}


def _check_numbers(file: AdapterFile, wanted: Callable[[str], object]) -> None:
    """Raises StartError if a weight is not finite or too large."""
    try:
        for kind, part in file.parts(wanted):
            size = safetensors.FLOATS[kind]
            if part[size - 1 :: size].translate(None, _TOP_BYTES[kind]):
                raise invalid(f"{file.path} {NOT_FINITE}")
    except (OSError, ValueError) as error:
        raise invalid(f"{file.path} cannot be read: {error}") from None


def layer(name: str) -> str:
    """Returns the name of the layer to which a tensor belongs, or "" if it is not a tensor of an adapter."""
    found = _LAYER.fullmatch(name)
    return found[1] if found else ""


def rows(file: AdapterFile) -> dict[str, Any]:
    """Returns the types and shapes of a file's tensors by name; checks its header and size. Raises StartError."""
    try:
        return file.rows()
    except OSError as error:
        raise invalid(f"{file.path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        wrong = "is not a complete .safetensors file" if is_safetensors(file.path) else "cannot be used"
        raise invalid(f"{file.path} {wrong}: {error}") from None
