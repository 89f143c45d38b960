"""The group size with which OpenVINO rounds the inputs of products, by a network's weights."""

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from lean_ovms.config import Config
from lean_ovms.engine.paged import model as compiling
from lean_ovms.engine.paged.ir_weights import IrWeights
from lean_ovms.engine.paged.model import GROUP_OPTION, PagedModel, choose_quantization_group, group_size_of

pytestmark = pytest.mark.model
WIDTH = 256


@pytest.fixture(autouse=True)
def small_networks(monkeypatch):
    monkeypatch.setattr(compiling, "LEAST_ELEMENTS", 1)


def matrix(rows, group, bits=8, zeros=False):
    """Returns integer weights [rows, 256], of which a number share each scale."""
    groups = WIDTH // group
    shape = [rows, WIDTH] if groups == 1 else [rows, groups, group]
    kind = {4: ov.Type.u4, 8: ov.Type.u8}[bits]
    node = ops.convert(ov.op.Constant(kind, ov.Shape(shape), [1] * (rows * WIDTH)), "f16")
    scales = [*shape[:-1], 1]
    if zeros:
        node = ops.subtract(node, ops.convert(np.ones(scales, np.uint8), "f16"))
    node = ops.multiply(node, np.ones(scales, np.float16))
    node = node if groups == 1 else ops.reshape(node, np.array([rows, WIDTH]), False)
    return ops.convert(node, "f32")


def network(*weights):
    x = ops.parameter([-1, WIDTH], np.float32)
    return ov.Model([ops.matmul(x, each, False, True) for each in weights], [x])


@pytest.mark.parametrize(
    ("weights", "group"),
    [
        ([(8, 256)], 128),
        ([(8, 128, 4, True), (8, 256)], 128),
        ([(8, 64, 4), (8, 128, 4)], 64),
        ([(8, 64, 8, True)], 64),
        ([(8, 32, 4)], 0),
        ([(8, 32, 4), (8, 256)], 0),
        ([(2, 32, 4), (98, 128, 4)], 128),
        ([(6, 32, 4), (94, 128, 4)], 0),
        ([(6, 64, 4), (94, 128, 4)], 64),
    ],
)
def test_the_largest_number_that_suits_nearly_all_weights(weights, group):
    assert group_size_of(network(*(matrix(*each) for each in weights))) == group


def test_weights_that_are_not_compressed_or_only_looked_up_do_not_count():
    floats = np.ones((8, WIDTH), np.float32)
    assert group_size_of(network(floats)) == 0
    assert group_size_of(network(matrix(8, 256), ops.convert(ops.constant(floats.astype(np.float16)), "f32"))) == 128
    ids = ops.parameter([-1], np.int64)
    assert group_size_of(ov.Model([ops.gather(matrix(8, 256), ids, np.int64(0))], [ids])) == 0


def test_groups_of_weights_that_are_not_transposed_are_of_rows():
    x = ops.parameter([-1, WIDTH], np.float32)
    numbers = ops.convert(np.ones((WIDTH // 64, 64, 8), np.uint8), "f32")
    weights = ops.reshape(ops.multiply(numbers, np.ones((WIDTH // 64, 1, 8), np.float32)), np.array([WIDTH, 8]), False)
    assert group_size_of(ov.Model([ops.matmul(x, weights, False, False)], [x])) == 64


@pytest.mark.parametrize(
    ("said", "options", "found"),
    [(None, {}, 128), ("64", {}, 64), (None, {GROUP_OPTION[1]: "0"}, 0), ("64", {GROUP_OPTION[1]: "32"}, 32)],
)
def test_the_number_is_the_networks_unless_its_file_or_an_option_says_another(said, options, found):
    model = network(matrix(8, 256))
    if said is not None:
        model.set_rt_info(said, [*GROUP_OPTION])
    choose_quantization_group(model)
    assert ov.Core().compile_model(model, "CPU", options).get_property(GROUP_OPTION[1]) == found


def test_a_network_that_openvinos_own_number_suits_says_none():
    choose_quantization_group(model := network(matrix(8, 32)))
    assert not model.has_rt_info([*GROUP_OPTION])


@pytest.mark.slow
def test_a_paged_network_is_compiled_with_it():
    model = PagedModel(IrWeights(Config().model_dir / "openvino_model.xml"), "CPU", {})
    assert model._compiled[0][0].get_property(GROUP_OPTION[1]) == 128


def test_a_small_network_stays_as_exact_as_it_is(monkeypatch):
    monkeypatch.setattr(compiling, "LEAST_ELEMENTS", 8 * WIDTH + 1)
    assert group_size_of(network(matrix(8, 256))) == 0
    assert group_size_of(network(matrix(8, 256), matrix(1, 256))) == 128
