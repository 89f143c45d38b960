"""Heads for multi-token prediction in bf16: none of their angles is computed in it."""

import pytest

from lean_ovms.features.drafting.child.heads import HeadWeights
from tests.archives import extract
from tests.engine.paged.test_precision import compiled, needs_bf16, rounded_angles
from tests.features.vision.child import models

HEADS = models.ZOO / "heads"
pytestmark = [pytest.mark.model, pytest.mark.slow, needs_bf16]


@pytest.mark.parametrize("name", sorted(path.name.removesuffix(".tar.xz") for path in HEADS.glob("*.tar.xz")))
def test_no_angle_of_a_head_is_computed_in_bf16(name, tmp_path):
    extract(models.ZOO / f"{name}.tar.xz", tmp_path)
    extract(HEADS / f"{name}.tar.xz", tmp_path)
    head, text = tmp_path / "openvino_mtp_model.xml", tmp_path / "openvino_language_model.xml"
    assert rounded_angles(compiled(HeadWeights(head, text))) == []
