"""The operations that pool hidden states, computed in bf16: long texts, in front of a matrix."""

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from lean_ovms.features.pooling.child import pooling_graph

WIDTH, LENGTHS = 64, (1500, 1100)


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.skipif(
    "BF16" not in ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"), reason="this CPU has no bf16"
)
@pytest.mark.parametrize("mode", ["LAST", "MAX", "MEAN", "WEIGHTED_MEAN"])
def test_vectors_of_long_texts_in_bf16_are_those_in_f32(mode):
    dice = np.random.default_rng(0)
    inside, behind = (dice.normal(size=(WIDTH, WIDTH)).astype(np.float32) / 8 for _ in range(2))
    x, mask = ops.parameter([-1, -1, WIDTH], np.float32), ops.parameter([-1, -1], np.int64)
    mask.output(0).get_tensor().set_names({"attention_mask"})
    model = ov.Model([ops.result(ops.matmul(x, inside, False, True))], [x, mask])
    pooled = pooling_graph.pooled(model, model.outputs[0], [mode])
    pooling_graph.only(model, pooling_graph.projected(pooled, [pooling_graph.DenseLayer(behind, None, "Identity")]))
    states = (dice.normal(size=(len(LENGTHS), max(LENGTHS), WIDTH)) + 0.3).astype(np.float32)
    shown = (np.arange(max(LENGTHS)) < np.array(LENGTHS)[:, None]).astype(np.int64)
    exact, found = (
        ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": hint})([states, shown])[0].copy()
        for hint in ("f32", "bf16")
    )
    assert 0 < np.abs(found - exact).mean() < np.abs(exact).mean() / 100


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.parametrize("rounded", ["truncated", "raised"])
def test_buckets_of_distances_are_looked_up_and_the_same(rounded):
    """MPNet and T5 truncate logarithms of distances, DeBERTa raises them to the next integer: its bf16 computes
    others."""
    middle, most, x = 128, 512, ops.parameter([-1], np.int64)
    far = ops.maximum(ops.absolute(x), ops.constant(np.int64(middle - 1)))
    share = ops.log(ops.divide(ops.convert(far, "f32"), np.float32(middle)))
    steps = ops.multiply(ops.divide(share, np.float32(np.log((most - 1) / middle))), np.float32(middle - 1))
    steps = ops.convert(steps, "i64") if rounded == "truncated" else ops.ceiling(steps)
    bucket = ops.add(steps, ops.constant(np.array(middle, np.int64 if rounded == "truncated" else np.float32)))
    model, core = ov.Model([ops.result(ops.convert(bucket, "i64"))], [x]), ov.Core()
    distances = np.arange(-600, 600)
    before = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})([distances])[0].copy()
    pooling_graph.tabulate_buckets(model, core)
    assert "Log" not in {node.get_type_name() for node in model.get_ordered_ops()}
    after = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})([distances])[0]
    assert (after == before).all()
    assert len(set(after)) > 100
