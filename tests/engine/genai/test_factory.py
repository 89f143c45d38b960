"""Which pipeline serves a model."""

import pytest

from lean_ovms.config import Config
from lean_ovms.engine.genai import factory
from lean_ovms.errors import StartError


@pytest.fixture
def config(tmp_path):
    def make(vision=False, **options):
        for name in factory.VISION_FILES if vision else ():
            (tmp_path / name).touch()
        return Config(model_path=str(tmp_path), **options)

    return make


@pytest.mark.parametrize(
    ("device", "vision", "kind"),
    [
        ("CPU", False, "LM_CB"),
        ("CPU", True, "VLM_CB"),
        ("NPU", False, "LM"),
        ("NPU", True, "VLM"),
        ("HETERO:NPU,CPU", False, "LM"),
        ("GPU", False, "LM_CB"),
    ],
)
def test_auto_is_continuous_batching_but_on_an_npu(config, device, vision, kind):
    assert factory.choose(config(vision, target_device=device), ("CPU", "GPU", "NPU")) == kind


@pytest.mark.parametrize(
    ("asked", "vision"), [("LM", False), ("LM_CB", False), ("PAGED", False), ("VLM", True), ("VLM_CB", True)]
)
def test_a_type_that_fits_the_model_is_taken(config, asked, vision):
    assert factory.choose(config(vision, pipeline_type=asked), ("CPU",)) == asked


@pytest.mark.parametrize(
    ("asked", "vision"), [("LM", True), ("LM_CB", True), ("PAGED", True), ("VLM", False), ("VLM_CB", False)]
)
def test_a_type_that_does_not_fit_stops_the_start(config, asked, vision):
    with pytest.raises(StartError, match=f"--pipeline_type {asked}"):
        factory.choose(config(vision, pipeline_type=asked), ("CPU",))


def test_half_the_vision_files_are_no_vision(config, tmp_path):
    (tmp_path / factory.VISION_FILES[0]).touch()
    assert factory.choose(config(), ("CPU",)) == "LM_CB"


@pytest.mark.model
def test_auto_is_looked_up_in_the_machine():
    found, available = factory.on_device(Config(target_device="auto"))
    assert found.target_device == "CPU" or found.target_device in available


@pytest.mark.model
@pytest.mark.parametrize("options", [{"target_device": "XPU"}, {"draft_device": "XPU", "draft_model_path": "x"}])
def test_a_device_that_does_not_exist_stops_the_start(options):
    with pytest.raises(StartError, match="XPU: there is no such device"):
        factory.on_device(Config(**options))


@pytest.mark.model
@pytest.mark.parametrize("device", ["auto", "AUTO", "HETERO:CPU", "AUTO:CPU"])
def test_models_load_on_virtual_devices(device):
    pipeline = factory.load(Config(target_device=device, cache_size=1))
    assert pipeline.info.block_size == 32
    assert pipeline.info.kv_blocks > 100
