"""Reads an OpenVINO IR file (.xml and .bin) as a graph of layers and constants, without openvino.

It reads only what tokenizers and detokenizers need: kinds, attributes, integer and byte constants, and edges. The IR
format (version 11) fixes the layout. This takes 1 ms, needs no extension library, and avoids an ov.Core, which would
crash the process when it is deleted before its model.
"""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree  # a model's files are trusted input, like its weights

from ...util.files import open_regular, read_bytes


class NotUnderstood(Exception):
    """Raised if the graph does not have the expected form."""


class Graph:
    """The layers of a network in OpenVINO's IR, by their ids.

    A broken file raises OSError, ElementTree.ParseError, KeyError or ValueError.
    """

    def __init__(self, xml: Path) -> None:
        with open_regular(xml) as file:
            root = ElementTree.parse(file).getroot()  # noqa: S314 - see the import
        self.layers = {layer.attrib["id"]: layer for layer in root.iterfind("layers/layer")}
        self._sources: dict[tuple[str, str], str] = {}
        self._consumers: dict[tuple[str, str], list[str]] = {}
        for edge in root.iterfind("edges/edge"):
            source, target = edge.attrib["from-layer"], edge.attrib["to-layer"]
            self._sources[target, edge.attrib["to-port"]] = source
            self._consumers.setdefault((source, edge.attrib["from-port"]), []).append(target)
        self._data = memoryview(read_bytes(xml.with_suffix(".bin")))

    def only(self, kind: str) -> str:
        """Returns the only layer of a kind. Raises NotUnderstood if there is none or several."""
        found = [name for name in self.layers if self.kind(name) == kind]
        if len(found) != 1:
            raise NotUnderstood(f"{len(found)} layers of kind {kind}")
        return found[0]

    def kind(self, layer: str) -> str:
        return self.layers[layer].attrib["type"]

    def attributes(self, layer: str) -> dict[str, str]:
        data = self.layers[layer].find("data")
        return {} if data is None else data.attrib

    def source(self, layer: str, port: int) -> str:
        return self._sources[layer, str(port)]

    def source_kind(self, layer: str, port: int) -> str:
        return self.kind(self.source(layer, port))

    def has_input(self, layer: str, port: int) -> bool:
        return (layer, str(port)) in self._sources

    def following(self, layer: str) -> str:
        """Returns the layer that consumes the characters of a layer, by convention its last output."""
        ports = self.layers[layer].findall("output/port")
        consumers = self._consumers.get((layer, ports[-1].attrib["id"]), []) if ports else []
        if len(consumers) != 1:
            raise NotUnderstood(f"{self.kind(layer)} does not feed exactly one layer")
        return consumers[0]

    def bytes(self, layer: str, port: int) -> bytes:
        return bytes(self._constant(layer, port, ("u8",)))

    def ints(self, layer: str, port: int) -> list[int]:
        """Returns the 32-bit integers at an input.

        The input must be a constant or a slice of one; slices serve to switch off skipped ids.
        """
        source = self._sources[layer, str(port)]
        if self.kind(source) != "Slice":
            return self._constant(layer, port, ("i32",)).cast("i").tolist()
        start, stop, step = (self.ints(source, p)[0] for p in (1, 2, 3))
        return self.ints(source, 0)[start:stop:step]

    def _constant(self, layer: str, port: int, types: tuple[str, ...]) -> memoryview:
        source = self._sources[layer, str(port)]
        row = self.attributes(source)
        if self.kind(source) != "Const" or row["element_type"] not in types:
            raise NotUnderstood(f"input {port} of {self.kind(layer)} is not a constant")
        size = 0 if row["shape"] == "0" else int(row["size"])
        offset = int(row["offset"])
        if offset + size > len(self._data):
            raise NotUnderstood("the data file is too short")
        return self._data[offset : offset + size]
