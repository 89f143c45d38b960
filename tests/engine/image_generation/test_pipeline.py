"""A tiny random Stable Diffusion: the images of openvino_genai's own pipeline, and those of diffusers in torch."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai
import pytest

from lean_ovms.config import Config
from lean_ovms.engine.image_generation.pipeline import GenAiImagePipeline
from lean_ovms.errors import BadRequest, StartError
from lean_ovms.image_types import ImageInfo, ImageParams
from tests.image_fakes import unpacked_image_model

EXACT = '{"INFERENCE_PRECISION_HINT": "f32"}'
PROMPT, WIDTH, HEIGHT, STEPS, SEED = "a red cat", 48, 32, 4, 7

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked_image_model(tmp_path_factory.mktemp("image_model"))


@pytest.fixture(scope="module")
def pipeline(folder: Path) -> GenAiImagePipeline:
    return GenAiImagePipeline(Config(model_path=str(folder), task="image_generation", plugin_config=EXACT))


def params(**changes: Any) -> ImageParams:
    return ImageParams(**{"width": WIDTH, "height": HEIGHT, "steps": STEPS, "seed": SEED, **changes})


def finished(work: Generator[None, None, bytes]) -> tuple[int, bytes]:
    """The number of steps, and the pixels."""
    steps = 0
    while True:
        try:
            next(work)
        except StopIteration as done:
            return steps, done.value
        steps += 1


def made(pipeline: GenAiImagePipeline, prompt: str = PROMPT, **changes: Any) -> bytes:
    return finished(pipeline.generate(prompt, params(**changes)))[1]


def test_the_images_are_those_of_the_pipeline_called_directly(folder: Path, pipeline: GenAiImagePipeline) -> None:
    direct = genai.Text2ImagePipeline(folder, "CPU", INFERENCE_PRECISION_HINT="f32")
    for more in ({}, {"negative_prompt": "a dog", "guidance_scale": 3.0}):
        found = direct.generate(
            PROMPT, width=WIDTH, height=HEIGHT, num_inference_steps=STEPS, rng_seed=SEED, **more
        ).data
        assert found.shape == (1, HEIGHT, WIDTH, 3)
        steps, pixels = finished(pipeline.generate(PROMPT, params(more=more)))
        assert steps == STEPS
        assert pixels == found.tobytes()


def test_prompt_seed_and_steps_change_the_image(pipeline: GenAiImagePipeline) -> None:
    images = [made(pipeline), made(pipeline, "blue"), made(pipeline, seed=8), made(pipeline, steps=5)]
    assert len(set(images)) == 4
    assert made(pipeline) == images[0]
    assert pipeline.info.images == ImageInfo(width=16, height=16, steps=50)


@pytest.mark.parametrize("steps", [0, 1, STEPS])
def test_an_image_that_is_given_up_changes_none_after_it(pipeline: GenAiImagePipeline, steps: int) -> None:
    work = pipeline.generate("blue", params(steps=STEPS))
    for _ in range(steps):
        next(work)
    work.close()
    assert made(pipeline) == made(pipeline)


@pytest.mark.parametrize(("changes", "text"), [
    ({"width": 33}, "divisible by"),
    ({"more": {"prompt_2": "x"}}, "Prompt 2 is not used by Stable Diffusion"),
    ({"more": {"negative_prompt": "x", "guidance_scale": 1.0}}, "ignores negative prompt"),
])  # fmt: skip
def test_what_the_model_cannot_do_is_a_bad_request(
    pipeline: GenAiImagePipeline, changes: dict[str, Any], text: str
) -> None:
    with pytest.raises(BadRequest, match=text) as caught:
        made(pipeline, **changes)
    assert "/" not in str(caught.value)
    made(pipeline)


def test_a_broken_model_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="the model does not load"):
        GenAiImagePipeline(Config(model_path=str(tmp_path), task="image_generation"))


def test_the_images_are_those_of_diffusers(folder: Path, tmp_path: Path, pipeline: GenAiImagePipeline) -> None:
    diffusers = pytest.importorskip("diffusers")
    torch = pytest.importorskip("torch")
    from tools import make_image_model

    tokenizer = make_image_model.tokenizer(tmp_path)
    text, unet, vae = make_image_model.networks(len(tokenizer))
    reference = diffusers.StableDiffusionPipeline(
        vae=vae,
        text_encoder=text,
        tokenizer=tokenizer,
        unet=unet,
        scheduler=diffusers.DDIMScheduler.from_pretrained(folder / "scheduler"),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    reference.set_progress_bar_config(disable=True)
    shape = ov.Shape([1, 4, HEIGHT // 2, WIDTH // 2])
    noise = np.array(genai.CppStdGenerator(SEED).randn_tensor(shape).data)
    wanted = reference(
        PROMPT, height=HEIGHT, width=WIDTH, num_inference_steps=STEPS, latents=torch.from_numpy(noise), output_type="np"
    ).images[0]
    found = np.frombuffer(made(pipeline), np.uint8).reshape(HEIGHT, WIDTH, 3)
    assert np.abs(found - wanted * 255).max() <= 2
