"""For tests of vision: the small model that names colours, and what it should answer."""

from dataclasses import asdict, replace
from pathlib import Path

from lean_ovms.config import Config
from lean_ovms.engine.loading import settings
from lean_ovms.engine.protocol import Submit
from lean_ovms.types import SamplingParams
from tests.archives import extract
from tests.engine.real import EXACT
from tests.pictures import COLOURS

DATA = Path(__file__).parents[1] / "data"
MODEL = DATA / "colours"
SIZE = (50, 60)


def load(blocks=400, **options):
    from lean_ovms.features.genai_pipelines.child.vlm_continuous import VlmContinuous

    config = Config(model_path=str(MODEL), **{**EXACT, **options})
    return VlmContinuous(config, replace(settings.resolve(config, 1 << 30), blocks=blocks))


def turn(text):
    return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


def tags(count):
    return "".join(f"<ov_genai_image_{i}>\n" for i in range(count))


def said(*colours):
    return f"The image is {colours[0]}." if len(colours) == 1 else f"The images are {' and '.join(colours)}."


def see(rig, prompt, *colours, size=SIZE, tag="", **sampling):
    """Puts a Submit with plain images into the inbox. Returns its id."""
    number = rig.next_id()
    asked = asdict(SamplingParams(**{"temperature": 0.0, "max_tokens": 30, **sampling}))
    pixels = [bytes(COLOURS[c]) * (size[0] * size[1]) for c in colours]
    rig.put(Submit(number, prompt, False, None, False, asked, tag, [list(size)] * len(pixels), pixels=pixels))
    return number


def unpacked_omni_model(folder):
    """Unpacks a tiny random Qwen3-Omni into a folder, and returns its directory."""
    return extract(DATA / "omni_model.tar.xz", folder)


def load_stateful(**options):
    from lean_ovms.features.genai_pipelines.child.vlm_stateful import VlmStateful

    return VlmStateful(Config(model_path=str(MODEL), pipeline_type="VLM", **options))
