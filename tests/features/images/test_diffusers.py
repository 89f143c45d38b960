"""Tiny random models of two families: images, edits and inpainting are those of diffusers in torch, except for
rounding.

diffusers gets the random numbers that openvino_genai draws for the same seed, in the same order.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai
import pytest

from lean_ovms.config import Config
from lean_ovms.features.images.child.pipeline import GenAiImagePipeline
from lean_ovms.features.images.params import ImageParams
from lean_ovms.types import Image
from tests.features.images.fakes import unpacked_image_model

diffusers = pytest.importorskip("diffusers")
torch = pytest.importorskip("torch")
EXACT = '{"INFERENCE_PRECISION_HINT": "f32"}'
PROMPT, WIDTH, HEIGHT, STEPS, SEED = "a red cat", 48, 32, 4, 7

pytestmark = pytest.mark.model


@pytest.fixture(scope="module", params=["stable_diffusion_tiny", "flux_tiny"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked_image_model(tmp_path_factory.mktemp("image_model"), request.param)


@pytest.fixture(scope="module")
def pipeline(folder: Path) -> GenAiImagePipeline:
    return GenAiImagePipeline(Config(model_path=str(folder), task="image_generation", plugin_config=EXACT))


@pytest.fixture(scope="module")
def parts(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Returns the parts of a diffusers pipeline."""
    from tests.features.images import networks_torch

    tokenizer = networks_torch.tokenizer(tmp_path_factory.mktemp("tokenizer"))
    if folder.name == "flux_tiny":
        tokenizer_2 = networks_torch.t5_tokenizer()
        text, t5, transformer, vae = networks_torch.flux_networks(len(tokenizer), len(tokenizer_2))
        scheduler = diffusers.FlowMatchEulerDiscreteScheduler.from_pretrained(folder / "scheduler")
        own = {"text_encoder_2": t5, "tokenizer_2": tokenizer_2, "transformer": transformer}
    else:
        text, unet, vae = networks_torch.networks(len(tokenizer))
        scheduler = diffusers.DDIMScheduler.from_pretrained(folder / "scheduler")
        own = {"unet": unet, "safety_checker": None, "feature_extractor": None, "requires_safety_checker": False}
    return {"vae": vae, "text_encoder": text, "tokenizer": tokenizer, "scheduler": scheduler, **own}


@pytest.mark.parametrize(
    ("kind", "strength"), [("", None), ("Img2Img", 0.5), ("Img2Img", 1.0), ("Inpaint", 0.5), ("Inpaint", 1.0)]
)
def test_images_are_those_of_diffusers(
    pipeline: GenAiImagePipeline,
    parts: dict[str, Any],
    folder: Path,
    kind: str,
    strength: float | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = diffusers.FluxPipeline if folder.name == "flux_tiny" else diffusers.StableDiffusionPipeline
    made = getattr(diffusers, made.__name__.replace("Pipeline", f"{kind}Pipeline"))
    random = genai.CppStdGenerator(SEED)

    def randn_tensor(shape: Any, *_: Any, **__: Any) -> Any:
        return torch.from_numpy(np.array(random.randn_tensor(ov.Shape([*shape])).data))

    for module in ("diffusers.models.autoencoders.vae", made.__module__):
        monkeypatch.setattr(importlib.import_module(module), "randn_tensor", randn_tensor)
    reference = made(**parts)
    reference.set_progress_bar_config(disable=True)
    picture = np.random.default_rng(0).integers(0, 255, (HEIGHT, WIDTH, 3), np.uint8)
    hole = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    hole[:, WIDTH // 2 :] = 255
    pixels = {"": [], "Img2Img": [picture], "Inpaint": [picture, hole]}[kind]
    more = {} if strength is None else {"strength": strength}
    edit = {name: one[None] / 255.0 for name, one in zip(("image", "mask_image"), pixels, strict=False)}
    if kind == "Inpaint":
        edit["mask_image"] = edit["mask_image"][0, ..., 0]
    wanted = reference(
        PROMPT,
        height=HEIGHT,
        width=WIDTH,
        num_inference_steps=STEPS,
        guidance_scale=7.0,
        output_type="np",
        **edit,
        **more,
    ).images[0]

    params = ImageParams(width=WIDTH, height=HEIGHT, steps=STEPS, seed=SEED, more={"guidance_scale": 7.0, **more})
    work = pipeline.generate(PROMPT, params, [Image(HEIGHT, WIDTH, one.tobytes()) for one in pixels])
    while True:
        try:
            next(work)
        except StopIteration as done:
            found = np.frombuffer(done.value, np.uint8).reshape(HEIGHT, WIDTH, 3)
            break
    assert np.abs(found - wanted * 255).max() < 1.2  # GenAI truncates where diffusers rounds
