"""Output heads in fewer bits: only the head changes, by less than one quantization step, in files of all kinds."""

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

pytest.importorskip("gguf")

from lean_ovms.config import Config
from lean_ovms.engine.loading.weights import rounded_to_bf16
from lean_ovms.engine.paged.ir_weights import last_projection, open_weights
from lean_ovms.engine.worker.text_model import load_text_model
from lean_ovms.errors import StartError
from lean_ovms.features.head_precision.child.head import SmallHead, compress
from tests.engine.real import chat, load
from tests.engine.rig import Rig
from tests.makers import make_gguf

pytestmark = pytest.mark.model
WIDTH = 32
"""The number of elements that share a scale; a row of the demo model has 160."""
BITS = {"int4": 4, "int8": 8}
F32 = {"INFERENCE_PRECISION_HINT": "f32"}


@pytest.fixture(scope="module", params=["IR", "F16", "Q8_0"])
def file(request, tmp_path_factory):
    """Returns the demo model, whose head and embeddings are one matrix, as IR or GGUF file."""
    if request.param == "IR":
        return Config().model_dir / "openvino_model.xml"
    path = tmp_path_factory.mktemp("gguf") / f"{request.param}.gguf"
    return make_gguf.make(path, request.param)


def values(output):
    """Returns the values of an output that depends on no input."""
    compiled = ov.Core().compile_model(ov.Model([output], []), "CPU", F32)
    return next(iter(compiled({}).values()))


def parts(model):
    """Returns the matrix of a network's head, and that of its embeddings."""
    table = next(node for node in model.get_ordered_ops() if node.get_type_name() == "Gather")
    return values(last_projection(model)[0].input_value(1)), values(table.input_value(0))


@pytest.mark.parametrize("precision", BITS)
def test_the_head_changes_by_less_than_a_step_and_the_embeddings_not_at_all(file, precision):
    head, table = parts(open_weights(file).read(ov.Core()))
    small, same = parts(SmallHead(Config(head_precision=precision), open_weights(file)).read(ov.Core()))
    assert np.array_equal(table, same)
    groups, found = (each.reshape(len(each), -1, WIDTH) for each in (head, small))
    step = (groups.max(-1) - groups.min(-1)) / (2 ** BITS[precision] - 1)
    off = np.abs(groups - found).max(-1)
    assert bool(off.any()) is (precision == "int4" or file.stem == "F16")
    assert np.all(off <= step * 1.5)


@pytest.mark.parametrize("precision", BITS)
def test_a_head_that_has_no_more_bits_stays(precision):
    codes = ov.op.Constant(ov.Tensor(ov.Type.u4, ov.Shape([64, WIDTH])))
    model = network(ops.convert(codes, "f32"))
    compress(model, BITS[precision])
    assert (
        last_projection(model)[0].input_value(1).get_node().input_value(0).get_node().get_element_type() == ov.Type.u4
    )


def network(matrix):
    """Returns a network whose logits are a product with a matrix."""
    hidden = ops.parameter([-1, matrix.get_output_shape(0)[1]], np.float32)
    return ov.Model([ops.matmul(hidden, matrix, False, True)], [hidden])


@pytest.mark.parametrize("kind", [ov.Type.f32, ov.Type.f16, ov.Type.bf16])
def test_plain_numbers_are_read_of_any_count_of_rows(kind):
    weights = np.random.default_rng(0).normal(size=(65, WIDTH)).astype(np.float32)
    weights[3], weights[4] = 0, 5
    tensor = ov.Tensor(kind, ov.Shape(weights.shape))
    tensor.data[...] = rounded_to_bf16(weights).view(np.float16) if kind == ov.Type.bf16 else weights
    model = network(ops.convert(ov.op.Constant(tensor), "f32"))
    compress(model, 4)
    found = values(last_projection(model)[0].input_value(1))
    assert np.abs(found - weights).max() < 0.5
    assert not found[3].any()
    assert found[4] == pytest.approx(5, abs=0.02)


def test_a_head_of_another_form_is_refused():
    matrix = np.ones((64, WIDTH), np.float32)
    with pytest.raises(StartError, match="the output head is computed by Exp, which is not supported"):
        compress(network(ops.exp(matrix)), 4)
    with pytest.raises(StartError, match=r"multiplies by a matrix of an unsupported shape, \[64, 31\]"):
        compress(network(ops.constant(matrix[:, :31])), 4)


def test_a_model_with_a_small_head_answers():
    pipes = [load(60, compiled_twice=False, pipeline_type="PAGED", head_precision=one) for one in ("", "int8")]
    prompt = pipes[0].encode(chat("What is the capital of France?"), False)
    found = [Rig(pipeline=pipe).ask(prompt, max_tokens=8).tokens[0] for pipe in pipes]
    assert found[0] == found[1]


def test_other_pipelines_say_that_the_option_has_no_effect(caplog):
    load_text_model(Config(pipeline_type="LM_CB", head_precision="int4"))
    assert "--head_precision has no effect: it needs PAGED, but the pipeline is LM_CB" in caplog.text
