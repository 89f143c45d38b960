"""Marks networks that must be computed in f32 as part of others that are computed in bf16.

OpenVINO reads this from a mark on each operation. Python cannot set it, but the reader of network files can. OpenVINO
2026.4 replaces some operations by others without the mark: most of those that move numbers, and Subtract.
"""

from __future__ import annotations

from ....engine.loading import quiet_imports  # noqa: F401 - first, for its effect

# isort: split
import tempfile
from pathlib import Path
from xml.etree import ElementTree

import openvino as ov

MARK = {"name": "precise", "version": "0"}
"""The mark in files of networks."""
UNMARKED = ("Const", "Parameter", "Result")


def exact(model: ov.Model) -> ov.Model:
    """Returns a copy of a network in which each operation, including those of loops, has the mark."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "part.xml"
        ov.serialize(model, path)
        tree = ElementTree.parse(path)  # noqa: S314 - openvino has just written it
        for layer in list(tree.iter("layer")):
            if layer.get("type") not in UNMARKED:
                ElementTree.SubElement(ElementTree.SubElement(layer, "rt_info"), "attribute", MARK)
        tree.write(path)
        return ov.Core().read_model(path)
