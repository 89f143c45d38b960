"""The networks of models with vision in bf16: none of their angles is computed in it."""

import pytest

from lean_ovms.engine.paged.weights import open_weights
from lean_ovms.features.vision.child.networks import VisionNetworks
from tests.archives import extract
from tests.engine.paged.test_precision import BF16, compiled, needs_bf16, rounded_angles
from tests.features.vision.child import models

pytestmark = [pytest.mark.model, pytest.mark.slow, needs_bf16]


@pytest.mark.parametrize("name", models.NAMES)
def test_no_angle_of_a_model_with_vision_is_computed_in_bf16(name, tmp_path):
    extract(models.ZOO / f"{name}.tar.xz", tmp_path)
    text = tmp_path / "openvino_language_model.xml"
    assert rounded_angles(compiled(open_weights(text))) == []
    encoders = VisionNetworks(tmp_path, "CPU", BF16)
    for file in set(tmp_path.glob("openvino_vision*_model.xml")):
        assert rounded_angles(encoders.compiled(file)) == [], file.name
