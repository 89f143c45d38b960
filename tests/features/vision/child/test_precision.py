"""The networks of models with vision in bf16 are as close to f32 as torch's, and no angles are computed in bf16."""

import json

import pytest

pytest.importorskip("gguf")

from lean_ovms.features.vision.child import families
from lean_ovms.features.vision.child.networks import VisionNetworks
from lean_ovms.types import Image
from tests.engine.paged.test_precision import AS_NEAR, BF16, assert_as_near, needs_bf16, rounded_angles
from tests.features.vision.child import models
from tests.makers import networks_bf16, zoo_bf16

pytestmark = [pytest.mark.model, pytest.mark.slow, needs_bf16]


@pytest.mark.parametrize(
    "name", [name.removeprefix(zoo_bf16.VISION) for name in zoo_bf16.NAMES if name.startswith(zoo_bf16.VISION)]
)
def test_a_model_with_vision_is_as_near_to_f32_as_torchs_bf16(name, tmp_path):
    path = models.unpacked(name, tmp_path)
    assert_as_near(f"{zoo_bf16.VISION}{name}", lambda **more: models.load(path, 60, compiled_twice=False, **more))
    encoders = VisionNetworks(tmp_path, "CPU", BF16)
    for file in set(tmp_path.glob("openvino_vision*_model.xml")):
        part = file.name.removeprefix("openvino_").removesuffix("_model.xml")
        assert rounded_angles(encoders.compiled(part)) == [], part


@pytest.mark.parametrize("name", networks_bf16.VISION)
def test_what_an_image_becomes_is_as_near_to_f32_as_torchs_bf16(name, tmp_path):
    """Images have more than 2,000 patches, if a model reads images of any size."""
    models.unpacked(name, tmp_path)
    pixels, processor = networks_bf16.image(name)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(processor))
    found = []
    for hint in ("f32", "bf16"):
        networks = VisionNetworks(tmp_path, "CPU", {**models.F32, "INFERENCE_PRECISION_HINT": hint})
        found.append(families.load(tmp_path, networks).encode(Image(*pixels.shape[:2], pixels.tobytes())))
    networks_bf16.assert_near(f"vision/{name}", *found, AS_NEAR)
