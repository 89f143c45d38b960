"""The operations of adapters in a network of two layers that multiply the same x."""

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from lean_ovms.engine.loading.weights import rounded_to_bf16
from lean_ovms.engine.paged.network import ADAPTER_CHOICE as CHOICE
from lean_ovms.features.lora.child.adapter_layers import insert
from lean_ovms.features.lora.child.adapters import down_name, up_name

WIDTH, HEIGHTS, TOKENS, RANKS = 6, {"q": 4, "k": 3}, 5, 2
EXACT = {"INFERENCE_PRECISION_HINT": "f32"}

needs_bf16 = pytest.mark.skipif(
    "BF16" not in ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"), reason="this CPU has no bf16"
)


def rounded(values):
    """Returns values that bf16 can represent."""
    return (rounded_to_bf16(values).astype(np.uint32) << 16).view(np.float32)


def network(dice, shape):
    x = ops.parameter([-1, *shape, WIDTH], np.float32, "x")
    weights = {name: dice.normal(size=(height, WIDTH)).astype(np.float32) for name, height in HEIGHTS.items()}
    found = []
    for name, values in weights.items():
        node = ops.matmul(x, ops.constant(values), False, True)
        node.set_friendly_name(f"__module.layers.0.{name}/aten::linear/MatMul")
        found.append(ops.result(node))
    return ov.Model(found, [x]), weights


@pytest.mark.parametrize("shape", [[], [1]])
def test_layers_with_one_input_share_a_product_and_each_token_has_its_own_scales(shape):
    dice = np.random.default_rng(1)
    model, weights = network(dice, shape)
    (group,), fixed = insert(model, ov.Type.f32)
    assert group == {"layers.0.q": (WIDTH, 4), "layers.0.k": (WIDTH, 3)}
    assert not fixed
    assert [op.get_type_name() for op in model.get_ops()].count("MatMul") == 5
    x, choice = dice.normal(size=(TOKENS, WIDTH)), dice.normal(size=(TOKENS, RANKS))
    downs = {layer: dice.normal(size=(RANKS, WIDTH)) for layer in group}
    ups = {layer: dice.normal(size=(height, RANKS)) for layer, (_, height) in group.items()}
    values = {down_name(next(iter(group))): np.concatenate(list(downs.values())), CHOICE: choice}
    values |= {up_name(layer): up for layer, up in ups.items()}
    request = ov.Core().compile_model(model, "CPU", EXACT).create_infer_request()
    for name, value in values.items():
        request.set_tensor(name, ov.Tensor(np.ascontiguousarray(value, np.float32)))
    request.set_input_tensor(0, ov.Tensor(x.reshape(TOKENS, *shape, WIDTH).astype(np.float32)))
    request.infer()
    for place, (name, matrix) in enumerate(weights.items()):
        layer = f"layers.0.{name}"
        wanted = x @ matrix.T + (x @ downs[layer].T * choice) @ ups[layer].T
        assert request.get_output_tensor(place).data.reshape(TOKENS, -1) == pytest.approx(wanted, abs=1e-4)


@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_a_product_that_overflows_reaches_no_token_of_another_adapter(precision):
    """Rank 0 belongs to another adapter than the tokens, and its A is much larger than a file may have."""
    model, weights = network(np.random.default_rng(1), [])
    (group,), _ = insert(model, ov.Type.f32)
    request = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": precision}).create_infer_request()
    down = np.ones((2 * RANKS, WIDTH), np.float32)
    down[::RANKS] = 3.3e38
    choice = np.tile(np.array([0, 1], np.float32), (TOKENS, 1))
    values = {down_name(next(iter(group))): down, CHOICE: choice}
    values |= {up_name(f"layers.0.{name}"): np.ones((height, RANKS), np.float32) for name, height in HEIGHTS.items()}
    for name, value in values.items():
        request.set_tensor(name, ov.Tensor(value))
    request.set_input_tensor(0, ov.Tensor(np.full((TOKENS, WIDTH), 8, np.float32)))
    request.infer()
    for place, matrix in enumerate(weights.values()):
        wanted = 8 * matrix.sum(axis=1) + 8 * WIDTH
        assert request.get_output_tensor(place).data == pytest.approx(np.tile(wanted, (TOKENS, 1)), rel=2.0**-5)


@pytest.mark.slow
@needs_bf16
def test_an_adapter_is_as_near_to_f32_in_bf16_as_in_torch():
    """torch rounds the result of each product and of the scaling. Weights and x are rounded beforehand."""
    width, height, ranks, tokens = 512, 256, 16, 64
    dice = np.random.default_rng(2)
    x, weights, down, up = (
        rounded(dice.normal(size=size).astype(np.float32))
        for size in ((tokens, width), (height, width), (ranks, width), (height, ranks))
    )
    node = ops.matmul(given := ops.parameter([-1, width], np.float32, "x"), ops.constant(weights), False, True)
    node.set_friendly_name("__module.layers.0.q/aten::linear/MatMul")
    model = ov.Model([ops.result(node)], [given])
    insert(model, ov.Type.f32)
    request = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "bf16"}).create_infer_request()
    choice = np.full((tokens, ranks), 0.5, np.float32)
    for name, value in {down_name("layers.0.q"): down, up_name("layers.0.q"): up, CHOICE: choice}.items():
        request.set_tensor(name, ov.Tensor(value))
    request.set_input_tensor(0, ov.Tensor(x))
    request.infer()
    exact = x @ weights.T + (x @ down.T / 2) @ up.T
    torchs = rounded(rounded(x @ weights.T) + rounded(rounded(rounded(x @ down.T) / 2) @ up.T))
    error, allowed = (np.abs(found - exact).mean() for found in (request.get_output_tensor(0).data, torchs))
    assert 0 < error < 1.05 * allowed


def test_weights_are_inputs_of_the_type_that_is_asked_for():
    model, _ = network(np.random.default_rng(1), [1])
    insert(model, ov.Type.bf16)
    kinds = {max(port.get_names()): port.get_element_type() for port in model.inputs if port.get_names()}
    assert kinds.pop(CHOICE) == ov.Type.f32
    assert {kind for name, kind in kinds.items() if name.startswith("lora")} == {ov.Type.bf16}


def test_numbers_are_rounded_to_the_nearest_bf16():
    one = 2.0**-7  # the step of bf16 behind 1
    values = np.array([1, 1 + 0.4 * one, 1 + 0.6 * one, 1 + 0.5 * one, 1 + 1.5 * one, -3.0e38, 0], np.float32)
    found = (rounded_to_bf16(values).astype(np.uint32) << 16).view(np.float32)
    assert found[:5].tolist() == [1, 1, 1 + one, 1, 1 + 2 * one]
    assert found[5:] == pytest.approx(values[5:], rel=2.0**-8)
