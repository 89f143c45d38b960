"""Which task a model directory, a model file or OVMS's graph has. The tasks are rows of the features' manifests."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ..composition import Composition, compose
from ..manifest import GraphRow, TaskRow
from ..model_files import ModelFiles
from . import model_file


def detect(path: Path, composition: Composition | None = None) -> str:
    """Returns the name of the task of a model directory or file; "" if its files do not show it.

    composition: the features whose tasks are known; None: all.
    """
    if (file := model_file.of(path)) is not None:
        return file.task()
    files = ModelFiles.of(path)
    return next((row.name for row in (composition or compose()).tasks if row.recognizes(files)), "")


def of_calculators(names: Iterable[str], tasks: Iterable[TaskRow]) -> tuple[TaskRow, GraphRow, str] | None:
    """Returns the task of a graph with these calculators, how graphs have it, and the calculator that shows it."""
    rows = [(task, task.graph) for task in tasks if task.graph is not None]
    return next(((task, graph, name) for name in names for task, graph in rows if name in graph.calculators), None)
