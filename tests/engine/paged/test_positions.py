"""Networks that count the positions of their tokens, such as qwen3_5_text and granitemoehybrid-rope in test_zoo.py."""

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from lean_ovms.engine.paged import ir_weights

pytestmark = pytest.mark.model


def angles(rows, *, given):
    """Returns a network with the cosines of counted positions.

    `rows` is the number of equal rows of positions, or 0 for [batch, tokens] without an axis for them.
    """
    ids = ops.parameter([-1, -1], np.int64, name="input_ids")
    ids.output(0).get_tensor().set_names({"input_ids"})
    zero = ops.constant(np.int64(0))
    tokens = ops.gather(ops.shape_of(ids), ops.constant(np.int64(1)), zero)
    counted = ops.add(ops.range(zero, tokens, ops.constant(np.int64(1)), "i64"), ops.constant(np.int64(1000)))
    row = ops.unsqueeze(counted, zero)
    if rows:
        counted = ops.range(zero, tokens, ops.constant(np.int64(1)), "i64")
        row = ops.reshape(counted, ops.constant(np.array([1, 1, -1])), special_zero=False)
        batch = ops.gather(ops.shape_of(ids), ops.constant(np.array([0])), zero)
        row = ops.broadcast(row, ops.concat([ops.constant(np.array([rows])), batch, ops.constant(np.array([1]))], 0))
    parameters = [ids]
    if given:
        parameters.append(ops.parameter([-1, -1], np.int64, name="position_ids"))
        parameters[1].output(0).get_tensor().set_names({"position_ids"})
    return ov.Model([ops.cos(ops.convert(row, "f32"))], parameters)


@pytest.mark.parametrize(("rows", "given"), [(0, False), (0, True), (3, True)])
def test_counted_positions_become_the_input(rows, given):
    model = angles(rows, given=given)
    ir_weights.connect_positions(model)
    numbers = np.array([[7, 5], [0, 3]])
    request = ov.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"}).create_infer_request()
    names = {name for port in model.inputs for name in port.get_names()}
    assert names == {"input_ids", "position_ids"}
    request.set_tensor("input_ids", ov.Tensor(numbers))
    request.set_tensor("position_ids", ov.Tensor(numbers))
    request.infer()
    found = request.get_output_tensor(0).data
    assert found.shape == ((3, 2, 2) if rows else (2, 2))
    np.testing.assert_allclose(found, np.broadcast_to(np.cos(numbers), found.shape), atol=1e-5)


@pytest.mark.parametrize("counts", [False, True])
def test_a_network_that_goes_on_counting_is_recognized(counts):
    longest = ops.parameter([], np.int32, name="max_context_len")
    longest.output(0).get_tensor().set_names({"max_context_len"})
    ids = ops.parameter([-1], np.int32, name="input_ids")
    output = ops.subtract(ids, longest) if counts else ops.abs(ids)
    assert ir_weights.counts_positions(ov.Model([output], [longest, ids])) is counts
