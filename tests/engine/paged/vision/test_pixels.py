"""What the encoder's networks get, against transformers' image processors with Pillow: the same numbers."""

import json
import random

import numpy as np
import pytest

from lean_ovms.engine.paged.vision import pixels
from lean_ovms.engine.paged.vision.families import NotReadable, load
from lean_ovms.types import Image
from tools.zoo_vision import PIXELS, PLAIN

transformers = pytest.importorskip("transformers")
SIZES = [(32, 32), (50, 60), (200, 31), (33, 300), (7, 90), (640, 480)]


class Networks:
    """family.Networks that keep what they get."""

    def __init__(self):
        self.inputs = {}

    def run(self, part, inputs):
        self.inputs[part] = inputs
        values = next(iter(inputs.values()))
        if part == "vision_embeddings_pos":
            return [np.zeros((*values.shape, 64), np.float32)]
        count = len(values)
        return [np.zeros((count, 16, 64) if "pixel_values" in inputs else (count, 64), np.float32)]


def image(size):
    height, width = size
    return Image(height, width, random.Random(str(size)).randbytes(3 * height * width))


def family(name, tmp_path, **changes):
    networks = Networks()
    (tmp_path / "config.json").write_text(json.dumps({**PLAIN[name], "model_type": name}))
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({**PIXELS[name], **changes}))
    return load(tmp_path, networks), networks


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", sorted(PIXELS))
def test_the_numbers_are_those_of_transformers(name, size, tmp_path):
    one, networks = family(name, tmp_path)
    one.encode(image(size))
    made = networks.inputs["vision_embeddings"]
    fields = {key: value for key, value in PIXELS[name].items() if key != "image_processor_type"}
    processor = getattr(transformers, PIXELS[name]["image_processor_type"].removesuffix("Fast") + "Pil")(**fields)
    wanted = processor(images=[pixels.pixels(image(size))], return_tensors="np")
    [values] = made.values()
    theirs = wanted["pixel_values"]
    assert values == pytest.approx(theirs.reshape(-1, *theirs.shape[-values.ndim + 1 :]), abs=1e-6)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_the_tokens_of_an_image_are_as_many_as_its_grid(name, size, tmp_path):
    one, networks = family(name, tmp_path)
    layout = one.layout(size)
    one.encode(image(size))
    assert len(networks.inputs["vision_embeddings"]["hidden_states"]) == 4 * layout.tokens
    assert layout.tokens == layout.height * layout.width


def test_an_image_that_is_smaller_than_the_middle_gets_a_frame():
    middle = pixels.center_cropped(np.full((3, 10, 3), 7, np.uint8), (6, 4))
    assert middle[:, 0, 0].tolist() == [0, 0, 7, 7, 7, 0]
    assert middle.shape == (6, 4, 3)


@pytest.mark.parametrize("changes", [{"image_processor_type": "OtherProcessor"}, {"do_pad": True}, {"size": {}}])
def test_other_processors_are_refused(changes, tmp_path):
    with pytest.raises(NotReadable):
        family("llava", tmp_path, **changes)


def test_other_families_are_refused(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "newest"}')
    (tmp_path / "preprocessor_config.json").write_text("{}")
    with pytest.raises(NotReadable, match="newest"):
        load(tmp_path, Networks())
