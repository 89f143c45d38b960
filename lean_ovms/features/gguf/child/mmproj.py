"""An mmproj file: the networks that read images for a model in a GGUF file."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ....errors import StartError, last_line
from ....types import Json
from ..header import Header, read_mmproj
from ..model_file import header_of
from . import gemma4_vision, glm_vision, internvl, lfm2_vision, llava, minicpmv, pixtral, qwen_vision, siglip
from .image_inputs import DEEPSTACK
from .tensors import Tensors, opened, warn_of_unused

log = logging.getLogger("lean_ovms.gguf")

COLOURS = 3
SIZES = "image_size", "patch_size", "embedding_length", "block_count", "attention.head_count"
"""The numbers without which no encoder can be built."""
Network = Callable[[Tensors], Any]
"""Builds an openvino.Model of the tensors of a file."""


class Projector(NamedTuple):
    """A kind of mmproj files, which are distinguished by their projector."""

    architectures: tuple[str, ...]
    """The architectures of the models for which these files are made."""
    tokens: tuple[str, ...]
    """The texts of possible placeholder tokens of images; the first that the model has is used."""
    describe: Callable[[Header], tuple[Json, Json]]
    """Returns the members that config.json and preprocessor_config.json have in exports of these models."""
    networks: Mapping[str, Network]
    """The functions that build the networks, by the names of the networks in an export."""
    outputs: tuple[str, ...] = ()
    """The possible tensors with as many rows as embeddings have numbers; empty if the file states this width."""


PROJECTORS = {
    "gemma3": Projector(
        ("gemma3",),
        ("<image_soft_token>", "<unused6241>", "<mask>"),  # files of llama.cpp's older converters lack the first
        siglip.gemma3,
        {"vision_embeddings": siglip.gemma3_network},
    ),
    "gemma4v": Projector(
        ("gemma4",), ("<|image|>",), gemma4_vision.gemma4, {"vision_embeddings": gemma4_vision.network}
    ),
    "glm4v": Projector(("glm4",), ("<|image|>",), glm_vision.glm4v, glm_vision.NETWORKS),
    "idefics3": Projector(("llama",), ("<image>",), siglip.idefics3, {"vision_embeddings": siglip.idefics3_network}),
    "internvl": Projector(
        ("internlm2", "llama", "qwen2", "qwen3", "qwen3moe", "gpt-oss"),
        ("<IMG_CONTEXT>",),
        internvl.internvl,
        {"vision_embeddings": internvl.network},
    ),
    "lfm2": Projector(("lfm2", "lfm2moe"), ("<image>",), lfm2_vision.lfm2, {"vision_embeddings": lfm2_vision.network}),
    "lightonocr": Projector(("qwen3",), ("<|image_pad|>",), pixtral.lighton_ocr, pixtral.NETWORKS),
    "resampler": Projector(
        ("llama", "minicpm", "qwen2", "qwen3"),
        ("<unk>",),
        minicpmv.minicpmv,
        {"vision_embeddings": minicpmv.network},
        ("resampler.proj.weight",),
    ),
    "mlp": Projector(
        ("llama", "phi3", "qwen2"),
        ("<image>", "<unk>"),  # most of these models have no token for images
        llava.llava,
        {"vision_embeddings": llava.network},
        ("mm.2.weight", "mm.4.weight"),
    ),
    "paddleocr": Projector(
        ("paddleocr",),
        ("<|IMAGE_PLACEHOLDER|>",),
        glm_vision.paddleocr,
        glm_vision.NETWORKS | {"vision_embeddings_merger": glm_vision.paddleocr_merger},
    ),
    "pixtral": Projector(("llama", "mistral3"), ("[IMG]",), pixtral.pixtral, pixtral.NETWORKS),
    "qwen2vl_merger": Projector(("qwen2vl",), ("<|image_pad|>",), qwen_vision.qwen2, qwen_vision.NETWORKS),
    "qwen2.5vl_merger": Projector(("qwen2vl",), ("<|image_pad|>",), qwen_vision.qwen25, qwen_vision.NETWORKS),
    "qwen3vl_merger": Projector(
        ("qwen3vl", "qwen3vlmoe", "qwen35", "qwen35moe"),
        ("<|image_pad|>",),
        qwen_vision.qwen3,
        qwen_vision.NETWORKS | {"vision_embeddings_pos": qwen_vision.positions},
    ),
}
"""The kinds of files that are served, by their names in the files."""


class Mmproj:
    """An mmproj file that fits a model."""

    def __init__(self, path: Path, model: Path) -> None:
        """Reads the headers of the file and of the model, and compares them.

        Args:
            path: The path of the mmproj file.
            model: The path of the model's file.

        Raises:
            StartError: It is not an mmproj file, or not for this model; the message says what differs.
        """
        self._path, self._header, text = path, read_mmproj(path), header_of(model)
        metadata = self._header.metadata
        kind = str(metadata.get("clip.vision.projector_type") or metadata.get("clip.projector_type"))
        if metadata.get("clip.has_vision_encoder") is not True:
            raise StartError(f"{path} cannot be used: it has no image encoder")
        if kind not in PROJECTORS:
            served = ", ".join(PROJECTORS)
            raise StartError(
                f"{path} cannot be used: projector_type {kind} is not supported; supported types are {served}"
            )
        if missing := _lacks(self._header):
            raise StartError(f"{path} cannot be used: its header lacks {missing}")
        self._projector = PROJECTORS[kind]
        self._built: set[str] = set()
        if lacking := _differs(self._header, text, self._projector):
            raise StartError(f"{path} does not fit {model.name}: {lacking}")
        rows = text.tensors["token_embd.weight"][-1]  # some files name more tokens than they have embeddings
        tokens = {token: number for number, token in enumerate(text.strings("tokenizer.ggml.tokens")[:rows])}
        token = next((tokens[token] for token in self._projector.tokens if token in tokens), None)
        if token is None:
            raise StartError(f"{path} does not fit {model.name}: the model has no {self._projector.tokens[0]}")
        try:
            self.config, self.processor = self._projector.describe(self._header)
        except KeyError as error:
            raise StartError(f"{path} cannot be used: it has no {error.args[0]}") from None
        except (ValueError, TypeError, IndexError, ArithmeticError) as error:  # a value or a shape is of another kind
            raise StartError(f"{path} cannot be used: {last_line(error)}") from error
        if newline := next((name for name in llava.NEWLINES if name in self._header.tensors), ""):
            with opened(path, self._header) as tensors:
                self.config["image_newline"] = tensors.numbers(newline).tolist()
        whole = "vision" if text.sees_whole_images else None
        written = {"use_bidirectional_attention": whole, **self.config.get("text_config", {})}
        self.config |= {"image_token_id": token, "text_config": written}
        mean, std = (metadata[f"clip.vision.image_{name}"] for name in ("mean", "std"))
        self.processor |= {"image_mean": mean[:COLOURS], "image_std": std[:COLOURS]}

    @classmethod
    def first(cls, paths: Sequence[Path], model: Path, *, named: bool) -> Mmproj | None:
        """Returns the first file that fits a model, or None with a log entry if none does.

        Args:
            paths: The paths of the files.
            model: The path of the model's file.
            named: Whether an option names the file.

        Raises:
            StartError: A file that an option names does not fit.
        """
        for path in paths:
            try:
                return cls(path, model)
            except StartError as error:
                if named:
                    raise
                log.warning("%s reads text only: %s", model.name, error)
        return None

    def network(self, part: str) -> Any:
        """Builds the network of this name, such as the encoder of images."""
        with opened(self._path, self._header) as tensors:
            found = self._projector.networks[part](tensors)
        self._built.add(part)
        if self._built == self._projector.networks.keys():
            warn_of_unused(self._path, self._header)
        return found


def _lacks(header: Header) -> str:
    """Returns the metadata that a file lacks to know its encoder, or "" if it lacks nothing."""
    for name in ("mean", "std"):
        found = header.metadata.get(f"clip.vision.image_{name}")
        numbers = [each for each in found if isinstance(each, float)] if isinstance(found, list) else []
        if len(numbers) < COLOURS or (name == "std" and not all(numbers)):  # by which pixels are divided
            return f"vision.image_{name}"
    return next((f"vision.{name}" for name in SIZES if not header.number(f"vision.{name}")), "")


def _differs(vision: Header, text: Header, projector: Projector) -> str:
    """Returns why an mmproj file does not fit a model, or "" if it does.

    Args:
        vision: The header of the mmproj file.
        text: The header of the model.
        projector: The kind of the mmproj file.
    """
    if text.architecture not in projector.architectures:
        return f"it is for the architectures {', '.join(projector.architectures)}, not for {text.architecture}"
    output = next((vision.tensors[name] for name in projector.outputs if name in vision.tensors), None)
    made = output[-1] if output else vision.number("vision.projection_dim")
    wanted = text.number("embedding_length")
    if made != wanted:
        return f"its embeddings have {made} numbers, but the model's have {wanted}"
    made, wanted = len(qwen_vision.deeper(vision)), text.number(DEEPSTACK)
    if made != wanted:
        return f"it computes embeddings for {made} deeper layers, but the model reads them in {wanted}"
    return ""
