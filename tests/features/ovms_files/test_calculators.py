"""The calculators of a graph determine its task."""

from __future__ import annotations

import pytest

from lean_ovms.composition import compose
from lean_ovms.features.ovms_files import graph_schema
from lean_ovms.features.ovms_files.pbtxt import of_calculators


@pytest.mark.parametrize(
    ("calculators", "found"),
    [
        (["EmbeddingsCalculatorOV"], ("embeddings", "EmbeddingsCalculatorOV")),
        (["ImageGenCalculator"], ("image_generation", "ImageGenCalculator")),
        (["Own", "HttpLLMCalculator"], ("text_generation", "HttpLLMCalculator")),
        (["Own", "S2tCalculator"], ("speech2text", "S2tCalculator")),
        (["Own"], None),
        ([], None),
    ],
)
def test_the_calculators_show_the_task_of_a_graph(calculators: list[str], found: tuple[str, str] | None) -> None:
    task = of_calculators(calculators, compose().tasks)
    assert (task and (task[0].name, task[2])) == found


def test_a_served_task_has_the_message_of_its_options() -> None:
    graphs = graph_schema.GRAPHS
    assert graphs.keys() <= {task.name for task in compose().tasks}
    assert {graph.message for graph in graphs.values()} <= graph_schema.schema_of(compose()).messages.keys()
