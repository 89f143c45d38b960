"""Angles in a network that is computed in bf16 are those of f32, at any position."""

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from lean_ovms.features.gguf.child import exact_positions

BF16 = {"INFERENCE_PRECISION_HINT": "bf16"}
PLACES = np.array([0, 1, 255, 256, 257, 511, 1001, 4097, 7999, 65535, 65537, 131_071, 1_048_575])
FREQUENCIES = np.float32(10000.0) ** (-np.arange(16, dtype=np.float32) / 16)


def network(kept, moved_late):
    """Cosines of angles, multiplied by the unit matrix: behind a product openvino leaves results in f32."""
    given = ops.parameter([-1], np.int32)
    rows = ops.reshape(given, np.array([1, 1, 1, -1]), False)
    values = ops.convert(rows, "f32")
    column = ops.transpose(values, np.array([0, 3, 1, 2]))
    frequencies = ops.multiply(ops.constant(FREQUENCIES.reshape(1, 1, 1, -1)), np.float32(1))
    angles = ops.multiply(column, frequencies)
    cosines = ops.multiply(ops.cos(angles), np.float32(2))
    shaped = ops.transpose(cosines, np.array([0, 2, 1, 3])) if moved_late else cosines
    model = ov.Model([ops.matmul(shaped, np.eye(16, dtype=np.float32), False, False)], [given], "angles")
    if kept:
        exact_positions.keep(model, rows.output(0))
        model.validate_nodes_and_infer_types()
    return model


def cosines(model, properties):
    compiled = ov.Core().compile_model(model, "CPU", properties)
    if compiled.get_property("INFERENCE_PRECISION_HINT").to_string() != next(iter(properties.values())):
        pytest.skip("this CPU does not compute in bf16")
    return compiled(PLACES.astype(np.int32))[0].reshape(len(PLACES), -1)


@pytest.mark.parametrize("moved_late", [False, True])
def test_angles_are_exact_at_every_position(moved_late):
    wanted = 2 * np.cos(PLACES[:, None].astype(np.float32) * FREQUENCIES)
    assert cosines(network(True, moved_late), {"INFERENCE_PRECISION_HINT": "f32"}) == pytest.approx(wanted, abs=1e-3)
    assert cosines(network(True, moved_late), BF16) == pytest.approx(wanted, abs=2 / 256)


def test_without_that_openvino_rounds_them():
    """Else exact_positions is needless."""
    wanted = 2 * np.cos(PLACES[:, None].astype(np.float32) * FREQUENCIES)
    assert np.abs(cosines(network(False, False), BF16) - wanted).max() > 1


def test_a_network_without_angles_stays_as_it_is():
    given = ops.parameter([-1], np.int32)
    model = ov.Model([ops.reshape(given, np.array([1, -1]), False)], [given], "plain")
    exact_positions.keep(model, given.output(0))
    assert [node.get_type_name() for node in model.get_ordered_ops()].count("Reshape") == 1
