"""Precisions of keys and values: the CPU can load each pair, or an error names the options."""

from itertools import product
from pathlib import Path

import openvino as ov
import pytest

from lean_ovms.engine.loading.settings import BOTH, GROUPS, HINT, KEYS, VALUES, cache_properties
from lean_ovms.engine.paged.ir_weights import open_weights
from lean_ovms.engine.paged.model import PagedModel
from lean_ovms.errors import StartError

LLAMA = Path(__file__).parents[2] / "data" / "llama_sp"
KINDS = ("", *sum(GROUPS, ()))


def asked(*values):
    return {name: value for name, value in zip((BOTH, KEYS, VALUES, HINT), values, strict=True) if value}


@pytest.mark.parametrize(
    ("kinds", "found"),
    [
        (("", "", ""), {}),
        (("u8", "", ""), {}),
        (("", "u4", ""), {KEYS: "u4", VALUES: "u8"}),
        (("", "", "u4"), {KEYS: "u8", VALUES: "u4"}),
        (("", "f16", ""), {KEYS: "f16", VALUES: "f16"}),
        (("", "", "bf16"), {KEYS: "bf16", VALUES: "bf16"}),
        (("", "", "F32"), {KEYS: "f32", VALUES: "f32", HINT: "f32"}),
        (("f16", "bf16", ""), {}),
        (("u4", "u8", "u8"), {}),
        (("f32", "", ""), {HINT: "f32"}),
        (("u8", "f16", "f16"), {}),
    ],
)
def test_what_is_not_named_goes_with_what_is(kinds, found):
    assert cache_properties(asked(*kinds, "")) == found


@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        (
            ("", "f16", "u8", ""),
            "--key_cache_precision f16, --value_cache_precision u8: .* supported combinations are u8 or u4",
        ),
        (("u8", "f16", "", ""), "--kv_cache_precision u8, --key_cache_precision f16"),
        (("", "f32", "f16", ""), "keys in f32 and values in f16"),
        (
            ("f32", "", "", "bf16"),
            "--kv_cache_precision f32 is not supported if INFERENCE_PRECISION_HINT of --plugin_config is bf16",
        ),
        (("", "bf16", "", "f32"), "--key_cache_precision bf16 is not .* is f32"),
        (("", "u3", "", ""), "--key_cache_precision must be one of: u8, u4, f16, bf16, f32, not u3"),
    ],
)
def test_a_cache_that_there_is_not_names_its_options(kinds, message):
    with pytest.raises(StartError, match=message):
        cache_properties(asked(*kinds))


@pytest.mark.model
def test_every_cache_that_is_not_refused_loads():
    capable = "BF16" in ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    tried, refused = set(), 0
    for kinds in product(KINDS, KINDS, KINDS, ("", "f32", "bf16")):
        properties = asked(*kinds)
        try:
            properties |= cache_properties(properties)
        except StartError:
            refused += 1
            continue
        pair = (properties.get(KEYS) or properties.get(BOTH), properties.get(VALUES) or properties.get(BOTH))
        case = (*pair, properties.get(HINT))
        if case in tried or ("bf16" in case and not capable):
            continue
        tried.add(case)
        PagedModel(open_weights(LLAMA / "openvino_model.xml"), "CPU", properties).allocate(2, 0)
    assert refused > 0 < len(tried)
