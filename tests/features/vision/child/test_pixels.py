"""The encoder's networks get the same numbers as from transformers' image processors with Pillow."""

import json
import random
from importlib.util import find_spec

import numpy as np
import pytest

from lean_ovms.features.vision.child import llava, pieces
from lean_ovms.features.vision.child.families import NotReadable, load
from lean_ovms.features.vision.child.tiled import in_words
from lean_ovms.media import pixels
from lean_ovms.types import Image
from tests.makers.zoo_vision import PIXELS, PLAIN, TILED
from tests.makers.zoo_vision_torch import TIMED, VIDEOS, image_processor

pytestmark = pytest.mark.skipif(find_spec("transformers") is None, reason="needs transformers")
"""It is imported in the tests, and not by each process that collects them."""
OF_A_CALL = {"mistral3": {"patch_size": {"height": 16, "width": 16}}}
"""Arguments that a family's processor of texts and images passes to its image processor."""
SIZES = [(32, 32), (50, 60), (200, 31), (33, 300), (7, 90), (640, 480)]


class Networks:
    """VisionNetworks that keep their inputs."""

    def __init__(self):
        self.inputs = {}

    def run(self, part, inputs):
        self.inputs[part] = inputs
        values = next(iter(inputs.values()))
        if part == "vision_embeddings_pos":
            return [np.zeros((*values.shape, 64), np.float32)]
        of_image = (values.shape[2] * values.shape[3] // 64,) if values.ndim == 4 else ()  # patches
        return [np.zeros((len(values), *of_image, 64), np.float32)]


def assert_near(values, theirs):
    """Compares all numbers at once; pytest.approx compares them one after the other."""
    assert values.shape == theirs.shape
    assert np.abs(values - theirs).max() <= 1e-6


def image(size):
    height, width = size
    return Image(height, width, random.Random(str(size)).randbytes(3 * height * width))


def family(name, tmp_path, **changes):
    networks = Networks()
    (tmp_path / "config.json").write_text(json.dumps({**PLAIN[name], "model_type": name.partition("-")[0]}))
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({**PIXELS[name], **changes}))
    return load(tmp_path, networks), networks


@pytest.mark.parametrize("name", sorted(PIXELS))
def test_the_numbers_are_those_of_transformers(name, tmp_path):
    processor = image_processor(name)
    for size in SIZES:
        one, networks = family(name, tmp_path)
        one.encode(image(size))
        made, layout = networks.inputs["vision_embeddings"], one.layout(size)
        wanted = processor(images=[pixels.pixels(image(size))], return_tensors="np", **OF_A_CALL.get(name, {}))
        values = made.get("pixel_values", made.get("hidden_states"))
        theirs = wanted["pixel_values"]
        assert_near(values, theirs.reshape(-1, *theirs.shape[-values.ndim + 1 :]))
        if "image_position_ids" in made:
            assert made["image_position_ids"].tolist() == wanted["image_position_ids"].tolist()
            assert layout.tokens == wanted["num_soft_tokens_per_image"][0]
        if name.startswith("qwen"):
            assert len(made["hidden_states"]) == 4 * layout.tokens == 4 * layout.height * layout.width


QWEN = [name for name in VIDEOS if name.startswith("qwen")]


def film(count, size):
    height, width = size
    pixels = random.Random(str(size)).randbytes(3 * count * height * width)
    return Image(height, width, pixels, times=tuple(number / 2 for number in range(count)), seconds=count / 2)


def of_transformers(name, frames, size):
    """Returns the patches of a pair of frames. transformers' image processor repeats an image as two frames; the second
    of these is replaced here."""
    scaled = [pixels.resized(frame, size) for frame in frames]
    made = [image_processor(name)(images=[one], return_tensors="np", do_resize=False) for one in scaled]
    first, second = (one["pixel_values"].reshape(-1, 3, 2, 64) for one in made)
    return np.stack([first[:, :, 0], second[:, :, 1]], axis=2).reshape(len(first), -1)


@pytest.mark.parametrize(("count", "size"), [(1, (48, 64)), (2, (50, 61)), (5, (7, 90)), (9, (240, 320))])
@pytest.mark.parametrize("name", QWEN)
def test_the_numbers_of_a_video_are_those_of_transformers(name, size, count, tmp_path):
    one, networks = family(name, tmp_path)
    video = film(count, size)
    wanted = _fitted(name, max(count, 2), size)
    parts = one.split(video)
    assert len(parts) == (count + 1) // 2
    frames = [*pieces.frames(video), pieces.frames(video)[-1]]
    for number, part in enumerate(parts):
        assert (part.layout.height * 16, part.layout.width * 16) == wanted
        one.encode_frames(part.image, part.layout)
        theirs = of_transformers(name, frames[2 * number : 2 * number + 2], wanted)
        assert_near(networks.inputs["vision_embeddings"]["hidden_states"], theirs)


def _fitted(name, count, size):
    """Returns the height and width of frames according to transformers."""
    if name in TIMED:
        least, most = PIXELS["qwen2_vl"]["min_pixels"], PIXELS["qwen2_vl"]["max_pixels"]
        module = pytest.importorskip("transformers.models.qwen3_vl.video_processing_qwen3_vl")
        return module.smart_resize(count, *size, 2, 16, least, most)
    made = image_processor(name)(images=[pixels.pixels(image(size))], return_tensors="np")
    return tuple(8 * int(patches) for patches in made["image_grid_thw"][0][1:])


@pytest.mark.parametrize("name", QWEN)
def test_the_texts_and_times_of_a_video(name, tmp_path):
    one, _ = family(name, tmp_path)
    parts = one.split(film(5, (48, 64)))
    texts, times = [(part.before, part.after) for part in parts], [part.layout.time for part in parts]
    start, end = "<|vision_start|>", "<|vision_end|>"
    if name in TIMED:
        assert texts == [(f"<{time} seconds>{start}", end) for time in ("0.2", "1.2", "2.0")]
        assert times == [None] * 3
    else:
        assert texts == [(start, ""), ("", ""), ("", end)]
        assert times == ([None, 2, 4] if name == "qwen2_5_vl" else [None, 1, 2])
    assert len({part.image.digest for part in parts}) == 3


def test_the_processor_of_videos_may_have_a_file_of_its_own(tmp_path):
    (tmp_path / "video_preprocessor_config.json").write_text(json.dumps(PIXELS["qwen2_vl"] | {"max_pixels": 1024}))
    one, _ = family("qwen2_vl", tmp_path)
    [part] = one.split(film(2, (64, 64)))
    assert (part.layout.height, part.layout.width) == (2, 2)
    assert one.layout((64, 64)).tokens == 16


@pytest.mark.parametrize(
    ("name", "size"),
    [("smolvlm", (48, 64)), ("gemma4", (7, 90)), ("gemma4-moe", (240, 320)), ("gemma4_unified", (48, 64))],
)
def test_a_frame_is_an_image_with_the_limits_of_videos(name, size, tmp_path):
    wanted = PIXELS[name] | ({"size": {"longest_edge": 40}} if name == "smolvlm" else {"max_soft_tokens": 140})
    (tmp_path / "video_preprocessor_config.json").write_text(json.dumps(wanted))
    one, networks = family(name, tmp_path)
    video = film(3, size)
    for part, frame in zip(one.split(video), pieces.frames(video), strict=True):
        one.encode_frames(part.image, part.layout)
        [inputs] = networks.inputs.values()
        fields = {"max_soft_tokens": 140}
        if name == "smolvlm":
            fields = {"size": wanted["size"], "do_image_splitting": False}
        theirs = image_processor(name)(images=[frame], return_tensors="np", **fields)
        assert_near(inputs["pixel_values"].ravel(), theirs["pixel_values"].ravel())
        assert part.layout.tokens == (4 if name == "smolvlm" else theirs["num_soft_tokens_per_image"][0])


def test_the_texts_of_the_frames_of_a_video(tmp_path):
    video = Image(48, 64, bytes(2 * 3 * 48 * 64), times=(0.0, 71.6), seconds=3671.9)
    one, _ = family("gemma4", tmp_path)
    assert [(part.before, part.after) for part in one.split(video)] == [
        ("00:00 <|image>", "<image|>"),
        (" 01:11 <|image>", "<image|>"),
    ]
    one, _ = family("smolvlm", tmp_path)
    intro = "You are provided the following series of two frames from a 1:01:11 [H:MM:SS] video.\n"
    edge = "<fake_token_around_image>"
    assert [(part.before, part.after) for part in one.split(video)] == [
        (f"{intro}\nFrame from 00:00:", edge),
        ("\nFrame from 01:11:", f"{edge}\n\n"),
    ]


def test_numbers_in_words():
    """The words are those of num2words."""
    words = {0: "zero", 16: "sixteen", 40: "forty", 64: "sixty-four", 100: "one hundred", 1000: "one thousand",
             128: "one hundred and twenty-eight", 2005: "two thousand and five",
             4121: "four thousand, one hundred and twenty-one"}  # fmt: skip
    assert {number: in_words(number) for number in words} == words


TILE, WHOLE = "<fake_token_around_image><row_{}_col_{}>", "<fake_token_around_image><global-img>"


@pytest.mark.parametrize(
    ("size", "grid", "texts"),
    [
        ((32, 32), 64, [TILE.format(1, 1), TILE.format(1, 2), "\n" + TILE.format(2, 1), TILE.format(2, 2),
         "\n\n" + WHOLE]),
        ((33, 300), 64, [TILE.format(1, 1), TILE.format(1, 2), "\n\n" + WHOLE]),
        ((300, 33), 64, [TILE.format(1, 1), "\n" + TILE.format(2, 1), "\n\n" + WHOLE]),
        ((32, 32), 32, [WHOLE]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", TILED)
def test_the_texts_of_tiles(name, size, grid, texts, tmp_path):
    one, networks = family(name, tmp_path, size={"longest_edge": grid})
    one.encode(image(size))
    assert one.layout(size).runs == tuple((text, 4) for text in texts)
    assert len(networks.inputs["vision_embeddings"]["pixel_values"]) == len(texts)
    assert (one.before, one.after) == ("", "<fake_token_around_image>")


@pytest.mark.parametrize(("size", "rows", "columns"), [((32, 32), 2, 2), ((50, 60), 4, 4), ((200, 31), 4, 1)])
def test_a_text_is_behind_each_row_of_mistral(size, rows, columns, tmp_path):
    one, _ = family("mistral3", tmp_path)
    assert one.layout(size).runs == (("", columns), *[("[IMG_BREAK]", columns)] * (rows - 1))
    assert one.after == "[IMG_END]"


@pytest.mark.parametrize("changes", [{"image_processor_type": "OtherProcessor"}, {"size": {}}])
def test_other_processors_are_refused(changes, tmp_path):
    with pytest.raises(NotReadable):
        family("llava", tmp_path, **changes)


def test_the_fields_of_an_image_processor_may_be_in_the_file_of_all_processors(tmp_path):
    one, _ = family("qwen2_vl", tmp_path)
    (tmp_path / "preprocessor_config.json").unlink()
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": PIXELS["qwen2_vl"]}))
    assert load(tmp_path, Networks()).layout((50, 60)) == one.layout((50, 60))
    (tmp_path / "processor_config.json").write_text("[]")
    with pytest.raises(NotReadable, match="its image processor is unknown"):
        load(tmp_path, Networks())


def test_the_numbers_of_older_processors_are_sides():
    fields = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    older = pixels.SquareProcessor.read({**fields, "size": 30, "crop_size": 20})
    newer = {"size": {"shortest_edge": 30}, "crop_size": {"height": 20, "width": 20}}
    shown = pixels.pixels(image((50, 60)))
    assert older.fitted(shown).shape == (20, 20, 3)
    middle = pixels.center_cropped(np.full((3, 10, 3), 7, np.uint8), (6, 4))  # larger than the image
    assert (middle[:, 0, 0].tolist(), middle.shape) == ([0, 0, 7, 7, 7, 0], (6, 4, 3))
    assert np.array_equal(older.fitted(shown), pixels.SquareProcessor.read({**fields, **newer}).fitted(shown))


@pytest.mark.parametrize("changes", [{"text_config": {"model_type": "ministral3"}}, {"model_type": "newest"}])
def test_other_language_models_and_families_are_refused(changes, tmp_path):
    family("mistral3", tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**PLAIN["mistral3"], "model_type": "mistral3", **changes}))
    with pytest.raises(NotReadable, match=r"ministral3|newest"):
        load(tmp_path, Networks())


def test_a_square_around_a_long_image_is_limited(monkeypatch):
    monkeypatch.setattr(llava, "LONGEST", 50)
    made = llava.squared(np.full((3, 7, 3), 9, np.uint8), (1, 2, 3), pixels.BICUBIC)
    assert (made[:, :, 0] == np.array([[1], [1], [9], [9], [9], [1], [1]])).all()
    assert (made[0, 0] == (1, 2, 3)).all()
    assert (llava.squared(np.full((5, 2, 3), 9, np.uint8), (1, 2, 3), pixels.BICUBIC)[:, :, 0] == [1, 9, 9, 1, 1]).all()
    made = llava.squared(np.full((100, 1, 3), 9, np.uint8), (1, 2, 3), pixels.BICUBIC)
    assert (made[:, :, 0] == [1] * 24 + [9] + [1] * 25).all()
