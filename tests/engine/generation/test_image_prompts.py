"""Prompts with images are checked again where they are computed; the number of tokens of images. No engine."""

import gc
import json
import sys
from dataclasses import replace

import pytest

from lean_ovms.engine.generation import image_prompts
from lean_ovms.engine.generation.image_prompts import ImagePrompt
from lean_ovms.engine.protocol import Submit
from lean_ovms.errors import NO_VIDEO, BadRequest
from lean_ovms.features.genai_pipelines.child.image_tokens import LARGE, SMALL, GenAiImageTokens, Patches
from lean_ovms.types import Image
from tests.engine.rig import Rig
from tests.features.genai_pipelines.guard.fake_pipeline import FakePipeline, Script

PIXELS = bytes(3 * 4 * 5)


def submit(text, count=1, **fields):
    made = Submit(1, text, False, None, False, {}, "", [[4, 5]] * count, pixels=[PIXELS] * count)
    return replace(made, **fields)


def test_a_video_has_the_pixels_of_all_its_frames():
    record = submit("<ov_genai_image_0>", pixels=[2 * PIXELS], image_times=[[3.0, 0.0, 1.5]])
    [video] = image_prompts.parse(record, 100, 100).images
    assert (video.times, video.seconds, video.pixels) == ((0.0, 1.5), 3.0, 2 * PIXELS)
    assert video.content() != replace(video, times=(0.0, 1.0)).content()


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("<ov_genai_image_0>", 0),
        ("no tag", 1),
        ("<ov_genai_image_0><ov_genai_image_0>", 1),
        ("<ov_genai_image_1>", 1),
        ("<ov_genai_image_0><ov_genai_image_2>", 2),
        ("<ov_genai_image_0><ov_genai_video_0>", 1),
        ("<ov_genai_image_0> <ov_genai_", 1),
        ("<ov_genai_image_0> <ov_genai_image_99999999999>", 1),
        ("<ov_genai_image_-1>", 1),
        ("<ov_genai_image_0><ov_genai_audio_0>", 1),
    ],
)
def test_every_image_has_its_tag_and_every_tag_its_image(text, count):
    with pytest.raises(BadRequest, match="image and audio tags"):
        image_prompts.parse(submit(text, count), 100, 100)


@pytest.mark.parametrize(
    "fields",
    [
        {"images": [[4, 5], [4, 5]]},
        {"images": [[5, 5]]},
        {"images": [[0, 5]]},
        {"images": [[-4, -5]]},
        {"images": [[20]]},
        {"images": [[4, 5, 1]]},
        {"images": [[4.0, 5]]},
        {"pixels": [PIXELS[:-1]]},
        {"pixels": []},
        {"image_times": [[1.0, 0.0, 0.5]]},
        {"prompt": [1, 2]},
        {"prompt": ""},
        {"audio": [b"1"], "num_audio": 1},
    ],
)
def test_pixels_that_are_not_what_they_should_be_are_refused(fields):
    with pytest.raises(BadRequest):
        image_prompts.parse(submit("<ov_genai_image_0>", **fields), 100, 100)


def test_the_pixels_of_an_image_that_comes_again_are_sent_once():
    """A request may have the same large image many times."""
    fields = {"images": [[4, 5]] * 3, "image_digests": ["a", "a", "b"], "image_params": ["x", "y", "z"]}
    text = "".join(f"<ov_genai_image_{number}>" for number in range(3))
    found = image_prompts.parse(submit(text, **fields, pixels=[PIXELS, b"", PIXELS]), 100, 100).images
    assert [(image.pixels, image.param) for image in found] == [(PIXELS, "x"), (PIXELS, "y"), (PIXELS, "z")]
    assert found[1].pixels is found[0].pixels
    for digests in (["a", "c", "b"], ["", "", ""]):
        record = submit(text, **fields | {"image_digests": digests}, pixels=[PIXELS, b"", PIXELS])
        with pytest.raises(BadRequest):
            image_prompts.parse(record, 100, 100)


def test_a_text_that_cannot_fit_is_refused_before_it_is_tokenized():
    with pytest.raises(BadRequest, match=r"characters: 119 .* maximum context length is 100 tokens"):
        image_prompts.parse(submit("x" * 101 + "<ov_genai_image_0>"), 100, 100)


def test_a_pipeline_that_reads_text_only_refuses_images():
    rig = Rig()
    request = rig.submit("<|user|>hi")
    rig.transport.inbox[0][0].images, rig.transport.inbox[0][0].pixels = [[4, 5]], [PIXELS]
    rig.run()
    assert "only text input" in rig.answer(request).refused[1]


def test_a_pipeline_that_reads_images_only_refuses_videos():
    rig = Rig(FakePipeline(Script(vision=True)))
    request = rig.submit("<|user|>hi <ov_genai_image_0>")
    record = rig.transport.inbox[0][0]
    record.images, record.image_times, record.pixels = [[4, 5]], [[1.0, 0.0]], [PIXELS]
    rig.run()
    assert rig.answer(request).refused[1] == NO_VIDEO


def test_a_prompt_with_images_cannot_be_cut():
    rig = Rig(FakePipeline(Script(vision=True)))
    short, long = rig.submit("<|user|>hello", truncate=3), rig.submit("<|user|>hello", truncate=3000)
    rig.run()
    assert rig.answer(short).refused[3] is None
    assert rig.answer(short).refused[2] == "truncate_prompt_tokens"
    assert rig.answer(long).text() == "hello"


def test_the_scripted_pipeline_reads_images_aloud():
    rig = Rig(FakePipeline(Script(vision=True)))
    request = rig.submit("<|user|>see <ov_genai_image_0>!")
    rig.transport.inbox[0][0].images, rig.transport.inbox[0][0].pixels = [[4, 5]], [b"\xff\0\x80" * 20]
    rig.run()
    assert rig.answer(request).text() == "see [5x4 #ff0080]!"
    assert rig.answer(request).accepted.prompt_tokens == 16 + len("<|user|>") - 7 + len("see [5x4 #ff0080]!")


@pytest.mark.parametrize("cancelled", [False, True])
def test_pixels_are_freed_with_their_request(cancelled: bool) -> None:
    """A request and its sequences refer to each other, so they would stay until a garbage collection."""
    rig = Rig(FakePipeline(Script(vision=True)))
    pixels, alone = bytes(bytearray(PIXELS)), bytes(bytearray(PIXELS))
    request = rig.submit("<|user|>see <ov_genai_image_0>!")
    rig.transport.inbox[0][0].images, rig.transport.inbox[0][0].pixels = [[4, 5]], [pixels]
    if cancelled:
        rig.cancel(request)
    gc.disable()
    try:
        rig.run()
        rig.transport.inbox.clear()
        assert sys.getrefcount(pixels) == sys.getrefcount(alone)
    finally:
        gc.enable()


# --- how many tokens


def token_counter(tmp_path, rule, **settings):
    """Returns a token counter for images of rule(height, width) tokens. In texts, a character is a token."""
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    asked = []

    def measure(sizes):
        asked.extend(sizes)
        return [2 + rule(*size) for size in sizes]

    made = GenAiImageTokens(tmp_path, lambda text, special: list(text.encode()), measure, lambda handle: 0)
    return made, asked


def image_prompt(*sizes, text="ab"):
    images = tuple(Image(h, w, bytes([n]) * (3 * h * w)) for n, (h, w) in enumerate(sizes))
    return ImagePrompt(text + "".join(f"<ov_genai_image_{i}>" for i in range(len(images))) + "c", False, images)


def test_a_model_with_a_fixed_number(tmp_path):
    found, asked = token_counter(tmp_path, lambda h, w: 17)
    assert asked == SMALL
    assert found.tokens((1000, 1000)) == 17
    assert len(found.placeholder_ids(image_prompt((10, 10), (500, 20)))) == 3 + 34


QWEN = {"patch_size": 14, "merge_size": 2, "min_pixels": 56 * 56, "max_pixels": 28 * 28 * 1280}


SIZES = [
    ((56, 56), 4),
    ((28, 28), 4),
    ((224, 224), 64),
    ((448, 640), 368),
    ((1080, 1920), 1222),
    ((3000, 4000), 1230),
    ((10, 500), 15),
    ((57, 41), 6),
    ((2, 200), 20),
]


@pytest.mark.parametrize(("size", "tokens"), SIZES)
def test_qwens_rule_is_that_of_transformers(size, tokens):
    """The numbers were recorded from Qwen2VLImageProcessor's smart_resize (transformers 5.5.4)."""
    assert Patches(unit=28, least=QWEN["min_pixels"], most=QWEN["max_pixels"]).tokens(size) == tokens


def test_qwens_rule_rounds_halves_as_openvino_genai_does():
    assert Patches(unit=28, least=QWEN["min_pixels"], most=QWEN["max_pixels"]).tokens((70, 70)) == 9


def test_a_model_that_follows_qwens_rule_is_not_asked_again(tmp_path):
    rule = Patches(unit=28, least=QWEN["min_pixels"], most=QWEN["max_pixels"])
    found, asked = token_counter(tmp_path, lambda h, w: rule.tokens((h, w)) + 2, **QWEN)
    assert asked == SMALL
    assert found.tokens((1080, 1920)) == rule.tokens((1080, 1920)) + 2


@pytest.mark.parametrize("settings", [{}, QWEN, {"patch_size": None}, {"size": 3}])
def test_another_rule_is_learned_from_sizes(tmp_path, settings):
    def rule(height, width):
        return 10 + height // 50 * (width // 50)

    found, asked = token_counter(tmp_path, rule, **settings)
    assert asked == SMALL + LARGE
    assert found.tokens((64, 64)) == rule(64, 64)
    assert found.tokens((600, 600)) >= rule(600, 600), "an upper estimate"
    found.learn(image_prompt((600, 600), (600, 600)), 3 + 2 * rule(600, 600))
    assert found.tokens((600, 600)) == rule(600, 600)
    found.learn(image_prompt((60, 600), (61, 600)), 1000)
    assert (60, 600) not in found.known, "two sizes at once tell of neither"


def test_an_image_has_the_same_ids_wherever_it_comes(tmp_path):
    found, _ = token_counter(tmp_path, lambda h, w: 3)
    pixels = bytes(300)
    one = found.placeholder_ids(ImagePrompt("x<ov_genai_image_0>y", False, (Image(10, 10, pixels),)))
    two = found.placeholder_ids(ImagePrompt("x<ov_genai_image_0>y", False, (Image(10, 10, bytes(300)),)))
    other = found.placeholder_ids(ImagePrompt("x<ov_genai_image_0>y", False, (Image(10, 10, b"\1" * 300),)))
    assert one == two
    assert one[0] == ord("x")
    assert one[4] == ord("y")
    assert max(one[1:4]) < 0
    assert one != other
