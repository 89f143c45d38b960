"""Networks of embeddings, scores and classes in bf16 are as close to f32 as torch's, also at positions beyond 4,096
where these are computed. tests/makers/networks_bf16.py recorded the differences."""

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("gguf")

from lean_ovms.config import Config
from lean_ovms.features.pooling.child.model import OpenVinoPooler
from lean_ovms.features.pooling.child.pooler import Batch
from lean_ovms.repository.model_dir import detect_task
from lean_ovms.types import Image
from tests.archives import extract
from tests.engine.paged.test_precision import AS_NEAR, needs_bf16, rounded_angles
from tests.features.pooling.child.test_models import ZIP
from tests.makers import networks_bf16, zoo_gguf

pytestmark = [pytest.mark.model, pytest.mark.slow]
NAMES = [name for name in networks_bf16.NAMES if name.startswith(("pooling/", "gguf/"))]
MEAN = 1
"""GGUF's number of mean pooling."""


def computed(path: Path, ids: np.ndarray, hint: str) -> np.ndarray:
    """Returns the hidden state of each token, or the logits, without the server's further steps."""
    options = json.dumps({"INFERENCE_PRECISION_HINT": hint})
    pooler = OpenVinoPooler(Config(model_path=str(path), task=detect_task(path), plugin_config=options))
    per_token = pooler.pooling.kind == "embed"
    pooler.start(Batch(ids, np.ones_like(ids), np.zeros_like(ids), per_token), False)
    _, output = pooler.wait()
    assert isinstance(output, np.ndarray)
    requests = pooler._network._hidden_states() if per_token else pooler._network._pooled
    assert requests is not None
    assert hint == "f32" or rounded_angles(requests._free[0].get_compiled_model()) == []
    return output


def vectors(path: Path, part: str, hint: str) -> np.ndarray:
    """Returns the vectors of texts or images, from a network for both."""
    options = json.dumps({"INFERENCE_PRECISION_HINT": hint})
    pooler = OpenVinoPooler(Config(model_path=str(path), task=detect_task(path), plugin_config=options))
    images: tuple[Image, ...] = ()
    ids = networks_bf16.titles(pooler.pooling.window)
    if part == "image":
        images = tuple(Image(32, 32, pixels.tobytes()) for pixels in networks_bf16.pictures())
        ids = np.zeros((len(images), 1), np.int64)
    pooler.start(Batch(ids, np.ones_like(ids), np.zeros_like(ids), False, images), False)
    _, output = pooler.wait()
    assert isinstance(output, np.ndarray)
    return output


def test_every_network_was_compared_with_torchs_bf16() -> None:
    known = json.loads(networks_bf16.FILE.read_text())
    assert {*known} == {*networks_bf16.NAMES}, "see tests/makers/networks_bf16.py"


@needs_bf16
@pytest.mark.parametrize("name", networks_bf16.TOWERS)
def test_a_network_of_texts_and_images_is_as_near_to_f32_as_torchs_bf16(name: str, tmp_path: Path) -> None:
    model, _, part = name.partition("-")
    extract(ZIP, tmp_path, f"{model}/")
    exact, found = (vectors(tmp_path / model, part, hint) for hint in ("f32", "bf16"))
    networks_bf16.assert_near(f"towers/{name}", exact, found, AS_NEAR)


@needs_bf16
@pytest.mark.parametrize("name", NAMES)
def test_a_network_is_as_near_to_f32_as_torchs_bf16(name: str, tmp_path: Path) -> None:
    kind, _, model = name.partition("/")
    if kind == "gguf":
        architecture = zoo_gguf.recorded()[model]["architecture"]
        path = zoo_gguf.write(tmp_path / "x.gguf", model, **{f"{architecture}.pooling_type": MEAN})
    else:
        path = extract(ZIP, tmp_path, f"{model}/") / model
    ids = networks_bf16.texts(name)
    exact, found = (computed(path, ids, hint) for hint in ("f32", "bf16"))
    networks_bf16.assert_near(name, exact, found, AS_NEAR)
