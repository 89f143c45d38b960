"""The loop over the chunks of prompts, and the memory of its outputs."""

import numpy as np
import pytest

pytest.importorskip("openvino")

import openvino as ov
from openvino import opset13 as ops

from lean_ovms.engine.paged.network import CHUNK
from lean_ovms.features.hybrid_chunks.child.networks import compute_in_chunks
from lean_ovms.features.hybrid_chunks.child.prompt_chunks import first_size, in_branch, own_memory, states_result
from tests.engine.paged.test_zoo import unpacked
from tests.features.hybrid_chunks.child.test_delta_chunks import loaded

pytestmark = [pytest.mark.model, pytest.mark.slow]
WIDTH, WIDE = 16, 1024
ZERO = np.int64(0)


def doubling() -> ov.Model:
    """Makes a network that doubles the rows of prompts in chunks, and then multiplies them by a wide matrix of ones, so
    that the tensors behind the chunks are larger than the chunks.
    """
    rows = ops.parameter([1, CHUNK, WIDTH], np.float32)
    sequences, last, kept = (ops.parameter([size, 1], np.float32) for size in (-1, 1, -1))
    after = ops.add(last, ops.gather(sequences, np.array([0]), ZERO))
    results = [ops.constant(np.array([True])), ops.multiply(rows, np.float32(2)), after, ops.concat([kept, after], 0)]
    part = ov.Model(results, [rows, sequences, last, kept])
    prompts, states = ops.parameter([-1, WIDTH], np.float32), ops.parameter([-1, 1], np.float32)
    tokens, places = (ops.parameter([-1], np.int32) for _ in range(2))
    states.output(0).get_tensor().set_names({"layer_state_table.0"})
    chunks = ops.gather(prompts, ops.reshape(tokens, np.array([-1, CHUNK]), False), ZERO)
    outputs, new = in_branch(first_size(chunks), part, [chunks, states], sliced=1, states=1)
    own = ops.gather(ops.reshape(outputs, np.array([-1, WIDTH]), False), places, ZERO)
    wide = ops.tanh(ops.matmul(own, np.ones((WIDTH, WIDE), np.float32), False, False))
    table = states.output(0)
    given = [states_result(table, new), own_memory(table, outputs), ops.result(ops.reduce_mean(wide, np.array([1])))]
    return ov.Model(given, [prompts, states, tokens, places])


def test_a_prompt_that_is_longer_than_all_before_it_has_its_own_numbers():
    """Without a result of the network, OpenVINO's memory for the outputs was lost when a larger tensor needed it."""
    request = ov.Core().compile_model(doubling(), "CPU", {"INFERENCE_PRECISION_HINT": "f32"}).create_infer_request()
    dice = np.random.default_rng(3)
    for length in (40, 0, 50, 0, 50, 63, 64, 0, 65, 0, 100, 130, 0, 200, 500):
        prompt = dice.integers(-8, 9, (length + 1, WIDTH)).astype(np.float32) / 64
        tokens = np.zeros(-(-length // CHUNK) * CHUNK, np.int32)
        tokens[:length] = places = np.arange(length, dtype=np.int32)
        found = request.infer([prompt, np.zeros((1, 1), np.float32), tokens, places])[2]
        wanted = np.tanh(2 * prompt[:length].sum(1))
        assert found == pytest.approx(wanted, abs=1e-5), length


@pytest.mark.parametrize(
    ("name", "hint"), [("qwen3_5_text", "f32"), ("qwen3_next", "bf16"), ("granitemoehybrid", "bf16")]
)
def test_all_outputs_of_branches_are_results_of_the_network(name, hint, tmp_path):
    """Otherwise their values may be lost, as above."""
    edited = []

    def edit(network, precision):
        compute_in_chunks(network, precision)
        edited.append(network)

    loaded(unpacked(name, tmp_path), hint, edit)
    branches = [node for node in edited[0].get_ops() if node.get_type_name() in ("If", "Loop", "TensorIterator")]
    assert branches
    for output in (output for node in branches for output in node.outputs()):
        readers = [reader.get_node().get_type_name() for reader in output.get_target_inputs()]
        assert "Result" in readers or not readers
