"""Tiny random models of two families: the images are those of openvino_genai's own pipelines."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai
import pytest

from lean_ovms.config import Config
from lean_ovms.errors import BadRequest
from lean_ovms.features.images.child.pipeline import GenAiImagePipeline
from lean_ovms.features.images.params import ImageInfo, ImageParams
from lean_ovms.types import Image
from tests.features.images.fakes import image_adapter, unpacked_image_model

EXACT = {"INFERENCE_PRECISION_HINT": "f32"}
PROMPT, WIDTH, HEIGHT, STEPS, SEED = "a red cat", 48, 32, 4, 7

STABLE, FLUX = "stable_diffusion_tiny", "flux_tiny"
MORE: dict[str, dict[str, Any]] = {STABLE: {"negative_prompt": "a dog"}, FLUX: {"prompt_2": "a dog"}}
"""Parameters that change an image of each family."""
KINDS = genai.Text2ImagePipeline, genai.Image2ImagePipeline, genai.InpaintingPipeline
"""The pipelines for no image, for one, and for one with its mask."""

pytestmark = pytest.mark.model
of_stable_diffusion = pytest.mark.parametrize("folder", [STABLE], indirect=True)
of_flux = pytest.mark.parametrize("folder", [FLUX], indirect=True)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: unpacked_image_model(tmp_path_factory.mktemp("image_model"), name) for name in (STABLE, FLUX)}


@pytest.fixture(scope="module", autouse=True)
def properties(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Has OpenVINO keep what it compiles for these tests, which load the same networks a dozen times.

    A kept network loads in less than half of the time.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(EXACT, "CACHE_DIR", str(tmp_path_factory.mktemp("compiled")))
        yield


@pytest.fixture(params=[STABLE, FLUX])
def folder(request: pytest.FixtureRequest, folders: dict[str, Path]) -> Path:
    return folders[request.param]


@pytest.fixture(scope="module")
def pipelines() -> dict[Path, GenAiImagePipeline]:
    """Returns the loaded pipelines, each of which is loaded once, in whatever order the tests run."""
    return {}


@pytest.fixture
def pipeline(folder: Path, pipelines: dict[Path, GenAiImagePipeline]) -> GenAiImagePipeline:
    if folder not in pipelines:
        pipelines[folder] = loaded(folder)
    return pipelines[folder]


@pytest.fixture(scope="module")
def directs() -> dict[tuple[Path, int], Any]:
    """Returns openvino_genai's own pipelines, by the images that they get."""
    return {}


@pytest.fixture
def direct(folder: Path, directs: dict[tuple[Path, int], Any]) -> Callable[[Sequence[Image]], Any]:
    """Returns openvino_genai's pipeline for such images, without any of our code."""

    def chosen(images: Sequence[Image]) -> Any:
        key = folder, len(images)
        if key not in directs:
            directs[key] = KINDS[len(images)](folder, "CPU", **EXACT)
        return directs[key]

    return chosen


def loaded(folder: Path, **options: Any) -> GenAiImagePipeline:
    config = Config(model_path=str(folder), task="image_generation", plugin_config=json.dumps(EXACT), **options)
    return GenAiImagePipeline(config)


def params(**changes: Any) -> ImageParams:
    return ImageParams(**{"width": WIDTH, "height": HEIGHT, "steps": STEPS, "seed": SEED, **changes})


def source(height: int = HEIGHT, width: int = WIDTH, seed: int = 0) -> Image:
    """Returns an image of noise."""
    return Image(height, width, np.random.default_rng(seed).bytes(3 * height * width))


def tensor(image: Image) -> ov.Tensor:
    return ov.Tensor(np.frombuffer(image.pixels, np.uint8).reshape(1, image.height, image.width, 3))


def mask() -> Image:
    """Returns a mask whose right half is white."""
    pixels = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    pixels[:, WIDTH // 2 :] = 255
    return Image(HEIGHT, WIDTH, pixels.tobytes())


def finished(work: Generator[bytes | None, None, bytes]) -> tuple[int, bytes]:
    """Returns the number of steps, and the pixels."""
    steps, pixels = watched(work)
    return len(steps), pixels


def watched(work: Generator[bytes | None, None, bytes]) -> tuple[list[bytes | None], bytes]:
    """Returns the pixels of the unfinished image after each step that shows it, and those of the final image."""
    steps: list[bytes | None] = []
    while True:
        try:
            steps.append(next(work))
        except StopIteration as done:
            return steps, done.value


def made(pipeline: GenAiImagePipeline, prompt: str = PROMPT, images: Sequence[Image] = (), **changes: Any) -> bytes:
    return finished(pipeline.generate(prompt, params(**changes), images))[1]


def test_the_images_are_those_of_the_pipeline_called_directly(
    folder: Path, pipeline: GenAiImagePipeline, direct: Callable[[Sequence[Image]], Any]
) -> None:
    for more in ({}, {**MORE[folder.name], "guidance_scale": 3.0}):
        found = (
            direct([])
            .generate(PROMPT, width=WIDTH, height=HEIGHT, num_inference_steps=STEPS, rng_seed=SEED, **more)
            .data
        )
        assert found.shape == (1, HEIGHT, WIDTH, 3)
        steps, pixels = finished(pipeline.generate(PROMPT, params(more=more)))
        assert 0 < steps <= STEPS  # callbacks that come late are not called
        assert pixels == found.tobytes()


def test_edits_are_those_of_the_pipelines_called_directly(
    folder: Path, pipeline: GenAiImagePipeline, direct: Callable[[Sequence[Image]], Any]
) -> None:
    for images in ([source()], [source(20, 30)], [source(), mask()]):
        for width, more in ((WIDTH, {}), (2 * WIDTH, {"strength": 0.5, **MORE[folder.name]}))[len(images) > 1 :]:
            found = (
                direct(images)
                .generate(
                    PROMPT,
                    *map(tensor, images),
                    width=width,
                    height=HEIGHT,
                    num_inference_steps=STEPS,
                    rng_seed=SEED,
                    **more,
                )
                .data
            )
            assert found.shape == (1, HEIGHT, width, 3)
            assert made(pipeline, images=images, width=width, more=more) == found.tobytes()
    made(pipeline)


def test_a_model_without_an_encoder_of_images_makes_images_of_texts(tmp_path: Path) -> None:
    folder = unpacked_image_model(tmp_path)
    shutil.rmtree(folder / "vae_encoder")
    pipeline = loaded(folder)
    assert ImageInfo(**pipeline.info.of_task) == ImageInfo(width=16, height=16, steps=50)
    made(pipeline)


@pytest.mark.parametrize(("folder", "images"), [(FLUX, []), (STABLE, [source(), mask()])], indirect=["folder"])
def test_unfinished_images_are_those_of_the_pipeline(
    pipeline: GenAiImagePipeline, direct: Callable[[Sequence[Image]], Any], images: list[Image]
) -> None:
    wanted: list[bytes] = []

    def callback(step: int, _: int, latent: ov.Tensor) -> bool:
        if step == 11:
            wanted.append(direct(images).decode(latent).data.tobytes())
        return False

    more = {"strength": 1.0} if images else {}
    size = {"width": WIDTH, "height": HEIGHT, "num_inference_steps": 24, "rng_seed": SEED}
    for _ in range(50):  # callbacks that come late are not called
        direct(images).generate(PROMPT, *map(tensor, images), **size, callback=callback, **more)
        steps, pixels = watched(pipeline.generate(PROMPT, params(steps=24, partial_images=1, more=more), images))
        assert pixels == made(pipeline, images=images, steps=24, more=more)
        if wanted and len(steps) > 11:
            break
    assert steps[11] == wanted[0] != pixels
    assert {found is None for place, found in enumerate(steps) if place != 11} == {True}


@of_stable_diffusion
def test_an_adapter_is_in_images_and_edits(folder: Path, pipeline: GenAiImagePipeline, tmp_path: Path) -> None:
    file = image_adapter(tmp_path / "a.safetensors")
    adapted = loaded(folder, lora_modules=f"a={file},0.5")
    chosen = genai.AdapterConfig(genai.Adapter(str(file)), 0.5)
    for kind, images in zip(KINDS, ([], [source()], [source(), mask()]), strict=True):
        direct = kind(folder, "CPU", adapters=chosen, **EXACT)
        size = {"width": WIDTH, "height": HEIGHT, "num_inference_steps": STEPS, "rng_seed": SEED}
        wanted = np.array(direct.generate(PROMPT, *map(tensor, images), **size).data, int).ravel()
        found = np.frombuffer(made(adapted, images=images), np.uint8)
        assert np.abs(found - wanted).max() <= 1
        assert made(pipeline, images=images) != found.tobytes()


def test_an_image_that_is_given_up_changes_none_after_it(folder: Path, pipeline: GenAiImagePipeline) -> None:
    size, steps = {STABLE: (16, 50), FLUX: (256, 28)}[folder.name]
    assert ImageInfo(**pipeline.info.of_task) == ImageInfo(width=size, height=size, steps=steps, edits=True, masks=True)
    wanted = made(pipeline)
    for steps in (0, 1):
        work = pipeline.generate("blue", params(steps=STEPS))
        for _ in zip(range(steps), work, strict=False):
            pass
        work.close()
        assert made(pipeline) == wanted


@pytest.mark.parametrize(("folder", "changes", "param", "text"), [
    (STABLE, {"more": {"prompt_2": "x"}}, "prompt_2", "Prompt 2 is not used by Stable Diffusion"),
    (STABLE, {"more": {"negative_prompt": "x", "guidance_scale": 1.0}}, "negative_prompt", "ignores negative prompt"),
    (FLUX, {"width": 33}, "size", "divisible by"),
    (FLUX, {"width": 34}, "size", "this model does not support the width 34 and the height 32; try multiples of 64"),
    (FLUX, {"more": {"negative_prompt": "x"}}, "negative_prompt", "Negative prompt is not used by FluxPipeline"),
    (FLUX, {"more": {"negative_prompt_2": "x", "prompt_2": "x"}}, "negative_prompt_2", "is not used by FluxPipeline"),
], indirect=["folder"])  # fmt: skip
def test_what_the_model_cannot_do_is_a_bad_request_that_names_the_field(
    pipeline: GenAiImagePipeline, changes: dict[str, Any], param: str, text: str
) -> None:
    for images in ([], [source(), mask()]):
        with pytest.raises(BadRequest, match=text) as caught:
            made(pipeline, images=images, **changes)
        assert "/" not in str(caught.value)
        assert caught.value.param == param
        made(pipeline, images=images)


@of_flux
def test_prompts_of_other_lengths_are_those_of_the_pipeline_called_directly(
    folder: Path, pipeline: GenAiImagePipeline
) -> None:
    for length in (64, 512):
        direct = genai.Text2ImagePipeline(folder, "CPU", **EXACT)
        size = {"width": WIDTH, "height": HEIGHT, "num_inference_steps": STEPS, "rng_seed": SEED}
        wanted = direct.generate(PROMPT, **size, max_sequence_length=length).data.tobytes()
        assert made(pipeline, more={"max_sequence_length": length}) == wanted
    made(pipeline, images=[source()])


@of_flux
def test_the_model_is_loaded_again_for_another_shape_of_its_t5_encoder_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = loaded(folder)
    loads: list[bool] = []
    load = pipeline._load

    def counted() -> dict[int, Any]:
        loads.append(not pipeline._pipelines)  # the memory of the previous model must be free
        if len(loads) == 1:
            raise RuntimeError("no memory")
        return load() if len(loads) == 2 else dict.fromkeys(range(3))  # the third and fourth are only counted

    monkeypatch.setattr(pipeline, "_load", counted)
    made(pipeline, more={"guidance_scale": 7.0})
    made(pipeline, more={"guidance_scale": 0.0})
    assert loads == []
    with pytest.raises(RuntimeError):
        made(pipeline, more={"max_sequence_length": 64})
    made(pipeline)
    assert loads == [True, True]
    monkeypatch.setattr(
        pipeline, "_index", pipeline._index + "StableDiffusion3Pipeline"
    )  # prompts and negative prompts
    for guidance in (7.0, 3.0, 1.0, 0.0):
        pipeline._pipeline(0, params(more={"guidance_scale": guidance}))
    assert loads == [True] * 4


@of_stable_diffusion
def test_a_family_whose_pipelines_share_no_networks_makes_images_of_texts(
    folder: Path, pipeline: GenAiImagePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    text_to_image = genai.Text2ImagePipeline

    def load(source: Any, *device: str, **properties: Any) -> Any:
        if not device:
            raise RuntimeError("Cannot convert specified Image2ImagePipeline to Text2ImagePipeline")
        return text_to_image(source, *device, **properties)

    def unsupported(*_: Any, **__: Any) -> Any:
        raise RuntimeError("Unsupported inpainting pipeline")

    monkeypatch.setattr(genai, "Text2ImagePipeline", load)
    monkeypatch.setattr(genai, "InpaintingPipeline", unsupported)
    texts = loaded(folder)
    assert ImageInfo(**texts.info.of_task) == ImageInfo(width=16, height=16, steps=50)
    assert made(texts) == made(pipeline)


@of_stable_diffusion
def test_a_model_for_inpainting_takes_an_image_and_its_mask(
    folder: Path, pipeline: GenAiImagePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*_: Any, **__: Any) -> Any:
        raise RuntimeError("Cannot create 'Image2ImagePipeline' from InpaintingPipeline with inpainting model")

    monkeypatch.setattr(genai, "Image2ImagePipeline", load)
    masked = loaded(folder)
    with pytest.raises(BadRequest, match=r"^After adjusting the num_inference_steps by strength parameter: 0.1") as no:
        made(pipeline, images=[source()], more={"strength": 0.1})
    assert no.value.param == "strength"
    assert ImageInfo(**masked.info.of_task) == ImageInfo(width=16, height=16, steps=50, texts=False, masks=True)
    assert made(masked, images=[source(), mask()]) == made(pipeline, images=[source(), mask()])
