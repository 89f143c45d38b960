"""Lists the paged engine's families of models with vision by config.json's model_type. Loads no network."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ....repository import model_config
from ....types import Json
from ....util import files
from .family import Files, VisionFamily
from .gemma4 import Gemma4, Gemma4Unified
from .glm4v import Glm4V, PaddleOcr
from .internvl import InternVl
from .lfm2_vl import Lfm2Vl
from .llava import Gemma3, Llava
from .llava_next import LlavaNext
from .minicpmv import MiniCpmV
from .mistral3 import LightOnOcr, Mistral3
from .qwen2_vl import Qwen2Vl, Qwen25Vl
from .qwen3_vl import Qwen3Vl
from .tiled import SmolVlm, Tiled

if TYPE_CHECKING:
    from .networks import VisionNetworks

FAMILIES: dict[str, tuple[Callable[[Files], VisionFamily], str]] = {
    "gemma3": (Gemma3, "Gemma3ImageProcessor"),
    "gemma4": (Gemma4, "Gemma4ImageProcessor"),
    "gemma4_unified": (Gemma4Unified, "Gemma4UnifiedImageProcessor"),
    "glm4v": (Glm4V, "Glm4vImageProcessor"),
    "idefics3": (Tiled, "Idefics3ImageProcessor"),
    "internvl": (InternVl, "GotOcr2ImageProcessor"),
    "lfm2_vl": (Lfm2Vl, "Lfm2VlImageProcessor"),
    "lighton_ocr": (LightOnOcr, "PixtralImageProcessor"),
    "llava": (Llava, "CLIPImageProcessor or LlavaImageProcessor"),
    "llava_next": (LlavaNext, "LlavaNextImageProcessor"),
    "minicpmv": (MiniCpmV, "MiniCPMVImageProcessor"),
    "mistral3": (Mistral3, "PixtralImageProcessor"),
    "paddleocr_vl": (PaddleOcr, "PaddleOCRVLImageProcessor"),
    "qwen2_vl": (Qwen2Vl, "Qwen2VLImageProcessor"),
    "qwen2_5_vl": (Qwen25Vl, "Qwen2VLImageProcessor"),
    "qwen3_5": (Qwen3Vl, "Qwen2VLImageProcessor"),
    "qwen3_5_moe": (Qwen3Vl, "Qwen2VLImageProcessor"),
    "qwen3_vl": (Qwen3Vl, "Qwen2VLImageProcessor"),
    "smolvlm": (SmolVlm, "SmolVLMImageProcessor"),
}
"""The class of each family, and the image processors of transformers that it reproduces."""


class NotReadable(Exception):
    """Raised for a model whose images the paged engine cannot read. The message gives the reason."""


def load(model_dir: Path, networks: VisionNetworks) -> VisionFamily:
    """Returns the family of a model, created from the model's files. Raises NotReadable."""
    config = files.read_object(model_dir / "config.json")
    processor, video = (model_config.processor(model_dir, kind) for kind in ("image", "video"))
    return of(Files(config, processor, video or processor, networks))


def of(found: Files) -> VisionFamily:
    """Returns the family of a model whose files have been read. Raises NotReadable."""
    kind, processor = found.config.get("model_type"), found.processor
    if kind not in FAMILIES:
        raise NotReadable(f"images of models of the type {kind} are not supported")
    family, wanted = FAMILIES[kind]
    if _name(processor) not in wanted.split():
        raise NotReadable(f"its image processor is {_name(processor) or 'unknown'}, not {wanted}")
    try:
        return family(found)
    except (KeyError, TypeError, ValueError) as error:
        raise NotReadable(f"config.json or preprocessor_config.json of this {kind}: {error!r}") from error


def _name(processor: Json) -> str:
    """Returns the name of an image processor without the suffix of its implementation, such as "Fast"."""
    name = str(processor.get("image_processor_type") or processor.get("feature_extractor_type") or "")
    return name.removesuffix("Fast").removesuffix("Pil")
