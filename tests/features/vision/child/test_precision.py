"""The networks of models with vision in bf16: as near to f32 as torch's, and none of their angles is computed in it."""

import pytest

from lean_ovms.features.vision.child.networks import VisionNetworks
from tests.engine.paged.test_precision import BF16, assert_as_near, needs_bf16, rounded_angles
from tests.features.vision.child import models
from tests.makers import zoo_bf16

pytestmark = [pytest.mark.model, pytest.mark.slow, needs_bf16]


@pytest.mark.parametrize("name", models.NAMES)
def test_a_model_with_vision_is_as_near_to_f32_as_torchs_bf16(name, tmp_path):
    path = models.unpacked(name, tmp_path)
    assert_as_near(f"{zoo_bf16.VISION}{name}", lambda **more: models.load(path, 60, **more))
    encoders = VisionNetworks(tmp_path, "CPU", BF16)
    for file in set(tmp_path.glob("openvino_vision*_model.xml")):
        assert rounded_angles(encoders.compiled(file)) == [], file.name
