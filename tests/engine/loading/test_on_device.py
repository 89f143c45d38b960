"""Devices, and loading on them."""

import pytest

from lean_ovms.config import Config
from lean_ovms.engine.loading import devices
from lean_ovms.engine.worker.text_model import load_text_model
from lean_ovms.errors import StartError


@pytest.mark.model
def test_auto_is_looked_up_in_the_machine():
    found, available = devices.on_device(Config(target_device="auto"))
    assert found.target_device == "CPU" or found.target_device in available


@pytest.mark.model
@pytest.mark.parametrize("options", [{"target_device": "XPU"}, {"draft_device": "XPU", "draft_model_path": "x"}])
def test_a_device_that_does_not_exist_stops_the_start(options):
    with pytest.raises(StartError, match="XPU: this machine has no such device"):
        devices.on_device(Config(**options))


@pytest.mark.model
@pytest.mark.parametrize("device", ["auto", "HETERO:CPU"])
def test_models_load_on_virtual_devices(device):
    pipeline = load_text_model(Config(target_device=device, cache_size=1))
    assert pipeline.info.block_size == 32
    assert pipeline.info.kv_blocks > 100
