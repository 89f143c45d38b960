"""What a network computes of positions alone stays in f32 where the rest of it is computed in bf16.

In bf16 whole numbers above 256 are not exact: a token at 1,001 would get the angles of one at 1,000. OpenVINO keeps the
angles of the rotary embeddings that it knows in f32, by a mark on each operation; others are marked here. Python cannot
set the mark, but the reader of network files can, so these operations are written to a file and read again. OpenVINO
(2026.4) replaces operations that move numbers by others without the mark, so positions are moved while they are whole
numbers, and converted digit by digit, which is exact in bf16 too.
"""

from __future__ import annotations

import tempfile
from collections.abc import Container
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import openvino as ov
from openvino import opset13 as ops

MARK = {"name": "precise", "version": "0"}
"""The mark in files of networks: an operation is computed in the precision that the file has."""
UNMARKED = ("Const", "Parameter", "Result")
MOVES = (
    "Broadcast", "Concat", "Gather", "Reshape", "Slice", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze",
    "VariadicSplit",
)  # fmt: skip
"""Operations that change no number. Behind the last one that does they are not marked: bf16 has less to move."""
DIGITS, BASE = 3, 256
"""Digits of a position, and the numbers of each: those up to 256 are exact in bf16."""


def keep(model: Any, positions: Any) -> None:
    """Marks what a network computes of an output with positions, and of constants, alone."""
    for node in _computed(model, positions):
        source = node.input_value(0).get_node()
        if node.get_type_name() in MOVES and _is_conversion(source):
            _move_before(node, source)
    for node in filter(_is_conversion, _computed(model, positions)):
        _convert_by_digits(node)
    inner = _computed(model, positions)
    ends = [port for node in inner for port in node.outputs() if _readers(port, inner)]
    if not ends:
        return
    given = ops.parameter(positions.get_partial_shape(), positions.get_element_type().to_dtype())
    for reader in positions.get_target_inputs():
        if reader.get_node() in inner:
            reader.replace_source_output(given.output(0))
    marked = _marked(ov.Model(ends, [given], "positions"))
    marked.get_parameters()[0].output(0).replace(positions)
    for old, result in zip(ends, marked.get_results(), strict=True):
        for reader in _readers(old, inner):
            reader.replace_source_output(result.input_value(0))


def _computed(model: Any, positions: Any) -> list[Any]:
    """Returns the operations that change numbers which follow from positions and constants, and what leads to them."""
    constant, following = set[Any](), dict[Any, None]()
    for node in model.get_ordered_ops():
        values = node.input_values()
        sources = [value.get_node() for value in values if value != positions]
        if node.get_type_name() == "Constant" or (values and len(sources) == len(values) and constant >= {*sources}):
            constant.add(node)
        elif values and node.get_type_name() != "Result" and all(s in constant or s in following for s in sources):
            following[node] = None
    found = dict[Any, None]()
    for node in reversed(following):
        readers = [reader.get_node() for port in node.outputs() for reader in port.get_target_inputs()]
        if node.get_type_name() not in MOVES or any(reader in found for reader in readers):
            found[node] = None
    return list(reversed(found))


def _is_conversion(node: Any) -> bool:
    """Returns whether a node makes other numbers of whole ones."""
    whole = node.get_type_name() == "Convert" and node.input_value(0).get_element_type().is_integral()
    return bool(whole and not node.get_output_element_type(0).is_integral())


def _move_before(node: Any, convert: Any) -> None:
    """Lets an operation move numbers before they are converted."""
    readers = list(node.output(0).get_target_inputs())
    node.input(0).replace_source_output(convert.input_value(0))
    node.validate_and_infer_types()
    converted = ops.convert(node, convert.get_output_element_type(0).to_string())
    for reader in readers:
        reader.replace_source_output(converted.output(0))


def _convert_by_digits(convert: Any) -> None:
    """Converts whole numbers digit by digit."""
    kind, readers = convert.get_output_element_type(0).to_string(), list(convert.output(0).get_target_inputs())
    rest, digits = ops.convert(convert.input_value(0), "i32"), []
    for _ in range(DIGITS):
        digits.append(ops.convert(ops.floor_mod(rest, np.int32(BASE)), kind))
        rest = ops.divide(rest, np.int32(BASE))
    value = digits.pop()
    while digits:
        value = ops.add(ops.multiply(value, np.float32(BASE)), digits.pop())
    for reader in readers:
        reader.replace_source_output(value.output(0))


def _readers(port: Any, inner: Container[Any]) -> list[Any]:
    """Returns the inputs outside of these operations that an output goes to."""
    return [reader for reader in port.get_target_inputs() if reader.get_node() not in inner]


def _marked(model: ov.Model) -> ov.Model:
    """Returns a network with the mark on each of its operations."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "positions.xml"
        ov.serialize(model, path)
        tree = ElementTree.parse(path)  # noqa: S314 - openvino has just written it
        for layer in tree.iterfind("layers/layer"):
            if layer.get("type") not in UNMARKED:
                ElementTree.SubElement(ElementTree.SubElement(layer, "rt_info"), "attribute", MARK)
        tree.write(path)
        return ov.Core().read_model(path)
